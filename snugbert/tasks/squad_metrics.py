"""Exact match and F1 of SQuAD, equal to the official scripts `evaluate-v1.1.py` and `evaluate-v2.0.py`.

    predictions {id: text}, golds {id: texts} -> squad_scores -> squad_metrics or squad_v2_metrics

`evaluate.load("squad_v2")` downloads a script from the Hub and runs it. `SquadMetric("squad_v2")` is the same metric,
with the same names, without a download.

Values are equal to the last digit: sums run in the scripts' order, and integers stay integers.
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

from snugbert.reports.intervals import Interval, bootstrap

logger = logging.getLogger(__name__)

Scores = dict[str, float]  # question id -> score

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


# --- scores of each question ------------------------------------------------------------------------------------


def normalize(text: str) -> str:
    """Lowercases the text, removes ASCII punctuation and English articles, and puts one space between words.

    Punctuation is removed first: "a-b" becomes "ab", and "a." becomes an article.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Returns the word F1 of two answers, counting repeated words. Without a common word, it is 0."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0
    precision = common / len(predicted)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def squad_scores(
    predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]], version_2: bool = False
) -> tuple[Scores, Scores]:
    """Scores each question by exact match and F1, against its best matching gold answer.

    Some answers, such as "The", have no words after normalization. In v2.0 such gold answers are ignored. If a
    question has no others, the correct prediction is "", or any prediction without words, with F1 1. In v1.1 a
    prediction without words has F1 0, although it can be an exact match.

    Args:
        predictions: question id -> answer; "" for "no answer".
        golds: question id -> correct answers; empty if the question has no answer.
        version_2: score as `evaluate-v2.0.py`, not as `evaluate-v1.1.py`.

    Returns:
        Exact match (0 or 1) and F1 (from 0 to 1) of each question, in the order of `golds`. In v1.1 a question without
        a prediction scores 0, with a warning.

    Raises:
        ValueError: a question has no gold answers in v1.1, or no prediction in v2.0. The official script of v2.0 drops
            such a question from some metrics and fails in others.
    """
    missing = [question for question in golds if question not in predictions]
    if missing:
        message = f"Questions without a prediction: {len(missing)}. The first: {missing[0]}"
        if version_2:
            raise ValueError(message)
        logger.warning("%s. They score 0.", message)
    exact: Scores = {}
    f1: Scores = {}
    for question, texts in golds.items():
        gold_texts = {normalize(text) for text in texts}
        if version_2:
            gold_texts = (gold_texts - {""}) or {""}
        elif not gold_texts:
            raise ValueError(f"Question {question} has no reference answers. Use the metric of SQuAD v2.0.")
        if question not in predictions:
            exact[question] = f1[question] = 0
            continue
        predicted = normalize(predictions[question])
        exact[question] = int(predicted in gold_texts)
        if version_2 and (predicted == "" or gold_texts == {""}):
            f1[question] = exact[question]
        else:
            f1[question] = max(word_f1(predicted.split(), gold.split()) for gold in gold_texts)
    return exact, f1


# --- metrics of all questions -----------------------------------------------------------------------------------


def squad_metrics(exact: Scores, f1: Scores) -> dict[str, float]:
    """Computes the metrics of `evaluate-v1.1.py`.

    Args:
        exact, f1: from [`squad_scores`].

    Returns:
        exact_match and f1: means over all questions, in percent.
    """
    return {"exact_match": 100.0 * sum(exact.values()) / len(exact), "f1": 100.0 * _running_sum(f1.values()) / len(f1)}


def _running_sum(numbers: Iterable[float]) -> float:
    """Adds the numbers one by one. Since Python 3.12 `sum` rounds differently."""
    total: float = 0
    for number in numbers:
        total += number
    return total


def squad_v2_metrics(
    exact: Scores,
    f1: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float] | None = None,
    no_answer_threshold: float = 1.0,
) -> dict[str, float]:
    """Computes the metrics of `evaluate-v2.0.py`.

    Args:
        exact, f1: from [`squad_scores`].
        predictions, golds: the arguments of [`squad_scores`].
        null_odds: question id -> score of "no answer", in any unit. The script's `--na-prob-file`.
        no_answer_threshold: questions with larger odds are scored as answered with "". The script's
            `--na-prob-thresh`.

    Returns:
        exact and f1 (means in percent) and total (the number of questions). The same for the questions with an answer
        (HasAns_exact, ...) and without one (NoAns_exact, ...), if there are any. With `null_odds` also best_exact,
        best_exact_thresh, best_f1 and best_f1_thresh: the highest value of any threshold, and the lowest threshold
        that reaches it, or 0.0 if no threshold beats answering nothing.
    """
    final_exact, final_f1 = dict(exact), dict(f1)
    for question in golds:
        if null_odds is not None and null_odds[question] > no_answer_threshold:
            final_exact[question] = final_f1[question] = float(not golds[question])
    groups = {
        "": list(golds),
        "HasAns_": [question for question, answers in golds.items() if answers],
        "NoAns_": [question for question, answers in golds.items() if not answers],
    }
    metrics: dict[str, float] = {}
    for prefix, questions in groups.items():
        if questions:
            for name, scores in (("exact", final_exact), ("f1", final_f1)):
                metrics[prefix + name] = 100.0 * sum(scores[question] for question in questions) / len(questions)
            metrics[prefix + "total"] = len(questions)
    if null_odds is not None:
        for name, scores in (("exact", exact), ("f1", f1)):
            thresholds, sums = _sums_by_threshold(scores, predictions, golds, null_odds)
            best = int(sums.argmax())
            metrics[f"best_{name}"] = 100.0 * float(sums[best]) / len(golds)
            metrics[f"best_{name}_thresh"] = float(thresholds[best])
    return metrics


