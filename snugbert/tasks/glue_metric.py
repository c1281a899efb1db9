"""The official metrics of the GLUE tasks, computed by scikit-learn and SciPy.

`evaluate.load("glue", "mrpc")` downloads a script from the Hub and runs it. `GlueMetric("mrpc")` is the same metric,
with the same names, without a download.
"""

import warnings
from collections.abc import Callable
from typing import Any

import evaluate
import numpy as np
from datasets import Features, List, Value
from scipy.stats import ConstantInputWarning, pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_squared_error


def _accuracy(references: list[int], predictions: list[int]) -> dict[str, float]:
    return {"accuracy": float(accuracy_score(references, predictions))}


def _accuracy_and_f1(references: list[int], predictions: list[int]) -> dict[str, float]:
    f1 = f1_score(references, predictions, zero_division=0.0)
    return {**_accuracy(references, predictions), "f1": float(f1)}


def _matthews(references: list[int], predictions: list[int]) -> dict[str, float]:
    return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}


def _pearson_and_spearman(references: list[float], predictions: list[float]) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)  # NaN is returned instead
        pearson, spearman = pearsonr(predictions, references), spearmanr(predictions, references)
    return {"pearson": float(pearson.statistic), "spearmanr": float(spearman.statistic)}


def _squared_error(references: list[float], predictions: list[float]) -> dict[str, float]:
    return {"mse": float(mean_squared_error(references, predictions))}


def _multi_label(references: list[list[int]], predictions: list[list[int]]) -> dict[str, float]:
    return {
        "micro_f1": float(f1_score(references, predictions, average="micro", zero_division=0.0)),
        "macro_f1": float(f1_score(references, predictions, average="macro", zero_division=0.0)),
        "subset_accuracy": float(accuracy_score(references, predictions)),
    }


# Wang et al. (2018), "GLUE", table 1; "ax", the diagnostic set: section 4. The last three are for your own data.
SCORERS: dict[str, Callable[..., dict[str, float]]] = {
    "ax": _matthews,
    "cola": _matthews,
    "mnli": _accuracy,
    "mrpc": _accuracy_and_f1,
    "qnli": _accuracy,
    "qqp": _accuracy_and_f1,
    "rte": _accuracy,
    "sst2": _accuracy,
    "stsb": _pearson_and_spearman,
    "wnli": _accuracy,
    "classification": _accuracy,
    "multi_label": _multi_label,
    "regression": _squared_error,
}
REGRESSION_TASKS = ("stsb", "regression")

DESCRIPTION = """\
The metrics of a GLUE task, as fractions: accuracy (mnli, qnli, rte, sst2, wnli), accuracy and F1 of label 1 (mrpc,
qqp), Matthews correlation (cola, ax), Pearson and Spearman correlation (stsb).
Metrics of other data: accuracy (classification), mean squared error (regression), and micro F1, macro F1 and subset
accuracy (multi_label: an example can have any number of labels). Subset accuracy is the fraction of examples whose
labels are all correct."""

INPUTS = """
Args:
    predictions: label id (int) of each example, shape [N]; for stsb and regression a float. For multi_label, shape
        [N, labels]: 1 for each label of the example, 0 for the others.
    references: the correct values, with the same shape.

Returns:
    dict of float, depending on the task: accuracy, f1, matthews_correlation, pearson, spearmanr, mse, micro_f1,
    macro_f1, subset_accuracy. A correlation with a constant is undefined and returned as NaN, as in SciPy. The F1 of a
    label without references and predictions is 0.

Example:
    >>> GlueMetric("mrpc").compute(predictions=[1, 1, 0], references=[1, 0, 0])["accuracy"]
    0.6666666666666666
"""

CITATION = """\
@inproceedings{wang2019glue,
  title={{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author={Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel R.},
  booktitle={International Conference on Learning Representations},
  year={2019}
}"""


