"""Exact match and F1 of SQuAD, equal to the official scripts `evaluate-v1.1.py` and `evaluate-v2.0.py`.

    answers -> measure_answers: a row of numbers per question -> score_v1 or score_v2: metrics

Values are equal to the last digit: numbers are added one after the other, in the scripts' order. Only the built-in
`sum` of Python 3.12 and later, which evaluate-v2.0.py calls, rounds differently.

Shapes: N questions. `counts` says how often each question counts. Default: once. *Shape:* (N,)
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(a|an|the)\b")


# --- a row of numbers for each question -------------------------------------------------------------------------


def normalize(text: str) -> str:
    """Lowercases the text, removes ASCII punctuation, then English articles, and puts one space between words."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def word_f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """Returns the word F1 of two answers, counting repeated words. Without a common word, it is 0."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    if common == 0:
        return 0
    precision = common / len(predicted)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def compare_answer(answer: str, golds: Sequence[str], version_2: bool = False) -> tuple[float, float]:
    """Returns exact match (0 or 1) and F1 (0 to 1) of an answer and its best matching gold answer.

    Some answers, such as "The", have no words after normalization. In v2.0 such gold answers are ignored. If a
    question has no other gold answer, "" and all other answers without words are correct, with F1 1. In v1.1 an
    answer without words has F1 0, although it can be an exact match.
    """
    gold_texts = {normalize(text) for text in golds}
    if version_2:
        gold_texts = (gold_texts - {""}) or {""}
    predicted = normalize(answer)
    exact = float(predicted in gold_texts)
    if version_2 and (predicted == "" or gold_texts == {""}):
        return exact, exact
    return exact, max(word_f1(predicted.split(), gold.split()) for gold in gold_texts)


def measure_answers(golds: Sequence[Sequence[str]], answers: Sequence[str]) -> np.ndarray:
    """Measures answers as in SQuAD v1.1: exact match and F1 of each question. float64, *shape* (N, 2)"""
    if not all(golds):
        raise ValueError("A question has no reference answers. Use the metrics of SQuAD v2.0.")
    pairs = zip(answers, golds, strict=True)
    return np.array([compare_answer(answer, texts) for answer, texts in pairs], np.float64)


def measure_answers_v2(
    golds: Sequence[Sequence[str]], answers: Sequence[str], spans: Sequence[str], null_odds: Sequence[float]
) -> np.ndarray:
    """Measures answers as in SQuAD v2.0. `golds` are empty if a question has no answer.

    `spans` are the answers at the highest threshold: the best span, even where "no answer" scores higher. They should
    not be "", because a threshold cannot bring back an answer that was replaced. `null_odds` are the scores of "no
    answer", in any unit. A threshold replaces answers with larger odds by "".

    Returns six numbers for each question: the odds; 1 if the question has an answer, else 0; exact match; F1; and how
    exact match and F1 change if the answer is the span instead of "". As in the official script, "" is wrong for every
    question with an answer. float64, *shape* (N, 6)
    """
    rows = []
    for texts, answer, span, odds in zip(golds, answers, spans, null_odds, strict=True):
        changes = compare_answer(span, texts, version_2=True) if texts else [-float(bool(span))] * 2
        rows.append((odds, bool(texts), *compare_answer(answer, texts, version_2=True), *changes))
    return np.array(rows, np.float64)


# --- metrics of all questions -----------------------------------------------------------------------------------


def score_v1(rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
    """Computes the metrics of `evaluate-v1.1.py` from [`measure_answers`]: means over all questions, in percent."""
    weights = np.ones(len(rows)) if counts is None else counts
    return {name: _average(values, weights) for name, values in zip(("exact_match", "f1"), rows.T, strict=True)}


def score_v2(rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
    """Computes the metrics of `evaluate-v2.0.py` from [`measure_answers_v2`].

    Returns:
        exact and f1 (means in percent) and total (the number of questions). The same metrics of questions with an
        answer (HasAns_exact, ...) and without an answer (NoAns_exact, ...), if the split has such questions.
        best_exact, best_exact_thresh, best_f1 and best_f1_thresh: the highest value at any threshold, and the lowest
        threshold that reaches it, or 0.0 if no threshold beats "" as the answer to every question. With `counts`,
        totals and thresholds are left out, because they have no intervals.
    """
    weights = np.ones(len(rows)) if counts is None else counts
    _, has_answer, exact, f1, _, _ = rows.T
    metrics: dict[str, float] = {}
    for prefix, members in (("", np.ones(len(rows))), ("HasAns_", has_answer), ("NoAns_", 1 - has_answer)):
        if members.any():
            chosen = weights * members
            metrics |= {f"{prefix}exact": _average(exact, chosen), f"{prefix}f1": _average(f1, chosen)}
            if counts is None:
                metrics[f"{prefix}total"] = int(members.sum())
    thresholds, *sums = _sum_by_threshold(rows, weights)
    for name, values in zip(("exact", "f1"), sums, strict=True):
        best = int(values.argmax())
        metrics[f"best_{name}"] = float(100.0 * values[best] / weights.sum())
        if counts is None:
            metrics[f"best_{name}_thresh"] = float(thresholds[best])
    return metrics


def _sum_by_threshold(rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all thresholds, and the sums of exact match and F1 if larger odds mean "". *Shape:* (N + 1,) each

    As in the official script, the first threshold, at which every answer is "", is 0.0. Questions with equal odds
    count as separate thresholds, in their order.
    """
    odds, has_answer, _, _, *changes = rows.T
    order = np.argsort(odds, kind="stable")
    without_answer = ((1 - has_answer) * counts).sum()
    exact, f1 = (np.cumsum(np.append(without_answer, (each * counts)[order])) for each in changes)
    return np.append(0.0, odds[order]), exact, f1


def _average(values: np.ndarray, weights: np.ndarray) -> float:
    """Returns a weighted mean in percent, or NaN if no value counts. Adds one number after the other."""
    return float(100.0 * np.cumsum(values * weights)[-1] / (weights.sum() or np.nan))
