"""Decisions of classifiers: a temperature for their probabilities, and thresholds for a metric.

Both are chosen on validation examples, so scores on the same examples would be too high. Therefore the scores are
cross-fitted: each example is decided with a temperature and thresholds that were chosen on the other folds.

Shapes: N examples, C labels. References are label ids (N,), or 1 and 0 for several labels per example (N, C).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, softmax

FOLDS = 5  # folds of cross-fitting
BINS = 15  # bins of the calibration error, as in Guo et al. (2017)
# Bounds of the temperature, wider than any useful model needs. The logits of a barely trained model are small.
COLDEST, HOTTEST = 0.01, 20.0
ROUNDING = 1e-12  # rounding error of a mean over examples. A single wrong decision adds far more


class TextAnswers(NamedTuple):
    """The answers to all examples of a split.

    Attributes:
        values: regression: the number, *shape* (N,), or (N, C) if the model predicts several. One label: its id,
            *shape* (N,). Several labels: 1 for labels with a probability above 0.5, else 0, *shape* (N, C). A model
            that stores `thresholds` predicts the labels that reach them.
        probabilities: the probability of each label. None: regression. *Shape:* (N, C)
    """

    values: np.ndarray
    probabilities: np.ndarray | None = None


class Rule(NamedTuple):
    """How logits become decisions.

    Attributes:
        temperature: the divisor of the logits.
        thresholds: label id, in ascending order -> lowest probability at which the label is predicted. With one label
            per example, only the positive of two labels has a threshold. Without thresholds, the most probable label
            is predicted, or, with several labels per example, all labels with a probability above 0.5.
    """

    temperature: float
    thresholds: dict[int, float]


class Decisions(NamedTuple):
    """The rule chosen on validation examples, and its effect on these examples.

    Attributes:
        rule: the rule chosen on all validation examples.
        plain: the answers without temperature and thresholds.
        fitted: the cross-fitted answers.
    """

    rule: Rule
    references: np.ndarray
    plain: TextAnswers
    fitted: TextAnswers

    def describe_calibration(self) -> dict[str, Any]:
        """Returns the entry `calibration` of a config.json.

        The weights already contain the temperature, so it must not be applied again.

        Returns:
            `temperature`; the calibration errors `ece_before` and `ece_after` (cross-fitted); `examples` and
            `correct`, see [`count_by_confidence`].
        """
        before, after = (compute_calibration_error(*self.list_confidences(each)) for each in (self.plain, self.fitted))
        counts = count_by_confidence(compute_confidence(self.fitted), self.fitted.values == self.references)
        return {"temperature": self.rule.temperature, "ece_before": before, "ece_after": after, **counts}

    def list_confidences(self, answers: TextAnswers) -> tuple[np.ndarray, np.ndarray]:
        """Returns probabilities, and whether each event occurred.

        One label per example: the probability of the most probable label, as in Guo et al. (2017), *shape* (N,).
        Several: the probability of every label, *shape* (N * C,).
        """
        probabilities, references = answers.probabilities, self.references
        assert probabilities is not None
        if references.ndim == 2:
            return probabilities.reshape(-1), references.reshape(-1) == 1
        return probabilities.max(axis=1), probabilities.argmax(axis=1) == references

    def list_bins(self, answers: TextAnswers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns mean probability, share of events that occurred, and number of events, of each non-empty bin."""
        confidences, occurred = self.list_confidences(answers)
        bins = assign_bins(confidences)
        numbers = np.bincount(bins)
        sums = np.bincount(bins, confidences), np.bincount(bins, occurred)
        filled = numbers > 0
        means, shares = (each[filled] / numbers[filled] for each in sums)
        return means, shares, numbers[filled]


# --- applying a rule --------------------------------------------------------------------------------------------


def compute_probabilities(logits: np.ndarray, several_labels: bool) -> np.ndarray:
    """Returns probabilities in float64. In float32, different logits can give equal probabilities. *Shape:* (N, C)"""
    exact = logits.astype(np.float64)
    return expit(exact) if several_labels else softmax(exact, axis=-1)


