"""Markdown tables of metrics: one run, its labels and thresholds, a sweep, all tasks of GLUE.

In files for programs, classification and tagging metrics are fractions of 1, and question answering metrics are
percent, as in SQuAD's scripts. Tables for people have one scale, see `SCALE`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np

from snugbert.card_snugbert import escape
from snugbert.reports.cards import format_cell, render, table
from snugbert.reports.intervals import METHOD, METHOD_FOR_MEANS, Interval, combine_intervals

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
# Devlin et al. (2018), like most papers, report all scores this way.
SCALE = "All scores are in percent, correlations times 100."
UNDEFINED = "-"
TYPE_METRICS = ("number", "precision", "recall", "f1")  # metrics of an entity type. Its name is the prefix: LOC_f1

LABEL_METRICS = ("precision", "recall", "f1")
AVERAGES = ("macro_f1", "balanced_accuracy")
MOST_SHOWN = 10  # labels in the table at most: those with the lowest F1


class LabelScores(TypedDict):
    """The scores of each label of an evaluation set."""

    averages: dict[str, float]  # `macro_f1` and `balanced_accuracy`, the mean recall
    intervals: dict[str, Interval]
    # In the order of their ids: `label`, `number` of examples with it, number of times it is `predicted`,
    # `LABEL_METRICS`, and their `intervals`. An undefined metric is NaN, or None if it was read from a file.
    labels: list[dict[str, Any]]


class DecisionFacts(TypedDict):
    """The thresholds and the temperature that a run chose on the validation examples."""

    set: str
    metric: str | None  # the metric that the thresholds maximize. None if there are no thresholds
    thresholds: dict[str, float]  # label -> lowest probability at which it is predicted
    scores_without: dict[str, float]
    intervals_without: dict[str, Interval]
    calibration: dict[str, Any] | None  # the entry of config.json. None if the model is not calibrated


def set_title(set_name: str) -> str:
    """Returns the title of an evaluation set: "eval_mm" is "validation mismatched"."""
    kind, _, part = set_name.partition("_")
    titles = {"eval": "validation", "predict": "test", "mm": "mismatched"}
    return " ".join(titles.get(word, word) for word in (kind, part) if word)


def is_score(metric: str) -> bool:
    """Whether a metric is a score, such as accuracy. Other metrics are counts, thresholds, and squared errors."""
    return not metric.endswith(("total", "_number", "_thresh", "mse"))


def format_metric(metric: str, value: float | None, perfect_score: int) -> str:
    """Formats a metric for people: scores on a scale up to 100, other values as they are."""
    if value is None or math.isnan(value):
        return UNDEFINED
    if is_score(metric):
        return f"{100 * value / perfect_score:.2f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def format_with_interval(
    metric: str,
    value: float | None,
    interval: Sequence[float] | None,
    perfect_score: int,
    deviation: float | None = None,
) -> str:
    """Formats a metric, the standard deviation of a mean, and an interval, if any: "86.2 ± 0.4 (85.7 to 86.7)"."""
    text, spread = (format_metric(metric, each, perfect_score) for each in (value, deviation))
    if text == UNDEFINED or interval is None:
        ends = ""
    elif is_score(metric):
        ends = " ({:.1f} to {:.1f})".format(*(100 * end / perfect_score for end in interval))
    else:
        ends = " ({} to {})".format(*(format_metric(metric, end, perfect_score) for end in interval))
    return text + (f" ± {spread}" if spread != UNDEFINED and text != UNDEFINED else "") + ends


def data_table(data: Mapping[str, Sequence[Mapping[str, Any]]], metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a Markdown table of the data of a run, with the number of examples."""
    rows = []
    for set_name, sources in data.items():
        title = "training" if set_name == "train" else set_title(set_name)
        for source in sources:
            unlabeled = ", unlabeled" if source["split"] == "unlabeled" else ""
            rows.append((title + unlabeled, source["name"], source["num_examples"]))
        for part in ("HasAns", "NoAns"):
            if (count := metrics.get(set_name, {}).get(f"{part}_total")) is not None:
                rows.append((f"{title} {part}", sources[0]["name"], count))
    return table(("set", "data", "examples"), rows)


