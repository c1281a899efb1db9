"""The official metrics of the GLUE tasks; scikit-learn and SciPy do the arithmetic.

`evaluate.load("glue", "mrpc")` fetches a script from the Hub and runs it. This is the same metric, by the same names,
as a class: `GlueMetric("mrpc")`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import evaluate
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


def _correlations(references: list[float], predictions: list[float]) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)  # the NaN that it announces says it, too
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


# Wang et al. (2018), "GLUE", table 1; ax, the diagnostic set, section 4. The last three are for one's own data.
SCORES: dict[str, Callable[..., dict[str, float]]] = {
    "ax": _matthews,
    "cola": _matthews,
    "mnli": _accuracy,
    "mrpc": _accuracy_and_f1,
    "qnli": _accuracy,
    "qqp": _accuracy_and_f1,
    "rte": _accuracy,
    "sst2": _accuracy,
    "stsb": _correlations,
    "wnli": _accuracy,
    "classification": _accuracy,
    "multi_label": _multi_label,
    "regression": _squared_error,
}
REGRESSION_TASKS = ("stsb", "regression")

DESCRIPTION = """\
The metric that the GLUE benchmark defines for a task, in shares of 1: accuracy (mnli, qnli, rte, sst2, wnli),
accuracy and F1 of label 1 (mrpc, qqp), Matthews correlation (cola, ax), Pearson and Spearman correlation (stsb).
For other data: accuracy (classification), mean squared error (regression); where an example may have any number of
labels (multi_label) F1 over all labels, the mean of the labels' own F1, and the share of examples all of whose labels
are right."""

INPUTS = """
Args:
    predictions: a label id (int) each example, shape [N]; for stsb and regression a number (float); for multi_label 1
        for each label that an example has and 0 for the others, shape [N, labels].
    references: the right ones, of the same shape.

Returns:
    dict of float, by the task: accuracy, f1, matthews_correlation, pearson, spearmanr, mse, micro_f1, macro_f1,
    subset_accuracy. A correlation with a constant is not defined: NaN, as in SciPy. The F1 of a label that is neither
    there nor predicted is 0.

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
    """The metric of a GLUE task, or of classification or regression on one's own data.

    Args:
        config_name: `"ax"`, `"cola"`, `"mnli"`, `"mrpc"`, `"qnli"`, `"qqp"`, `"rte"`, `"sst2"`, `"stsb"`, `"wnli"`,
            `"classification"` (default), `"multi_label"` or `"regression"`.
        kwargs: as in `evaluate.Metric`.

    Raises:
        ValueError: another `config_name`.
    """

    def __init__(self, config_name: str = "classification", **kwargs: Any):
        if config_name not in SCORES:
            raise ValueError(f"Unknown task {config_name!r}; GlueMetric knows {', '.join(SCORES)}.")
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
        return SCORES[self.config_name](references, predictions)
