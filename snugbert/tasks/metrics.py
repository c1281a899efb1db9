"""Metrics of classes, label sets and numbers, from counts of examples; and every task's metrics for `evaluate`.

`evaluate.load("glue", "mrpc")` downloads a script from the Hub and runs it. `TaskMetric(TextClassification(
task_name="mrpc"))` is the same metric, with the same names, without a download. Tests compare all metrics with
scikit-learn, SciPy, seqeval and the official scripts, which are too slow for resampling.

Shapes: `counts` (rows,) says how many examples have each row.
"""

import inspect
from typing import Any

import evaluate
import numpy as np
from datasets import Features

from snugbert.tasks.base import Task


class TaskMetric(evaluate.Metric):
    """The metrics of a task, as a metric of the library `evaluate`, which receives `kwargs`.

    Examples:
        >>> metric = TaskMetric(TextClassification(task_name="mrpc"))
        >>> metric.compute(predictions=[1, 1, 0], references=[1, 0, 0])["accuracy"]
        0.6666666666666666
    """

    def __init__(self, task: Task[Any, Any, Any], **kwargs: Any):
        self.task = task
        super().__init__(type(task).__name__, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        features = Features(self.task.metric_features())
        return evaluate.MetricInfo(str(inspect.getdoc(self.task)), citation="", features=features)

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        split, answers = self.task.pair(references, predictions)
        return self.task.score(split, self.task.measure(split, answers))


def score_classes(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes accuracy, F1 of label 1 and Matthews correlation, as scikit-learn does.

    `rows`: correct and predicted label ids. *Shape:* (rows, 2)
    """
    references, predictions = rows.T
    total, correct = counts.sum(), counts[references == predictions].sum()
    labels = rows.max() + 1
    correct_labels = np.bincount(references, counts, labels)
    predicted_labels = np.bincount(predictions, counts, labels)
    ones = counts[references == 1].sum() + counts[predictions == 1].sum()
    # Gorodkin (2004). The result is 0 if all correct labels, or all predicted labels, are the same.
    variance = (total**2 - (correct_labels**2).sum()) * (total**2 - (predicted_labels**2).sum())
    covariance = correct * total - (correct_labels * predicted_labels).sum()
    return {
        "accuracy": float(correct / total),
        "f1": float(2 * counts[(references == 1) & (predictions == 1)].sum() / ones) if ones else 0.0,
        "matthews_correlation": float(covariance / np.sqrt(variance)) if variance else 0.0,
    }


def score_label_sets(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes micro F1, macro F1 and subset accuracy of examples with several labels, as scikit-learn does.

    `rows`: 1 or 0 for each label: first whether it is correct, then whether it is predicted. *Shape:* (rows, 2 x
    labels)
    """
    references, predictions = np.split(rows, 2, axis=1)
    both, either = counts @ (references & predictions), counts @ (references + predictions)
    return {
        "micro_f1": float(2 * both.sum() / either.sum()) if either.sum() else 0.0,
        "macro_f1": float(np.mean(2 * both / np.maximum(either, 1))),
        "subset_accuracy": float(counts @ (references == predictions).all(axis=1) / counts.sum()),
    }


def score_labels(rows: np.ndarray, counts: np.ndarray, labels: int | None = None) -> dict[str, float]:
    """Computes precision, recall and F1 of each label, and averages, as scikit-learn does.

    If examples have one label, macro F1 averages the labels in references or predictions. If examples have several, it
    averages all labels. Balanced accuracy is the mean recall of the labels in the references. Precision is NaN if a
    label is not predicted, recall if it is not in the references, and F1 if both are true.

    `labels`: number of labels, if each example has one label. If given, `rows` are as in [`score_classes`], otherwise
    as in [`score_label_sets`].
    """
    references, predictions = np.split(rows, 2, axis=1)
    if labels is None:
        both, actual, predicted = (counts @ part for part in (references & predictions, references, predictions))
    else:
        sides = (*np.where(references == predictions, references, labels).T, references[:, 0], predictions[:, 0])
        both, actual, predicted = (np.bincount(side, counts, labels + 1)[:labels] for side in sides)
    with np.errstate(invalid="ignore"):
        scores = {"precision": both / predicted, "recall": both / actual, "f1": 2 * both / (actual + predicted)}
    f1 = scores["f1"] if labels else np.nan_to_num(scores["f1"])
    averages = {"macro_f1": f1[np.isfinite(f1)], "balanced_accuracy": scores["recall"][actual > 0]}
    result = {name: float(values.mean()) if len(values) else np.nan for name, values in averages.items()}
    return result | {f"{name}_{i}": float(value) for name, values in scores.items() for i, value in enumerate(values)}


def score_numbers(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes Pearson correlation, Spearman correlation and mean squared error, as SciPy and scikit-learn do.

    `rows`: correct and predicted number. *Shape:* (rows, 2)
    """
    references, predictions = rows[counts > 0].T
    counts = counts[counts > 0]
    return {
        "pearson": _correlation(references, predictions, counts),
        "spearmanr": _correlation(_rank(references, counts), _rank(predictions, counts), counts),
        "mse": float(counts @ np.square(references - predictions) / counts.sum()),
    }


def _correlation(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    x, y = (values - counts @ values / counts.sum() for values in (x, y))
    return float(counts @ (x * y) / np.sqrt((counts @ (x * x)) * (counts @ (y * y))))


def _rank(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the rank of each value, which occurs `counts` times. Equal values share their mean rank."""
    _, groups = np.unique(values, return_inverse=True)
    sizes = np.bincount(groups, counts)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[groups]