def results_tables(
    metrics: Mapping[str, Mapping[str, float | None]],
    baselines: Mapping[str, Mapping[str, Any]],
    perfect_score: int,
    intervals: Mapping[str, Mapping[str, Interval]] | None = None,
) -> str:
    """Returns Markdown tables of a run's metrics next to the baseline's: scores, other values, and entity types."""
    intervals = intervals or {}
    rows: dict[bool, list[Any]] = {True: [], False: []}
    type_rows = []
    for set_name, set_metrics in metrics.items():
        baseline, title = baselines.get(set_name, {}), set_title(set_name)
        overall, by_type = split_by_type(set_metrics)
        for name, value in overall.items():
            if not name.endswith("total"):  # shown in the table of the data
                to_beat = ""
                if name in baseline:
                    to_beat = f"{format_metric(name, baseline[name], perfect_score)} ({baseline['answer']})"
                interval = intervals.get(set_name, {}).get(name)
                text = format_with_interval(name, value, interval, perfect_score)
                rows[is_score(name)].append((title, name.replace("_", " "), text, to_beat))
        for kind, values in by_type.items():
            cells = [format_metric(f"_{name}", value, perfect_score) for name, value in values.items()]
            type_rows.append((title, kind, *cells))
    tables = [table(("set", "metric", "this model", "baseline"), part) for part in rows.values() if part]
    if type_rows:
        tables.append(table(("set", "type", "entities", *TYPE_METRICS[1:]), type_rows))
    notes = [*([SCALE] if rows[True] else []), *([f"In parentheses: {METHOD}"] if any(intervals.values()) else [])]
    return "\n\n".join([*([" ".join(notes)] if notes else []), *tables])


def split_by_type(metrics: Mapping[str, T]) -> tuple[dict[str, T], dict[str, dict[str, T]]]:
    """Splits metrics into overall metrics, and a dictionary with the keys `TYPE_METRICS` for each entity type."""
    types = sorted(name.removesuffix("_number") for name in metrics if name.endswith("_number"))
    by_type = {kind: {metric: metrics[f"{kind}_{metric}"] for metric in TYPE_METRICS} for kind in types}
    type_names = {f"{kind}_{metric}" for kind in types for metric in TYPE_METRICS}
    return {name: value for name, value in metrics.items() if name not in type_names}, by_type


def label_table(scores: Mapping[str, LabelScores]) -> str:
    """Returns a Markdown table of the scores of each label, with sentences about them. Empty if there are none."""
    rows: list[Any] = []
    sentences = []
    for set_name, each in scores.items():
        title = set_title(set_name)
        macro_f1, recall = (
            format_with_interval(name, each["averages"][name], each["intervals"].get(name), 1) for name in AVERAGES
        )
        rows.append((title, "average of the labels", "", "", recall, macro_f1))
        for row in _list_lowest(each):
            cells = [format_with_interval(name, row[name], row["intervals"][name], 1) for name in LABEL_METRICS]
            rows.append((title, row["label"], row["number"], *cells))
        sentences += _describe_labels(title.capitalize(), each)
    if not rows:
        return ""
    header = ("set", "label", "examples", "precision", "recall", "F1")
    return "\n\n".join([table(header, rows), " ".join(escape(sentence) for sentence in sentences)]).rstrip()


def _describe_labels(title: str, scores: LabelScores) -> list[str]:
    """Returns sentences about labels that are never predicted, and about labels that the table leaves out."""
    labels, sentences = scores["labels"], []
    if never := [f"{row['label']} ({row['number']:,})" for row in labels if row["number"] and not row["predicted"]]:
        sentences.append(f"{title}: never predicted (number of examples): {_list_first(never)}.")
    if len(labels) > MOST_SHOWN:
        shown = len(_list_lowest(scores))
        sentences.append(f"{title}: the {shown} of {len(labels):,} labels with the lowest F1.")
    return sentences


def _list_first(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST_SHOWN:,} more" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more


def _list_lowest(scores: LabelScores) -> list[dict[str, Any]]:
    """Returns the labels with the lowest F1 among labels with examples. If there are few labels, returns all by id."""
    labels = scores["labels"]
    if len(labels) <= MOST_SHOWN:
        return labels
    occurring = [row for row in labels if row["number"]]
    return sorted(occurring, key=lambda row: row["f1"])[:MOST_SHOWN]