def decide(logits: np.ndarray, several_labels: bool, thresholds: Mapping[int, float]) -> TextAnswers:
    """Returns the decisions and their probabilities.

    Args:
        logits: *Shape:* (N, C)
        several_labels: whether an example can have several labels.
        thresholds: see [`Rule`].
    """
    probabilities = compute_probabilities(logits, several_labels)
    if several_labels:
        chosen = probabilities >= list(thresholds.values()) if thresholds else logits > 0
        return TextAnswers(chosen.astype(np.int64), probabilities)
    if not thresholds:
        return TextAnswers(logits.argmax(axis=-1), probabilities)
    ((positive, least),) = thresholds.items()
    return TextAnswers(np.where(probabilities[:, positive] >= least, positive, 1 - positive), probabilities)


def compute_confidence(answers: TextAnswers) -> np.ndarray:
    """Returns the probability that a decision is correct: the probability of the predicted label.

    With several labels per example, it is the product of the probabilities that each label is decided correctly. (N,)
    """
    values, probabilities = answers
    assert probabilities is not None
    if values.ndim == 2:
        return np.where(values == 1, probabilities, 1 - probabilities).prod(axis=1)
    return np.take_along_axis(probabilities, values[:, None], axis=1)[:, 0]


# --- choosing a rule --------------------------------------------------------------------------------------------


def choose_decisions(
    logits: np.ndarray, references: np.ndarray, calibrate: bool, metric: str | None, positive: int = 1
) -> Decisions:
    """Chooses a rule on all examples, and decides the examples of each fold with a rule chosen on the other folds.

    Args:
        logits: *Shape:* (N, C)
        calibrate: whether to choose a temperature. If not, the temperature is 1.
        metric: the metric to choose thresholds for, on calibrated probabilities. None: no thresholds.
        positive: id of the positive label, with one label per example.
    """
    several = references.ndim == 2

    def choose(examples: Any) -> Rule:
        temperature = fit_temperature(logits[examples], references[examples]) if calibrate else 1.0
        if metric is None:
            return Rule(temperature, {})
        probabilities = compute_probabilities(logits[examples] / temperature, several)
        ids = list(range(logits.shape[1])) if several else [positive]
        correct = references[examples] == 1 if several else (references[examples] == positive)[:, None]
        columns = zip(ids, probabilities[:, ids].T, correct.T, strict=True)
        return Rule(temperature, {label: choose_threshold(column, gold, metric) for label, column, gold in columns})

    logits = logits.astype(np.float64)
    plain = decide(logits, several, {})
    assert plain.probabilities is not None
    values, probabilities = np.empty_like(plain.values), np.empty_like(plain.probabilities)
    folds = assign_folds(references)
    for fold in range(FOLDS):
        examples = folds == fold
        temperature, thresholds = choose(~examples)
        answers = decide(logits[examples] / temperature, several, thresholds)
        values[examples], probabilities[examples] = answers
    return Decisions(choose(slice(None)), references, plain, TextAnswers(values, probabilities))


def assign_folds(references: np.ndarray) -> np.ndarray:
    """Returns the fold of each example. Each label, or set of labels, is spread evenly over the folds. (N,)"""
    _, groups = np.unique(references, axis=0, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(references))
    order = order[np.argsort(groups.reshape(-1)[order], kind="stable")]
    folds = np.empty(len(references), dtype=np.int64)
    folds[order] = np.arange(len(references)) % FOLDS
    return folds


