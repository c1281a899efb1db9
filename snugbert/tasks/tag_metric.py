"""The metric of CoNLL's shared tasks: precision, recall and F1 of whole entities, counted by seqeval.

`evaluate.load("seqeval")` downloads a script from the Hub and runs it. `NerMetric()` is the same metric without a
download.
"""

from collections import Counter, defaultdict

import evaluate
import numpy as np
from datasets import Features, List, Value
from seqeval.metrics import accuracy_score, classification_report

from snugbert.data.conll import NerSplit, Tags
from snugbert.reports.intervals import Interval, bootstrap
from snugbert.tasks.entity_tags import convert_tags, decode_tags

REPORT_KEYS = {"precision": "precision", "recall": "recall", "f1": "f1-score"}  # our metric -> seqeval's key

DESCRIPTION = """\
Precision, recall and F1 of entities, as fractions. An entity is correct if its type, first word and last word are
correct. Tags may be in BIO, IOB1, IOBES or BILOU. Invalid tags are read as in conlleval, the script of CoNLL's shared
tasks: an I- that does not continue an entity begins one."""

INPUTS = """
Args:
    predictions: a list of tags (str) for each sentence.
    references: the correct tags.

Returns:
    dict of float: precision, recall and f1 of all entities (micro average), and accuracy, the share of equal tags. For
    each entity type, such as PER: PER_precision, PER_recall, PER_f1, and PER_number, the number of entities in the
    references. A fraction with denominator 0 is 0.

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
    """Scores entities, given as the tags of their words."""

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
        metrics = {
            "precision": 0.0,
            "recall": 0.0,
            "f1": 0.0,
            "accuracy": float(accuracy_score(references, predictions)),
        }
        if all(tag == "O" for tags in (*references, *predictions) for tag in tags):
            return metrics  # without entities seqeval would average over no types
        # seqeval does not know BILOU.
        bio_references, bio_predictions = (
            [convert_tags(tags, "bio") for tags in sentences] for sentences in (references, predictions)
        )
        report = classification_report(bio_references, bio_predictions, output_dict=True, zero_division=0)
        micro = report.pop("micro avg")
        metrics.update({name: float(micro[key]) for name, key in REPORT_KEYS.items()})
        for kind in sorted(report.keys() - {"macro avg", "weighted avg"}):
            scores = report[kind]
            metrics.update({f"{kind}_{name}": float(scores[key]) for name, key in REPORT_KEYS.items()})
            metrics[f"{kind}_number"] = int(scores["support"])
        return metrics


def score_tags(split: NerSplit, tags: Tags) -> dict[str, float]:
    """Scores the predicted tags of a labeled split with [`NerMetric`]. They are in the scheme of its source."""
    return NerMetric(keep_in_memory=True).compute(predictions=tags, references=split.references)


def estimate_intervals(split: NerSplit, tags: Tags) -> dict[str, Interval]:
    """Returns the intervals of the metrics of all entities together, from a bootstrap over the sentences."""
    rows = []
    for correct, predicted in zip(split.references, tags, strict=True):
        entities, found = set(decode_tags(correct)), set(decode_tags(predicted))
        equal_tags = sum(tag == other for tag, other in zip(correct, predicted, strict=True))
        rows.append((len(entities & found), len(found), len(entities), equal_tags, len(correct)))
    return bootstrap(np.array(rows), score_drawn_entities)


def score_drawn_entities(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes precision, recall and F1 of entities, and the accuracy of tags, as seqeval does.

    Args:
        rows: numbers of correct, predicted and reference entities, of equal tags and of words. *Shape:* (rows, 5)
        counts: number of sentences with each row. *Shape:* (rows,)
    """
    correct, predicted, references, equal_tags, words = counts @ rows
    return {
        "precision": correct / predicted if predicted else 0.0,
        "recall": correct / references if references else 0.0,
        "f1": 2 * correct / (predicted + references) if correct else 0.0,
        "accuracy": equal_tags / words,
    }


def predict_most_frequent_tags(train: NerSplit, split: NerSplit) -> Tags:
    """The baseline: predicts each word's most frequent tag in the training data, and O for unknown words.

    Returns:
        Tags in the scheme of `split`. Invalid tags are repaired, as in predictions of a model.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train.sentences:
        for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
            counts[word][tag] += 1
    most_frequent = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    predicted = [[most_frequent.get(word, "O") for word in sentence.words] for sentence in split.sentences]
    return [convert_tags(tags, split.scheme) for tags in predicted]