def threshold_curve(
    exact: Scores,
    f1: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes exact match and F1 of SQuAD v2.0 at every threshold.

    Args:
        exact, f1, predictions, golds, null_odds: see [`squad_v2_metrics`]. Predictions should be the best spans,
            even where "no answer" scores higher. The curve is flat where they are "".

    Returns:
        Thresholds in ascending order from -inf, and exact match and F1 in percent if questions with larger odds are
        answered with "". *Shape:* (questions + 1,) each
    """
    (thresholds, exact_sums), (_, f1_sums) = (
        _sums_by_threshold(scores, predictions, golds, null_odds) for scores in (exact, f1)
    )
    thresholds[0] = -np.inf
    return thresholds, 100.0 * exact_sums / len(golds), 100.0 * f1_sums / len(golds)


def estimate_intervals(exact: Scores, f1: Scores) -> dict[str, Interval]:
    """Returns the intervals of [`squad_metrics`], in percent, from a bootstrap over the questions."""

    def score(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        exact_match, f1 = 100 * (counts @ rows) / counts.sum()
        return {"exact_match": exact_match, "f1": f1}

    return bootstrap(np.array([(exact[question], f1[question]) for question in exact]), score)


def estimate_intervals_v2(
    exact: Scores,
    f1: Scores,
    span_exact: Scores,
    span_f1: Scores,
    spans: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> dict[str, Interval]:
    """Returns the intervals of the scores in [`squad_v2_metrics`], in percent, from a bootstrap over the questions.

    Every resample has its own best threshold.

    Args:
        exact, f1: scores of the answers.
        span_exact, span_f1: scores of the best spans.
        spans: question id -> the best span; "" if there is none.
        golds, null_odds: see [`squad_v2_metrics`].
    """

    def score(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        _, has_answer, exact, f1, exact_change, f1_change = rows.T  # in ascending order of the odds
        metrics: dict[str, float] = {}
        for prefix, chosen in (("", counts), ("HasAns_", counts * has_answer), ("NoAns_", counts * (1 - has_answer))):
            total = chosen.sum() or np.nan
            metrics |= {f"{prefix}exact": 100 * chosen @ exact / total, f"{prefix}f1": 100 * chosen @ f1 / total}
        without_answer = counts @ (1 - has_answer)
        for name, changes in (("exact", exact_change), ("f1", f1_change)):
            gain = max(0.0, np.cumsum(counts * changes).max())
            metrics[f"best_{name}"] = 100 * (without_answer + gain) / counts.sum()
        return metrics

    rows = []
    for question, answers in golds.items():
        changes = (
            [scores[question] for scores in (span_exact, span_f1)] if answers else [-float(bool(spans[question]))] * 2
        )
        rows.append((null_odds[question], bool(answers), exact[question], f1[question], *changes))
    return bootstrap(np.array(rows, dtype=np.float64), score)


def _sums_by_threshold(
    scores: Scores,
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[np.ndarray, np.ndarray]:
    """Sums the scores when only the 0, 1, 2, ... questions with the lowest odds keep their predictions.

    The other questions are answered with "". As in the script, questions with equal odds count as separate thresholds,
    in the order of `null_odds`, and the threshold at which no prediction is kept is 0.0.

    Returns:
        The highest odds whose prediction is kept, and the sums. *Shape:* (questions + 1,) each
    """
    ordered = sorted(null_odds, key=lambda question: null_odds[question])
    questions = [question for question in ordered if question in scores]
    without_answer = sum(not answers for answers in golds.values())
    changes = [scores[question] if golds[question] else -bool(predictions[question]) for question in questions]
    thresholds = np.array([0.0, *(null_odds[question] for question in questions)])
    return thresholds, np.cumsum([without_answer, *changes], dtype=np.float64)  # adds one by one, like the script


# --- evaluate.Metric --------------------------------------------------------------------------------------------

DESCRIPTION = """\
Exact match and F1 of the Stanford Question Answering Dataset, in percent, equal to the official scripts of v1.1
("squad") and of v2.0, where a question may have no answer ("squad_v2")."""

INPUTS = """
Args:
    predictions: a dict for each question with id and prediction_text; for squad_v2 also no_answer_probability (float).
    references: a dict for each question with id and answers, a dict of the lists text and answer_start (ignored).
    no_answer_threshold: for squad_v2: a question with a larger no_answer_probability is scored as answered with "".
        Default: 1.0.

Returns:
    dict of float. squad: exact_match, f1. squad_v2: exact, f1, total; the same for questions with an answer
    (HasAns_exact, ...) and without one (NoAns_exact, ...); best_exact, best_exact_thresh, best_f1, best_f1_thresh.

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
    """The metrics of SQuAD v1.1 or v2.0.

    Args:
        config_name: `"squad"` (default) or `"squad_v2"`.
        kwargs: passed on to `evaluate.Metric`.

    Raises:
        ValueError: `config_name` is unknown.
    """

    def __init__(self, config_name: str = "squad", **kwargs: Any):
        if config_name not in ("squad", "squad_v2"):
            raise ValueError(f"SquadMetric: unknown version {config_name!r}. Choose squad or squad_v2.")
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
            raise ValueError(f"{len(references) - len(golds)} of {len(references)} references have a repeated id.")
        if self.config_name == "squad":
            return squad_metrics(*squad_scores(texts, golds))
        null_odds = {prediction["id"]: prediction["no_answer_probability"] for prediction in predictions}
        scores = squad_scores(texts, golds, version_2=True)
        return squad_v2_metrics(*scores, texts, golds, null_odds, no_answer_threshold)