def fit_temperature(logits: np.ndarray, references: np.ndarray) -> float:
    """Returns the temperature with the lowest negative log-likelihood: Guo et al. (2017), section 4.2.

    The loss is convex in 1 / temperature, so its minimum is the only root of the derivative. If every decision is
    correct, the loss still falls at `COLDEST` and has no minimum. Then the result is 1.

    `logits`: *Shape:* (N, C)
    """
    logits = logits.astype(np.float64)

    def slope(inverse: float) -> float:
        probabilities = compute_probabilities(inverse * logits, references.ndim == 2)
        if references.ndim == 2:
            return float(((probabilities - references) * logits).mean())
        expected = (probabilities * logits).sum(axis=1)
        return float((expected - np.take_along_axis(logits, references[:, None], axis=1)[:, 0]).mean())

    if slope(1 / COLDEST) < ROUNDING:
        return 1.0
    if slope(1 / HOTTEST) >= 0:
        return HOTTEST
    return 1 / brentq(slope, 1 / HOTTEST, 1 / COLDEST, xtol=1e-12)


def choose_threshold(probabilities: np.ndarray, correct: np.ndarray, metric: str) -> float:
    """Returns the threshold of a label with the highest F1 or accuracy. Ties go to the threshold nearest to 0.5.

    A threshold is the midpoint of two adjacent probabilities, or 0.5 if 0.5 lies between the two. All are tried.

    Args:
        probabilities: of the label. *Shape:* (N,)
        correct: whether the label is correct. *Shape:* (N,)
        metric: "f1", "macro_f1" (the mean over labels is highest if the F1 of each label is) or "accuracy".
    """
    order = np.argsort(-probabilities, kind="stable")
    descending, hits = probabilities[order], np.append(0, np.cumsum(correct[order]))
    predicted = np.arange(len(hits))  # the label is predicted for the first 0, 1, ..., N examples
    if metric == "accuracy":
        scores = 2 * hits - predicted
    else:
        scores = 2 * hits / np.maximum(predicted + correct.sum(), 1)
    above, below = np.append(1.0, descending), np.append(descending, 0.0)  # last predicted, first not predicted
    middle = (above + below) / 2
    thresholds = np.where((below < 0.5) & (above >= 0.5), 0.5, np.where(middle > below, middle, above))
    possible = np.flatnonzero(below < above)  # equal probabilities are decided together
    best = possible[scores[possible] == scores[possible].max()]
    return float(thresholds[best[np.argmin(abs(thresholds[best] - 0.5))]])


# --- calibration ------------------------------------------------------------------------------------------------


def assign_bins(confidences: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Returns the bin of each probability. Bin i of n goes from i / n, exclusive, to (i + 1) / n. *Shape:* (N,)"""
    return np.clip(np.ceil(confidences * bins) - 1, 0, bins - 1).astype(np.int64)


def compute_calibration_error(confidences: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """Computes the expected calibration error: Guo et al. (2017), equation 3. (N,), (N,)"""
    gaps = np.bincount(assign_bins(confidences, bins), correct - confidences)
    return float(abs(gaps).sum() / len(confidences))


def count_by_confidence(confidences: np.ndarray, correct: np.ndarray) -> dict[str, str]:
    """Counts decisions by hundredths of their confidence, from 0.00 to 0.99, as text of 100 numbers.

    Args:
        confidences: from [`compute_confidence`]. *Shape:* (N,)
        correct: whether each label is correct. *Shape:* (N,) or (N, C)

    Returns:
        `examples` and `correct`. An example is correct if all its labels are.
    """
    hundredths = np.minimum((confidences * 100).astype(np.int64), 99)
    weights = {"examples": np.ones(len(confidences)), "correct": correct.reshape(len(correct), -1).all(axis=1)}
    counts = {name: np.bincount(hundredths, weight, 100).astype(np.int64) for name, weight in weights.items()}
    return {name: " ".join(map(str, count)) for name, count in counts.items()}


def read_coverage(calibration: Mapping[str, str], least: float) -> tuple[float, float]:
    """Returns the share of validation examples with at least this confidence, and the accuracy on these examples.

    Args:
        calibration: see [`Decisions.describe_calibration`].
        least: the confidence, which is rounded up to hundredths.
    """
    first = int(np.ceil(round(100 * least, 6)))
    examples, correct = ([int(count) for count in calibration[name].split()] for name in ("examples", "correct"))
    kept = sum(examples[first:])
    return kept / sum(examples), sum(correct[first:]) / kept if kept else float("nan")
