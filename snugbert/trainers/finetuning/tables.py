"""Tables of metrics as Markdown: one run, means over seeds, the GLUE suite."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from snugbert.trainers.card import table

Baselines = Mapping[str, tuple[str, Mapping[str, float]]]
T = TypeVar("T")
# Columns of table 1 of Devlin et al. (2018), in its order, and WNLI: task, evaluation set, figure.
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
TYPE_METRICS = ("number", "precision", "recall", "f1")  # figures of a type of entities, which it precedes: LOC_f1


def count_decimals(value: float) -> int:
    """Decimals that a metric is printed with: 2 for percent, 4 for a share of 1."""
    return 2 if abs(value) > 1 else 4


def _number(value: float | None) -> str:
    """A figure for people; none, as the correlation of a constant is, is a dash."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{count_decimals(value)}f}"


def split_name(set_name: str) -> str:
    """The name of a split, as the datasets library has it for MNLI: "eval_mm" is "validation_mismatched"."""
    kind, _, part = set_name.partition("_")
    names = {"eval": "validation", "predict": "test", "mm": "mismatched"}
    return "_".join(names.get(word, word) for word in (kind, part) if word)


def results_table(
    figures: Mapping[str, Mapping[str, float | None]], baselines: Baselines, examples: Mapping[str, int]
) -> str:
    """Markdown tables of the figures of each evaluation set, the baseline's beside them, and of types of entities.

    Args:
        figures: by the names of the sets, such as "eval" and "predict_mm".
        baselines: of sets that have one: what it answers, in words, and its figures.
        examples: how many there are in each set.
    """
    rows, of_types = [], []
    for set_name, of_set in figures.items():
        answer, baseline = baselines.get(set_name, ("", {}))
        title = f"{split_name(set_name).replace('_', ' ')} ({examples[set_name]:,})"
        of_all, by_type = apart(of_set)
        for name, value in of_all.items():
            beside = f"{_number(baseline[name])} ({answer})" if name in baseline else ""
            rows.append((title, name.replace("_", " "), _number(value), beside))
        of_types += [(title, kind, *map(_number, of_type.values())) for kind, of_type in by_type.items()]
    tables = [table(("examples", "figure", "this model", "baseline"), rows)]
    if of_types:
        tables.append(table(("examples", "type", "entities", *TYPE_METRICS[1:]), of_types))
    return "\n\n".join(tables)


def apart(figures: Mapping[str, T]) -> tuple[dict[str, T], dict[str, dict[str, T]]]:
    """The figures of all examples, and those of each type of entities, by the names in `TYPE_METRICS`."""
    kinds = sorted(name.removesuffix("_number") for name in figures if name.endswith("_number"))
    by_type = {kind: {figure: figures[f"{kind}_{figure}"] for figure in TYPE_METRICS} for kind in kinds}
    of_types = {f"{kind}_{figure}" for kind in kinds for figure in TYPE_METRICS}
    return {name: value for name, value in figures.items() if name not in of_types}, by_type


def means_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of means and standard deviations over seeds.

    Args:
        columns: what each row is of, such as a setting.
        rows: each with these columns, `mean` and `std`, which may be NaN: one seed has no deviation.
    """

    def value(row: Mapping[str, Any]) -> str:
        mean, deviation = row["mean"], row["std"]
        with_deviation = not math.isnan(mean) and not math.isnan(deviation)
        return _number(mean) + (f" ± {deviation:.{count_decimals(mean)}f}" if with_deviation else "")

    header = (*(name.replace("_", " ") for name in columns), "mean ± standard deviation")
    return table(header, [(*(row[name] for name in columns), value(row)) for row in rows])


def suite_table(figures: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> str:
    """A Markdown table of the GLUE tasks in one row, in percent, with their average as the BERT paper computes it.

    Devlin et al. (2018), table 1: F1 for QQP and MRPC, Spearman correlation for STS-B, accuracy for the others but
    CoLA, whose metric is the Matthews correlation; MNLI counts twice, matched and mismatched; WNLI is left out.

    Args:
        figures: task -> evaluation set -> figure -> share of 1, the tasks by the names of `snugbert glue`. What is
            missing is said below the table.
    """
    scores = {
        column: 100 * value
        for column, (task_name, set_name, figure) in SUITE.items()
        if (value := figures.get(task_name, {}).get(set_name, {}).get(figure)) is not None
    }
    counting = [column for column in SUITE if column != "WNLI"]
    missing = [column for column in counting if column not in scores]
    values = [scores[column] for column in counting if column in scores]
    cells = {column: f"{scores[column]:.1f}" if column in scores else "-" for column in counting}
    cells["average"] = f"{np.mean(values):.1f}" if values else "-"
    if "WNLI" in scores:
        cells["WNLI"] = f"{scores['WNLI']:.1f}"
    without = f", here without {', '.join(missing)}" if missing else ""
    return (
        f"{table(cells, [cells.values()])}\n\n"
        "Percent, on the validation examples: F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews "
        "correlation for CoLA, accuracy for the others. The average is that of Devlin et al. (2018), table 1: MNLI "
        f"counts twice, WNLI does not count{without}."
    )
