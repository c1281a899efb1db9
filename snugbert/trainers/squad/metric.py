"""Exact match and F1 of SQuAD, equal to the official scripts `evaluate-v1.1.py` and `evaluate-v2.0.py`.

    predictions {id: text}, golds {id: texts} -> squad_scores -> squad_figures, squad_v2_figures

`evaluate.load("squad_v2")` fetches a script from the Hub and runs it. The same metric, by the same names, is here the
class `SquadMetric("squad_v2")`.

Figures are equal to the last digit, so numbers are added in the scripts' order, and what is an int there is one here.
"""

import logging
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import evaluate
import numpy as np
from datasets import Features, List, Value

logger = logging.getLogger(__name__)

Scores = dict[str, float]  # by question

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


# --- scores of each question ------------------------------------------------------------------------------------


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, words separated by one space.

    Punctuation is that of ASCII. It goes first: "a-b" is the word "ab", and "a." an article.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of the words that two answers have in common, each as often as both have it; 0 if there are none."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0
    precision = common / len(predicted)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def squad_scores(
    predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]], version_2: bool = False
) -> tuple[Scores, Scores]:
    """Exact match and F1 of each question: of its right answers the one that agrees most counts.

    In v2.0 right answers without a word (such as "The") do not count, a question that has no other wants the answer
    "", and an answer without a word has F1 1 there. In v1.1 such an answer has F1 0, though it may be an exact match.

    Args:
        predictions: the answer to each question, by its id; "" for "no answer".
        golds: the right answers to each question; none if it has no answer.
        version_2: score as `evaluate-v2.0.py` does, not as `evaluate-v1.1.py`.

    Returns:
        Exact match, 0 or 1, and F1, from 0 to 1, by question, in the order of `golds`. In v1.1 a question without a
        prediction scores 0, which is logged.

    Raises:
        ValueError: a question without right answers in v1.1; or without a prediction in v2.0, whose script leaves it
            out of some figures and fails at others.
    """
    missing = [question for question in golds if question not in predictions]
    if missing:
        message = f"{len(missing)} questions have no prediction; the first: {missing[0]}"
        if version_2:
            raise ValueError(message)
        logger.warning("%s. They score 0.", message)
    exact: Scores = {}
    f1: Scores = {}
    for question, texts in golds.items():
        right = {normalize(text) for text in texts}
        if version_2:
            right = (right - {""}) or {""}
        elif not right:
            raise ValueError(f"Question {question} has no right answers; SQuAD v2.0's metric scores such questions.")
        if question not in predictions:
            exact[question] = f1[question] = 0
            continue
        predicted = normalize(predictions[question])
        exact[question] = int(predicted in right)
        if version_2 and (predicted == "" or right == {""}):
            f1[question] = exact[question]
        else:
            f1[question] = max(word_f1(predicted.split(), answer.split()) for answer in right)
    return exact, f1


# --- figures of all questions -----------------------------------------------------------------------------------


def squad_figures(exact: Scores, f1: Scores) -> dict[str, float]:
    """The figures of `evaluate-v1.1.py`.

    Args:
        exact, f1: from [`squad_scores`].

    Returns:
        exact_match and f1, means in percent.
    """
    return {"exact_match": 100.0 * sum(exact.values()) / len(exact), "f1": 100.0 * _running_sum(f1.values()) / len(f1)}


def _running_sum(numbers: Iterable[float]) -> float:
    """The sum as a loop makes it; since Python 3.12 `sum` is more exact."""
    total: float = 0
    for number in numbers:
        total += number
    return total


def squad_v2_figures(
    exact: Scores,
    f1: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float] | None = None,
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """The figures of `evaluate-v2.0.py`.

    Args:
        exact, f1: from [`squad_scores`].
        predictions, golds: as there.
        null_odds: how likely each question has no answer, in any unit; the script's `--na-prob-file`.
        no_answer_threshold: a question with more than that counts as answered with ""; `--na-prob-thresh`.

    Returns:
        exact and f1, means in percent, and total, the number of questions; the same of those that have an answer
        (HasAns_exact, ...) and those that have none (NoAns_exact, ...), if there are any. With `null_odds` also
        best_exact, best_exact_thresh, best_f1 and best_f1_thresh: the highest figures that a threshold gives, and the
        lowest such threshold; 0.0 if none beats answering nothing.
    """
    final_exact, final_f1 = dict(exact), dict(f1)
    for question in golds:
        if null_odds is not None and null_odds[question] > no_answer_threshold:
            final_exact[question] = final_f1[question] = float(not golds[question])
    parts = {
        "": list(golds),
        "HasAns_": [question for question, answers in golds.items() if answers],
        "NoAns_": [question for question, answers in golds.items() if not answers],
    }
    figures: dict[str, float] = {}
    for prefix, questions in parts.items():
        if questions:
            for name, scores in (("exact", final_exact), ("f1", final_f1)):
                figures[prefix + name] = 100.0 * sum(scores[question] for question in questions) / len(questions)
            figures[prefix + "total"] = len(questions)
    if null_odds is not None:
        for name, scores in (("exact", exact), ("f1", f1)):
            thresholds, sums = _sums_by_threshold(scores, predictions, golds, null_odds)
            best = int(sums.argmax())
            figures[f"best_{name}"] = 100.0 * float(sums[best]) / len(golds)
            figures[f"best_{name}_thresh"] = float(thresholds[best])
    return figures


