"""Markdown tables of metrics: one run, a sweep, all tasks of GLUE.

Classification and tagging metrics are fractions of 1. Question answering metrics are percent, as in SQuAD's scripts.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from snugbert.card_snugbert import escape
from snugbert.trainers.card import table

T = TypeVar("T")
# Columns of table 1 of Devlin et al. (2018), in its order, and WNLI: task, evaluation set, metric.
SUITE = {
    "MNLI-m": ("mnli", "eval", "accuracy"),
    "MNLI-mm": ("mnli", "eval_mm", "accuracy"),
    "QQP": ("qqp", "eval", "f1"),
    "QNLI": ("qnli", "eval", "accuracy"),
    "SST-2": ("sst2", "eval", "accuracy"),
    "CoLA": ("cola", "eval", "matthews_correlation"),
    "STS-B": ("stsb", "eval", "spearmanr"),
    "MRPC": ("mrpc", "eval", "f1"),
    "RTE": ("rte", "eval", "accuracy"),
    "WNLI": ("wnli", "eval", "accuracy"),
}
TYPE_METRICS = ("number", "precision", "recall", "f1")  # metrics of an entity type. Its name is the prefix: LOC_f1


def count_decimals(value: float) -> int:
    """Returns the decimals to print a metric with: 2 for percent, 4 for fractions of 1."""
    return 2 if abs(value) > 1 else 4


def format_number(value: float | None) -> str:
    """Formats a metric. NaN (the correlation of a constant) and None (NaN read from a file) become a dash."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{count_decimals(value)}f}"


def split_name(set_name: str) -> str:
    """Returns the dataset split of an evaluation set: "eval_mm" is MNLI's "validation_mismatched"."""
    kind, _, part = set_name.partition("_")
    names = {"eval": "validation", "predict": "test", "mm": "mismatched"}
    return "_".join(names.get(word, word) for word in (kind, part) if word)


def results_table(
    metrics: Mapping[str, Mapping[str, float | None]],
    baselines: Mapping[str, Mapping[str, Any]],
    examples: Mapping[str, int],
) -> str:
    """Returns Markdown tables of a run's metrics next to the baseline's, and of its entity types.

    Args:
        metrics: evaluation set, such as "eval" or "predict_mm" -> metric -> value.
        baselines: evaluation set -> the metrics of the baseline, and its answer as "answer".
        examples: evaluation set -> number of examples.
    """
    rows, type_rows = [], []
    for set_name, set_metrics in metrics.items():
        baseline = baselines.get(set_name, {})
        title = f"{split_name(set_name).replace('_', ' ')} ({examples[set_name]:,})"
        overall, by_type = split_by_type(set_metrics)
        for name, value in overall.items():
            other = f"{format_number(baseline[name])} ({baseline['answer']})" if name in baseline else ""
            rows.append((title, name.replace("_", " "), format_number(value), other))
        type_rows += [(title, kind, *map(format_number, values.values())) for kind, values in by_type.items()]
    tables = [table(("examples", "metric", "this model", "baseline"), rows)]
    if type_rows:
        tables.append(table(("examples", "type", "entities", *TYPE_METRICS[1:]), type_rows))
    return "\n\n".join(tables)


def split_by_type(metrics: Mapping[str, T]) -> tuple[dict[str, T], dict[str, dict[str, T]]]:
    """Splits metrics into overall metrics, and a dictionary with the keys `TYPE_METRICS` for each entity type."""
    types = sorted(name.removesuffix("_number") for name in metrics if name.endswith("_number"))
    by_type = {kind: {metric: metrics[f"{kind}_{metric}"] for metric in TYPE_METRICS} for kind in types}
    type_names = {f"{kind}_{metric}" for kind in types for metric in TYPE_METRICS}
    return {name: value for name, value in metrics.items() if name not in type_names}, by_type


def means_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Markdown table of means and standard deviations over seeds.

    Args:
        columns: keys that identify a row, such as the fields of a setting.
        rows: each with these keys, `mean` and `std`. `std` is NaN for a single seed.
    """

    def value(row: Mapping[str, Any]) -> str:
        mean, deviation = row["mean"], row["std"]
        with_deviation = not math.isnan(mean) and not math.isnan(deviation)
        return format_number(mean) + (f" ± {deviation:.{count_decimals(mean)}f}" if with_deviation else "")

    header = (*(name.replace("_", " ") for name in columns), "mean ± standard deviation")
    return table(header, [(*(row[name] for name in columns), value(row)) for row in rows])


def sweep_tables(summary: Mapping[str, Any], setting_columns: Sequence[str]) -> str:
    """Returns Markdown tables of a sweep: all settings, and all metrics of the best one. For entity types, only F1.

    Args:
        summary: see [`summarize_sweep`].
        setting_columns: the fields of a setting.
    """
    rows = []
    for set_name, metrics in summary["metrics"].items():
        overall, by_type = split_by_type(metrics)
        values = {**overall, **{f"{kind}_f1": of_type["f1"] for kind, of_type in by_type.items()}}
        examples = split_name(set_name).replace("_", " ")
        rows += [{"examples": examples, "metric": name.replace("_", " "), **value} for name, value in values.items()]
    best = ", ".join(f"{name.replace('_', ' ')} {summary['best_setting'][name]:g}" for name in setting_columns)
    failures = "".join(f"\n\nFailed: {escape(failure)}" for failure in summary["failures"])
    return (
        f"Settings and runs are compared by {summary['chosen_by']}.\n\n"
        f"{means_table((*setting_columns, 'seeds'), summary['settings'])}{failures}\n\n"
        f"Best setting: {best}. Its metrics over all seeds:\n\n"
        f"{means_table(('examples', 'metric'), rows)}"
    )


def suite_table(metrics: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    """Returns a Markdown table of all GLUE tasks in one row, in percent, with the average of the BERT paper.

    Devlin et al. (2018), table 1: F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews correlation for CoLA,
    accuracy for the others. MNLI counts twice, matched and mismatched. WNLI is left out.

    Args:
        metrics: task as in `snugbert glue` -> evaluation set -> metric -> fraction of 1. Missing tasks are listed
            below the table.
    """
    scores = {
        column: 100 * value
        for column, (task_name, set_name, metric) in SUITE.items()
        if (value := metrics.get(task_name, {}).get(set_name, {}).get(metric)) is not None
    }
    counting = [column for column in SUITE if column != "WNLI"]
    missing = [column for column in counting if column not in scores]
    values = [scores[column] for column in counting if column in scores]
    cells = {column: f"{scores[column]:.1f}" if column in scores else "-" for column in counting}
    cells["average"] = f"{np.mean(values):.1f}" if values else "-"
    if "WNLI" in scores:
        cells["WNLI"] = f"{scores['WNLI']:.1f}"
    without = f" Missing here: {', '.join(missing)}." if missing else ""
    return (
        f"{table(cells, [cells.values()])}\n\n"
        "Percent, on the validation examples: F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews "
        "correlation for CoLA, accuracy for the others. The average follows Devlin et al. (2018), table 1: MNLI "
        f"counts twice, WNLI does not count.{without}"
    )
