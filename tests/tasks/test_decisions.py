"""Thresholds, temperatures and calibration errors, next to brute force, scikit-learn and SciPy."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn import metrics
from sklearn.metrics import f1_score, log_loss

from snugbert.tasks.classification import TextClassification
from snugbert.tasks.decisions import (
    Decisions,
    Rule,
    TextAnswers,
    choose_decisions,
    choose_threshold,
    compute_confidence,
    compute_probabilities,
    decide,
    fit_temperature,
)


def draw(examples: int, labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns probabilities, some of them equal, and correct labels that depend on them."""
    generator = np.random.default_rng(seed)
    probabilities = generator.random((examples, labels)).round(1)
    return probabilities, generator.random((examples, labels)) < probabilities * 0.6


def list_cuts(column: np.ndarray) -> list[float]:
    """Returns a threshold for each way to divide a label's probabilities."""
    values = np.unique(column)
    return [0.0, *(values[1:] + values[:-1]) / 2, *([(values[-1] + 1) / 2] if values[-1] < 1 else [])]


@pytest.mark.parametrize(("metric", "score"), [("f1", f1_score), ("accuracy", metrics.accuracy_score)])
def test_thresholds_are_the_best_of_all(metric, score):
    for seed in range(3):
        probabilities, correct = (values[:, 0] for values in draw(40, 1, seed))
        reached = score(correct, probabilities >= choose_threshold(probabilities, correct, metric))
        cuts = list_cuts(probabilities)
        assert reached == pytest.approx(max(score(correct, probabilities >= cut) for cut in cuts))


def test_undecided_rules_stay_as_they_are():
    """The threshold of a label that never occurs, and the temperature of decisions that are all correct."""
    assert choose_threshold(draw(40, 1, 0)[0][:, 0], np.zeros(40, bool), "macro_f1") == 0.5
    references = np.arange(30) % 3
    for margin in (0.1, 1, 30):
        assert fit_temperature(margin * np.eye(3)[references], references) == 1


def make_logits(several: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns overconfident logits of three labels, and correct labels."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(400, 3))
    probabilities = compute_probabilities(logits, several)
    if several:
        return 2.5 * logits, (generator.random((400, 3)) < probabilities).astype(np.int64)
    return 2.5 * logits, np.array([generator.choice(3, p=row) for row in probabilities])


@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_minimizes_the_log_likelihood(several):
    logits, references = make_logits(several)

    def loss(temperature):
        probabilities = compute_probabilities(logits / temperature, several)
        return log_loss(references.ravel(), probabilities.ravel()) if several else log_loss(references, probabilities)

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-7}).x
    assert fit_temperature(logits.astype(np.float32), references) == pytest.approx(best, abs=1e-5)
    assert 2 < best < 3


def test_the_calibration_error_is_that_of_guo_et_al():
    """Equation 3: bins ((m - 1) / M, m / M]."""
    generator = np.random.default_rng(0)
    confidences = np.append(generator.random(200), [1 / 15, 2 / 15, 1.0])
    correct = generator.random(203) < confidences**2
    expected = 0.0
    for number in range(1, 16):
        inside = ((number - 1) / 15 < confidences) & (confidences <= number / 15)
        if inside.any():
            expected += inside.sum() / 203 * abs(correct[inside].mean() - confidences[inside].mean())
    answers = TextAnswers(np.ones((203, 1)), confidences[:, None])
    facts = Decisions(Rule(1.0, {}), correct[:, None].astype(np.int64), answers, answers).describe_calibration()
    assert facts["ece_before"] == pytest.approx(expected)


@pytest.mark.parametrize("several", [False, True])
def test_each_example_is_decided_without_its_label(several):
    logits, references = make_logits(several)
    if not several:
        logits, references = logits[:, :2], references.clip(0, 1)
    arguments = (True, "macro_f1" if several else "f1")
    decisions = choose_decisions(logits, references, *arguments)
    changed = references.copy()
    changed[7] = 1 - changed[7]
    again = choose_decisions(logits, changed, *arguments)
    assert (again.fitted.values[7] == decisions.fitted.values[7]).all()
    assert again.rule != decisions.rule
    # The stored rule is chosen on all examples: first the temperature, then thresholds for calibrated probabilities.
    temperature, thresholds = decisions.rule
    assert temperature == fit_temperature(logits, references)
    correct = references == 1 if several else (references == 1)[:, None]
    probabilities = compute_probabilities(logits / temperature, several)[:, list(thresholds)]
    columns = zip(probabilities.T, correct.T, strict=True)
    assert list(thresholds.values()) == [choose_threshold(*column, arguments[1]) for column in columns]
    assert (decisions.fitted.values == decide(logits / temperature, several, thresholds).values).mean() > 0.9


@pytest.mark.parametrize("several", [False, True])
def test_a_calibrated_confidence_is_the_accuracy(several):
    logits, references = make_logits(several)
    decisions = choose_decisions(logits, references, calibrate=True, metric=None)
    facts = decisions.describe_calibration()
    assert facts["ece_after"] < facts["ece_before"] / 2
    confidence = compute_confidence(decisions.fitted)
    correct = (decisions.fitted.values == references).reshape(len(references), -1).all(axis=1)
    assert abs(confidence.mean() - correct.mean()) < 0.05


@pytest.mark.parametrize("several", [False, True])
def test_the_scores_of_labels_equal_scikit_learns(several):
    generator = np.random.default_rng(0)
    task = TextClassification(label_separator="," if several else None)
    task.labels = list("abcd")
    if several:
        references, predicted = (generator.random((2, 80, 4)) < [0.6, 0.1, 0.3, 0.02]).astype(np.int64)
    else:
        references, predicted = generator.choice(4, size=(2, 80), p=[0.7, 0.2, 0.1, 0])  # no example of the last label
        predicted[predicted == 2] = 0
    scores = task.score_labels(*task.pair(references, predicted))
    options = {"labels": range(4), "zero_division": np.nan}
    expected = metrics.precision_recall_fscore_support(references, predicted, **options)
    for name, values in zip(("precision", "recall", "f1", "number"), expected, strict=True):
        np.testing.assert_allclose([row[name] for row in scores["labels"]], values)
    macro = f1_score(references, predicted, average="macro", zero_division=0)
    assert scores["averages"]["macro_f1"] == pytest.approx(macro)
    if not several:
        accuracy = metrics.balanced_accuracy_score(references, predicted)
        assert scores["averages"]["balanced_accuracy"] == pytest.approx(accuracy)
    for row in scores["labels"][:2]:
        low, high = row["intervals"]["f1"]
        assert low < row["f1"] < high
    even = np.eye(4, dtype=np.int64) if several else np.arange(4)
    assert task.score_labels(*task.pair(even, even)) is None