def threshold_curve(
    exact: Scores,
    f1: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the figures of SQuAD v2.0 would be at other thresholds.

    Args:
        exact, f1, predictions, golds, null_odds: as in [`squad_v2_figures`]. The curve says what a threshold gives if
            the predictions are the best spans, whatever their odds; where they are "" it is flat.

    Returns:
        Thresholds, ascending from -inf, and exact match and F1 in percent if questions with larger odds are answered
        with "". *Shape:* (questions + 1,) each
    """
    (thresholds, exact_sums), (_, f1_sums) = (
        _sums_by_threshold(scores, predictions, golds, null_odds) for scores in (exact, f1)
    )
    thresholds[0] = -np.inf
    return thresholds, 100.0 * exact_sums / len(golds), 100.0 * f1_sums / len(golds)


def _sums_by_threshold(
    scores: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the scores if none, one, two, ... questions, those of the least odds, get their predictions.

    The others are answered with "". As in the script, equal odds are as many thresholds, in the order of `null_odds`,
    and the threshold at which no question gets its prediction is called 0.0.

    Returns:
        The odds up to which questions get their predictions, and the sums. *Shape:* (questions + 1,) each
    """
    ordered = sorted(null_odds, key=lambda question: null_odds[question])
    questions = [question for question in ordered if question in scores]
    without_answer = sum(not answers for answers in golds.values())
    changes = [scores[question] if golds[question] else -bool(predictions[question]) for question in questions]
    thresholds = np.array([0.0, *(null_odds[question] for question in questions)])
    return thresholds, np.cumsum([without_answer, *changes], dtype=np.float64)  # one after the other, as a loop adds


# --- evaluate.Metric --------------------------------------------------------------------------------------------

DESCRIPTION = """\
Exact match and F1 of the Stanford Question Answering Dataset, in percent, equal to the official scripts: v1.1
("squad") and v2.0, where a question may have no answer ("squad_v2")."""

INPUTS = """
Args:
    predictions: a dict each question: id, prediction_text; for squad_v2 also no_answer_probability (float).
    references: a dict each question: id, answers, a dict of the lists text and answer_start (not looked at).
    no_answer_threshold: for squad_v2: a question with a larger no_answer_probability counts as answered with "";
        default 1.0.

Returns:
    dict of float. squad: exact_match, f1. squad_v2: exact, f1, total; the same of questions with (HasAns_exact, ...)
    and without an answer (NoAns_exact, ...); best_exact, best_exact_thresh, best_f1, best_f1_thresh.

Example:
    >>> predictions = [{"id": "1", "prediction_text": "in 1976"}]
    >>> references = [{"id": "1", "answers": {"text": ["1976", "the year 1976"], "answer_start": [97, 88]}}]
    >>> SquadMetric("squad").compute(predictions=predictions, references=references)
    {'exact_match': 0.0, 'f1': 66.66666666666666}
"""

CITATION = """\
@inproceedings{rajpurkar2018know,
  title={Know What You Don't Know: Unanswerable Questions for {SQuAD}},
  author={Rajpurkar, Pranav and Jia, Robin and Liang, Percy},
  booktitle={Annual Meeting of the Association for Computational Linguistics},
  year={2018}
}"""


class SquadMetric(evaluate.Metric):
    """The metric of SQuAD v1.1 or v2.0.

    Args:
        config_name: `"squad"` (default) or `"squad_v2"`.
        kwargs: as in `evaluate.Metric`.

    Raises:
        ValueError: another `config_name`.
    """

    def __init__(self, config_name: str = "squad", **kwargs: Any):
        if config_name not in ("squad", "squad_v2"):
            raise ValueError(f"Unknown version {config_name!r}; SquadMetric knows squad and squad_v2.")
        super().__init__(config_name, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        prediction = {"id": Value("string"), "prediction_text": Value("string")}
        if self.config_name == "squad_v2":
            prediction["no_answer_probability"] = Value("float64")
        answers = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=Features({"predictions": prediction, "references": {"id": Value("string"), "answers": answers}}),
            reference_urls=["https://rajpurkar.github.io/SQuAD-explorer/"],
        )

    def _compute(
        self, predictions: list[Any], references: list[Any], no_answer_threshold: float = 1.0
    ) -> dict[str, float]:
        texts = {prediction["id"]: prediction["prediction_text"] for prediction in predictions}
        golds = {reference["id"]: reference["answers"]["text"] for reference in references}
        if len(golds) < len(references):
            raise ValueError(f"{len(references) - len(golds)} of {len(references)} references repeat an id.")
        if self.config_name == "squad":
            return squad_figures(*squad_scores(texts, golds))
        null_odds = {prediction["id"]: prediction["no_answer_probability"] for prediction in predictions}
        scores = squad_scores(texts, golds, version_2=True)
        return squad_v2_figures(*scores, texts, golds, null_odds, no_answer_threshold)