class GlueMetric(evaluate.Metric):
    """The metrics of a GLUE task, or of a classification or regression on your own data.

    Args:
        config_name: `"ax"`, `"cola"`, `"mnli"`, `"mrpc"`, `"qnli"`, `"qqp"`, `"rte"`, `"sst2"`, `"stsb"`, `"wnli"`,
            `"classification"` (default), `"multi_label"` or `"regression"`.
        kwargs: passed on to `evaluate.Metric`.

    Raises:
        ValueError: `config_name` is unknown.
    """

    def __init__(self, config_name: str = "classification", **kwargs: Any):
        if config_name not in SCORERS:
            raise ValueError(f"GlueMetric: unknown task {config_name!r}. Choose one of {', '.join(SCORERS)}.")
        super().__init__(config_name, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        value = Value("float64" if self.config_name in REGRESSION_TASKS else "int64")
        value = List(value) if self.config_name == "multi_label" else value
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=Features({"predictions": value, "references": value}),
            reference_urls=["https://gluebenchmark.com"],
        )

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return SCORERS[self.config_name](references, predictions)


# --- resampled examples -----------------------------------------------------------------------------------------

# The same metrics for [`bootstrap`]: from the distinct rows, and from how often each was drawn.


def score_drawn_classes(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes accuracy, F1 of label 1 and Matthews correlation, as scikit-learn does.

    Args:
        rows: correct and predicted label ids. *Shape:* (rows, 2)
        counts: number of examples with each row. *Shape:* (rows,)
    """
    references, predictions = rows.T
    total, correct = counts.sum(), counts[references == predictions].sum()
    labels = rows.max() + 1
    correct_labels = np.bincount(references, counts, labels)
    predicted_labels = np.bincount(predictions, counts, labels)
    ones = counts[references == 1].sum() + counts[predictions == 1].sum()
    # Gorodkin (2004); 0 if all correct or all predicted labels are the same.
    variance = (total**2 - (correct_labels**2).sum()) * (total**2 - (predicted_labels**2).sum())
    covariance = correct * total - (correct_labels * predicted_labels).sum()
    return {
        "accuracy": correct / total,
        "f1": 2 * counts[(references == 1) & (predictions == 1)].sum() / ones if ones else 0.0,
        "matthews_correlation": covariance / np.sqrt(variance) if variance else 0.0,
    }


def score_drawn_label_sets(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes micro F1, macro F1 and subset accuracy of examples with several labels, as scikit-learn does.

    Args:
        rows: for each label 1 or 0: first whether it is correct, then whether it is predicted. *Shape:* (rows, 2 x
            labels)
        counts: number of examples with each row. *Shape:* (rows,)
    """
    references, predictions = np.split(rows, 2, axis=1)
    both, either = counts @ (references & predictions), counts @ (references + predictions)
    return {
        "micro_f1": 2 * both.sum() / either.sum() if either.sum() else 0.0,
        "macro_f1": float(np.mean(2 * both / np.maximum(either, 1))),
        "subset_accuracy": counts @ (references == predictions).all(axis=1) / counts.sum(),
    }


def score_drawn_numbers(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Computes Pearson correlation, Spearman correlation and mean squared error, as SciPy and scikit-learn do.

    Args:
        rows: correct and predicted number. *Shape:* (rows, 2)
        counts: number of examples with each row. *Shape:* (rows,)
    """
    references, predictions = rows[counts > 0].T
    counts = counts[counts > 0]
    return {
        "pearson": _correlation(references, predictions, counts),
        "spearmanr": _correlation(_rank(references, counts), _rank(predictions, counts), counts),
        "mse": counts @ np.square(references - predictions) / counts.sum(),
    }


def _correlation(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    x, y = (values - counts @ values / counts.sum() for values in (x, y))
    return counts @ (x * y) / np.sqrt((counts @ (x * x)) * (counts @ (y * y)))


def _rank(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the rank of each value if it occurs as often as `counts` says. Equal values share their mean rank."""
    _, groups = np.unique(values, return_inverse=True)
    sizes = np.bincount(groups, counts)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[groups]