def decision_section(facts: DecisionFacts, metrics: Mapping[str, Mapping[str, float | None]]) -> str:
    """Returns Markdown about thresholds and temperature: scores without and with them, and how they were chosen."""
    title, calibration, parts = set_title(facts["set"]), facts["calibration"], []
    if calibration is not None:
        parts.append(
            f"Temperature {calibration['temperature']:.3f}, fitted to the {title} examples and included in the "
            f"weights. Expected calibration error (15 bins) before: {100 * calibration['ece_before']:.2f}, after: "
            f"{100 * calibration['ece_after']:.2f} (percent, cross-fitted)."
        )
    if facts["metric"] is not None:
        rows = []
        for name, value in facts["scores_without"].items():
            without = format_with_interval(name, value, facts["intervals_without"].get(name), 1)
            rows.append((name.replace("_", " "), without, format_metric(name, metrics[facts["set"]][name], 1)))
        thresholds = [f"{label} from {value:.3f}" for label, value in facts["thresholds"].items()]
        parts += [
            table(("metric", "without thresholds", "with thresholds"), rows),
            f"Thresholds, chosen for {facts['metric'].replace('_', ' ')} on the {title} examples: predict "
            f"{_list_first(thresholds)}. The scores with thresholds are cross-fitted: each fifth of the examples is "
            "decided with thresholds chosen on the rest.",
        ]
    return "\n\n".join(parts)


def sweep_tables(summary: Mapping[str, Any], setting_columns: Sequence[str], perfect_score: int) -> str:
    """Returns Markdown tables of a sweep: settings, and all metrics of the best setting. For entity types, only F1."""
    columns, by, best = (*setting_columns, "seeds"), summary["chosen_by"], summary["best_setting"]
    settings = [
        (*(row[name] for name in columns), _format_mean(by, row, perfect_score)) for row in summary["settings"]
    ]
    for row in summary.get("stopped", []):
        last = format_metric(by, row["scores"][-1], perfect_score)
        settings.append((*(row[name] for name in setting_columns), 1, f"stopped early at {last}"))
    rows = []
    for set_name, metrics in summary["metrics"].items():
        overall, by_type = split_by_type(metrics)
        values = {**overall, **{f"{kind}_f1": of_type["f1"] for kind, of_type in by_type.items()}}
        rows += [
            (set_title(set_name), name.replace("_", " "), _format_mean(name, value, perfect_score))
            for name, value in values.items()
            if not name.endswith("total")
        ]
    title = "mean ± standard deviation"
    return render(
        "sweep.md",
        chosen_by=by,
        intervals=METHOD_FOR_MEANS if any(row.get("interval") for row in summary["settings"]) else "",
        settings=table((*(name.replace("_", " ") for name in columns), title), settings),
        failures=summary["failures"],
        best=", ".join(f"{name.replace('_', ' ')} {format_cell(best[name])}" for name in setting_columns),
        several=len(settings) > 1,
        metrics=table(("set", "metric", title), rows),
    )


def _format_mean(metric: str, row: Mapping[str, Any], perfect_score: int) -> str:
    return format_with_interval(metric, row["mean"], row.get("interval"), perfect_score, row["std"])


def select_suite(values: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns column of `SUITE` -> value. `values`: task, such as "sst2" -> evaluation set -> metric -> value."""
    found = {column: values.get(task, {}).get(name, {}).get(metric) for column, (task, name, metric) in SUITE.items()}
    return {column: value for column, value in found.items() if value is not None}


def suite_table(scores: dict[str, float], intervals: dict[str, Interval], method: str = METHOD) -> str:
    """Returns a Markdown table of all GLUE tasks in one row, in percent, with the same average as the BERT paper.

    Devlin et al. (2018), table 1: F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews correlation for CoLA,
    accuracy for the other tasks. MNLI counts twice, matched and mismatched. WNLI is left out.

    Args:
        scores: column -> fraction of 1, see [`select_suite`]. Missing columns are listed below the table.
        intervals: column -> low and high, for a second row. The interval of the average combines them, see
            [`combine_intervals`].
    """
    scores, ends = dict(scores), dict(intervals)
    counting = [column for column in SUITE if column != "WNLI"]
    averaged = [column for column in counting if column in scores]
    if averaged:
        values = [scores[column] for column in averaged]
        if ends.keys() >= set(averaged):
            ends["average"] = combine_intervals(values, [ends[column] for column in averaged])
        scores["average"] = float(np.mean(values))
    columns = [*counting, "average", *(["WNLI"] if "WNLI" in scores else [])]
    rows = [[f"{100 * scores[column]:.1f}" if column in scores else UNDEFINED for column in columns]]
    if ends:
        percent = {column: [f"{100 * end:.1f}" for end in interval] for column, interval in ends.items()}
        rows.append([" to ".join(percent.get(column, [])) for column in columns])
    missing = [column for column in counting if column not in scores]
    return render("suite.md", scores=table(columns, rows), missing=missing, method=method if ends else "")
