"""The metrics of GLUE and of your own data against formulas, scikit-learn and SciPy, and used through `evaluate`."""

import evaluate
import numpy as np
import pytest
import sklearn.metrics
from scipy.stats import rankdata

from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.metrics import TaskMetric

OWN = {"classification": {}, "multi_label": {"label_separator": ","}, "regression": {"do_regression": True}}


def metric(task: str, **kwargs) -> TaskMetric:
    return TaskMetric(TextClassification(**OWN.get(task, {"task_name": task})), **kwargs)


def compute(task: str, predictions, references) -> dict[str, float]:
    """Returns the metrics. The mean of two, `combined_score`, is checked and left out."""
    metrics = metric(task, keep_in_memory=True).compute(predictions=predictions, references=references)
    combined = metrics.pop("combined_score", None)
    mean = float(np.mean(list(metrics.values())))
    assert (combined == pytest.approx(mean, nan_ok=True)) if task in ("mrpc", "qqp", "stsb") else combined is None
    return metrics


def test_values_computed_by_hand():
    predictions, references = [1, 1, 1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0, 1, 1]
    # 3 true positives, 1 false positive, 2 false negatives, 2 true negatives
    assert compute("sst2", predictions, references) == {"accuracy": 5 / 8}
    assert compute("mrpc", predictions, references) == pytest.approx({"accuracy": 5 / 8, "f1": 6 / 9})
    matthews = (3 * 2 - 1 * 2) / np.sqrt(4 * 5 * 3 * 4)
    assert compute("cola", predictions, references) == pytest.approx({"matthews_correlation": matthews})
    # deviations -1, 0, 1 and -1, 1, 0: covariance 1, both variances 2; the same for the ranks
    assert compute("stsb", [1.0, 2.0, 3.0], [2.0, 4.0, 3.0]) == pytest.approx({"pearson": 0.5, "spearmanr": 0.5})
    assert compute("regression", [1.0, 2.0], [1.5, 4.0]) == pytest.approx({"mse": (0.25 + 4) / 2})


def test_random_labels_match_formulas_and_scikit_learn():
    random = np.random.default_rng(0)
    references = random.integers(0, 2, 1000)
    predictions = np.where(random.random(1000) < 0.7, references, 1 - references)
    both = ((predictions == 1) & (references == 1)).sum()
    for task in ("mrpc", "qqp"):
        metrics = compute(task, predictions, references)
        assert metrics["accuracy"] == pytest.approx((predictions == references).mean(), abs=1e-12)
        assert metrics["f1"] == pytest.approx(2 * both / (predictions.sum() + references.sum()), abs=1e-12)
        assert metrics["f1"] == sklearn.metrics.f1_score(references, predictions)
        assert metrics["accuracy"] == sklearn.metrics.accuracy_score(references, predictions)
    # The Matthews correlation is the correlation of the two 0/1 variables.
    expected = np.corrcoef(predictions, references)[0, 1]
    assert compute("cola", predictions, references)["matthews_correlation"] == pytest.approx(expected, abs=1e-12)
    for task in ("rte", "sst2", "qnli", "wnli", "mnli", "classification"):
        assert compute(task, predictions, references) == {"accuracy": (predictions == references).mean()}


def test_matthews_correlation_of_three_classes():
    # Gorodkin (2004): c of s predictions are correct, and t and p count the labels and predictions of each class:
    # (c s - t p) / sqrt((s^2 - p p) (s^2 - t t)), where t p is the dot product over the classes.
    references, predictions = [0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 1, 1, 2, 2, 2, 0]
    c, s, tp, pp, tt = 5, 8, 3 * 3 + 2 * 2 + 3 * 3, 3 * 3 + 2 * 2 + 3 * 3, 3 * 3 + 2 * 2 + 3 * 3
    expected = (c * s - tp) / np.sqrt((s**2 - pp) * (s**2 - tt))
    assert compute("cola", predictions, references) == pytest.approx({"matthews_correlation": expected})


def test_multiple_labels():
    references = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]])
    predictions = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]])
    # By label: 2 of 2 found; 1 of 2 found; 0 of 1 found and 1 false positive. In total 3 found, 2 missed, 1 false.
    f1 = [1, 2 / 3, 0]
    assert compute("multi_label", predictions, references) == pytest.approx(
        {"micro_f1": 6 / 9, "macro_f1": sum(f1) / 3, "subset_accuracy": 2 / 4}
    )
    random = np.random.default_rng(0)
    references, noise = random.integers(0, 2, (2, 500, 7))
    predictions = np.where(random.random((500, 7)) < 0.8, references, noise)
    found = (predictions & references).sum(axis=0)
    both = predictions.sum(axis=0) + references.sum(axis=0)
    assert compute("multi_label", predictions, references) == pytest.approx(
        {
            "micro_f1": 2 * found.sum() / both.sum(),
            "macro_f1": (2 * found / both).mean(),
            "subset_accuracy": (predictions == references).all(axis=1).mean(),
        }
    )


def test_random_numbers_match_formulas():
    random = np.random.default_rng(0)
    references = random.integers(0, 11, 500) / 2  # with ties, as in STS-B
    predictions = references + random.normal(size=500)
    metrics = compute("stsb", predictions, references)
    assert metrics["pearson"] == pytest.approx(np.corrcoef(predictions, references)[0, 1], abs=1e-12)
    ranks = np.corrcoef(rankdata(predictions), rankdata(references))[0, 1]
    assert metrics["spearmanr"] == pytest.approx(ranks, abs=1e-12)
    assert compute("regression", predictions, references)["mse"] == pytest.approx(
        ((predictions - references) ** 2).mean(), abs=1e-12
    )


@pytest.mark.filterwarnings("error")
def test_constant_predictions():
    assert compute("cola", [1, 1, 1], [1, 0, 1]) == {"matthews_correlation": 0.0}
    assert compute("mrpc", [0, 0, 0], [1, 0, 1]) == pytest.approx({"accuracy": 1 / 3, "f1": 0.0})
    assert all(np.isnan(value) for value in compute("stsb", [2.5, 2.5, 2.5], [1.0, 2.0, 3.0]).values())


def test_evaluate_adds_batches_and_combines_metrics(tmp_path):
    random = np.random.default_rng(1)
    predictions, references = random.integers(0, 2, (2, 90))
    batches = metric("mrpc", cache_dir=str(tmp_path))  # on disk, evaluate's default
    for i in range(0, 90, 32):
        batches.add_batch(predictions=predictions[i : i + 32], references=references[i : i + 32])
    at_once = compute("mrpc", predictions, references)
    assert batches.compute().items() >= at_once.items()
    combined = evaluate.combine([metric("qqp", keep_in_memory=True), metric("cola", keep_in_memory=True)])
    metrics = combined.compute(predictions=predictions, references=references)
    del metrics["combined_score"]
    assert metrics == {**at_once, **compute("cola", predictions, references)}


def test_unknown_task():
    with pytest.raises(InputError, match=r"--task_name: .*imdb"):
        metric("imdb")
