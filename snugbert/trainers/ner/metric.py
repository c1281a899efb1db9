"""The metric of CoNLL's shared tasks: precision, recall and F1 of whole entities; seqeval does the counting.

`evaluate.load("seqeval")` fetches a script from the Hub and runs it. This is the same metric as a class,
`NerMetric()`.
"""

import evaluate
from datasets import Features, List, Value
from seqeval.metrics import accuracy_score, classification_report

DESCRIPTION = """\
Precision, recall and F1 of entities, in shares of 1: an entity is right if its type, its first and its last word are.
As in conlleval, the script of CoNLL's shared tasks, a tag that its scheme does not allow where it stands is read for
what it seems to mean, an I- that continues nothing as the beginning of an entity."""

INPUTS = """
Args:
    predictions: a list of tags (str) for each sentence.
    references: the right ones.

Returns:
    dict of float: precision, recall and f1 of all entities together (micro average), accuracy of the tags, and for
    each type of entity, such as PER, PER_precision, PER_recall, PER_f1 and PER_number, how many there are in the
    references. A share of nothing is 0.

Example:
    >>> NerMetric().compute(predictions=[["B-PER", "O"]], references=[["B-PER", "B-LOC"]])["f1"]
    0.6666666666666666
"""

CITATION = """\
@inproceedings{tjong-kim-sang-de-meulder-2003-introduction,
  title={Introduction to the {C}o{NLL}-2003 Shared Task: Language-Independent Named Entity Recognition},
  author={Tjong Kim Sang, Erik F. and De Meulder, Fien},
  booktitle={Proceedings of the Seventh Conference on Natural Language Learning at HLT-NAACL 2003},
  year={2003}
}"""


class NerMetric(evaluate.Metric):
    """Scores of entities, by the tags of their words."""

    def _info(self) -> evaluate.MetricInfo:
        tags = List(Value("string"))
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=Features({"predictions": tags, "references": tags}),
            reference_urls=["https://aclanthology.org/W03-0419", "https://github.com/chakki-works/seqeval"],
        )

    def _compute(self, predictions: list[list[str]], references: list[list[str]]) -> dict[str, float]:
        figures = {
            "precision": 0.0,
            "recall": 0.0,
            "f1": 0.0,
            "accuracy": float(accuracy_score(references, predictions)),
        }
        if all(tag == "O" for tags in (*references, *predictions) for tag in tags):
            return figures  # seqeval would take the mean of no types
        report = classification_report(references, predictions, output_dict=True, zero_division=0)
        together = report.pop("micro avg")
        figures.update({name: float(together[key]) for name, key in SHARES.items()})
        for kind in sorted(report.keys() - {"macro avg", "weighted avg"}):
            scores = report[kind]
            figures.update({f"{kind}_{name}": float(scores[key]) for name, key in SHARES.items()})
            figures[f"{kind}_number"] = int(scores["support"])
        return figures


SHARES = {"precision": "precision", "recall": "recall", "f1": "f1-score"}  # our names and seqeval's
