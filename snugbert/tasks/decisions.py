"""Decisions of classifiers: a temperature for their probabilities, and thresholds for a metric.

Both are chosen on validation examples, so scores on the same examples would be too high. Therefore the scores are
cross-fitted: each example is decided with a temperature and thresholds that were chosen on the other folds.

Shapes: N examples, C labels. References are label ids (N,), or 1 and 0 for several labels per example (N, C).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

FOLDS = 5  # folds of cross-fitting
BINS = 15  # bins of the calibration error, as in Guo et al. (2017)
# Bounds of the temperature, wider than any useful model needs. The logits of a barely trained model are small.
COLDEST, HOTTEST = 0.01, 20.0


class TextAnswers(NamedTuple):
    """The answers to all examples of a split.

    Values for regression: numbers, *shape* (N,), or (N, C) with several outputs. For one label per example: label ids,
    *shape* (N,). For several labels: 1 for labels with a probability above 0.5, else 0, *shape* (N, C). If the model
    stores `thresholds`, it predicts the labels that reach them.
    """

    values: np.ndarray
    probabilities: np.ndarray | None = None  # probability of each label, (N, C). None: regression


class Rule(NamedTuple):
    """How logits become decisions.

    With one label per example, only the positive of two labels has a threshold. Without thresholds, the most probable
    label is predicted, or, with several labels per example, all labels with a probability above 0.5.
    """

    temperature: float  # the divisor of the logits
    thresholds: dict[int, float]  # label id, ascending -> lowest probability at which the label is predicted


class Decisions(NamedTuple):
    """The rule chosen on validation examples, and its effect on these examples."""

    rule: Rule  # chosen on all examples
    references: np.ndarray
    plain: TextAnswers  # answers without temperature and thresholds
    fitted: TextAnswers  # cross-fitted

    def describe_calibration(self) -> dict[str, float]:
        """Returns the entry `calibration` of a config.json.

        The weights already contain the temperature, so it must not be applied again. The other values are the
        calibration errors `ece_before` and `ece_after` (cross-fitted).
        """
        facts = {"temperature": self.rule.temperature}
        for name, answers in (("ece_before", self.plain), ("ece_after", self.fitted)):
            means, shares, numbers = self.list_bins(answers)
            facts[name] = float(numbers @ abs(means - shares) / numbers.sum())  # Guo et al. (2017), equation 3
        return facts

    def list_bins(self, answers: TextAnswers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns mean probability, share of events that occurred, and number of events, of each non-empty bin.

        With one label per example, the event is that the most probable label is correct, as in Guo et al. (2017). With
        several labels, each label has an event: that it is correct.
        """
        probabilities, references = answers.probabilities, self.references
        assert probabilities is not None
        if references.ndim == 2:
            confidences, occurred = probabilities.reshape(-1), references.reshape(-1) == 1
        else:
            confidences, occurred = probabilities.max(axis=1), probabilities.argmax(axis=1) == references
        bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidences)
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
    """Returns the decisions and their probabilities. For the thresholds see [`Rule`]. `logits`: *Shape:* (N, C)"""
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

    Without `calibrate`, the temperature is 1. Thresholds are chosen for `metric`, on calibrated probabilities. None:
    no thresholds. `positive`: id of the positive label, with one label per example.
    """
    several = references.ndim == 2
    labels = range(logits.shape[1]) if several else [positive]
    correct = references == 1 if several else references[:, None] == np.arange(logits.shape[1])

    def choose(examples: Any) -> Rule:
        temperature = fit_temperature(logits[examples], references[examples]) if calibrate else 1.0
        if metric is None:
            return Rule(temperature, {})
        columns = compute_probabilities(logits[examples] / temperature, several).T
        return Rule(temperature, {i: choose_threshold(columns[i], correct[examples, i], metric) for i in labels})

    logits = logits.astype(np.float64)
    plain = decide(logits, several, {})
    assert plain.probabilities is not None
    values, probabilities = np.empty_like(plain.values), np.empty_like(plain.probabilities)
    folds = assign_folds(references)
    for fold in range(FOLDS):
        examples = folds == fold
        temperature, thresholds = choose(~examples)
        values[examples], probabilities[examples] = decide(logits[examples] / temperature, several, thresholds)
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

    If every decision is correct, the loss has no minimum. Then the result is 1.
    """
    logits = logits.astype(np.float64)
    several = references.ndim == 2
    if (decide(logits, several, {}).values == references).all():
        return 1.0

    def loss(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        if several:
            return float(np.logaddexp(0, np.where(references == 1, -scaled, scaled)).mean())
        return -float(np.take_along_axis(log_softmax(scaled, axis=1), references[:, None], axis=1).mean())

    bounds = np.log((COLDEST, HOTTEST))
    return float(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x))


def choose_threshold(probabilities: np.ndarray, correct: np.ndarray, metric: str) -> float:
    """Returns the threshold of a label with the highest F1 or accuracy. Ties go to the threshold nearest to 0.5.

    All midpoints of neighboring probabilities are tried, and 0.5. The mean F1 is highest if each label has its highest
    F1. `correct`: whether the label is correct. `metric`: "f1", "macro_f1" or "accuracy". *Shape:* (N,), (N,)
    """
    values = np.unique([0.0, *probabilities, 1.0])
    thresholds = np.append((values[1:] + values[:-1]) / 2, 0.5)
    # How many examples the label is predicted for, and how many of these are correct.
    predicted, hits = (
        len(each) - np.searchsorted(np.sort(each), thresholds) for each in (probabilities, probabilities[correct])
    )
    scores = 2 * hits - predicted if metric == "accuracy" else 2 * hits / np.maximum(predicted + correct.sum(), 1)
    best = thresholds[scores == scores.max()]
    return float(best[abs(best - 0.5).argmin()])
