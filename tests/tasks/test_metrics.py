"""The metrics of GLUE and of your own data against formulas, scikit-learn and SciPy, and used through `evaluate`."""

import evaluate
import numpy as np
import pytest
import sklearn.metrics
from scipy.stats import pearsonr, spearmanr

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


def test_labels_equal_scikit_learn():
    random = np.random.default_rng(0)
    for classes in (2, 3):
        references = random.integers(0, classes, 1000)
        predictions = np.where(random.random(1000) < 0.7, references, random.integers(0, classes, 1000))
        accuracy = sklearn.metrics.accuracy_score(references, predictions)
        for task in ("rte", "sst2", "qnli", "wnli", "mnli", "classification"):
            assert compute(task, predictions, references) == {"accuracy": accuracy}
        expected = pytest.approx(sklearn.metrics.matthews_corrcoef(references, predictions), abs=1e-12)
        assert compute("cola", predictions, references) == {"matthews_correlation": expected}
        f1 = sklearn.metrics.f1_score(references == 1, predictions == 1)
        for task in ("mrpc", "qqp"):
            assert compute(task, predictions, references) == {"accuracy": accuracy, "f1": f1}


def test_several_labels_equal_scikit_learn():
    random = np.random.default_rng(0)
    references, noise = random.integers(0, 2, (2, 500, 7))
    predictions = np.where(random.random((500, 7)) < 0.8, references, noise)
    references[:, 0] = predictions[:, 0] = 0  # a label that never occurs
    expected = {
        f"{mean}_f1": sklearn.metrics.f1_score(references, predictions, average=mean, zero_division=0)
        for mean in ("micro", "macro")
    }
    expected["subset_accuracy"] = sklearn.metrics.accuracy_score(references, predictions)
    assert compute("multi_label", predictions, references) == pytest.approx(expected)


def test_numbers_equal_scipy():
    random = np.random.default_rng(0)
    references = random.integers(0, 11, 500) / 2  # with ties, as in STS-B
    predictions = references + random.normal(size=500)
    expected = {
        "pearson": pearsonr(predictions, references).statistic,
        "spearmanr": spearmanr(predictions, references).statistic,
    }
    assert compute("stsb", predictions, references) == pytest.approx(expected, abs=1e-12)
    error = sklearn.metrics.mean_squared_error(references, predictions)
    assert compute("regression", predictions, references)["mse"] == pytest.approx(error, abs=1e-12)


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
