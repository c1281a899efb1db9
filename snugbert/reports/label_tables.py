"""Tables of the scores of each label, and of the effects of thresholds and a temperature."""

from collections.abc import Mapping
from typing import Any, TypedDict

from snugbert.card_snugbert import escape
from snugbert.reports.cards import table
from snugbert.reports.intervals import Interval
from snugbert.reports.score_tables import format_metric, format_with_interval, set_title

LABEL_METRICS = ("precision", "recall", "f1")
AVERAGES = ("macro_f1", "balanced_accuracy")
MOST_SHOWN = 10  # labels, those with the lowest F1


class LabelScores(TypedDict):
    """The scores of each label of an evaluation set.

    Keys:
        averages: `macro_f1` and `balanced_accuracy`, the mean recall.
        labels: in the order of their ids: `label`, `number` of examples with it, number of times it is `predicted`,
            `LABEL_METRICS`, and their `intervals`. An undefined metric is NaN, or None if it was read from a file.
    """

    averages: dict[str, float]
    intervals: dict[str, Interval]
    labels: list[dict[str, Any]]


class DecisionFacts(TypedDict):
    """The thresholds and the temperature that a run chose on the validation examples.

    Keys:
        metric: the metric that the thresholds maximize. None if there are no thresholds.
        thresholds: label -> lowest probability at which it is predicted.
        calibration: the entry of the model's config.json. None if the model is not calibrated.
    """

    set: str
    metric: str | None
    thresholds: dict[str, float]
    scores_without: dict[str, float]
    intervals_without: dict[str, Interval]
    calibration: dict[str, Any] | None


def label_table(scores: Mapping[str, LabelScores]) -> str:
    """Returns a Markdown table of the scores of each label, with sentences about them. Empty without scores."""
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
        sentences.append(f"{title}: the {shown} labels with the lowest F1 of {len(labels):,}.")
    return sentences


def _list_first(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST_SHOWN:,} more" if len(texts) > MOST_SHOWN else ""
    return ", ".join(texts[:MOST_SHOWN]) + more


def _list_lowest(scores: LabelScores) -> list[dict[str, Any]]:
    """Of the labels with examples, returns those with the lowest F1. If there are few labels, returns all by id."""
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
