"""Tables of the scores of each label, and of the effects of thresholds and a temperature."""

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from snugbert.card_snugbert import escape
from snugbert.errors import format_count
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
        cells = [
            format_with_interval(name, each["averages"][name], each["intervals"].get(name), 1) for name in AVERAGES
        ]
        rows.append((set_title(set_name), "average of the labels", "", "", cells[1], cells[0]))
        rows += [
            (set_title(set_name), row["label"], row["number"], *_format_scores(row)) for row in _list_lowest(each)
        ]
        sentences += describe_labels(set_name, each)
    if not rows:
        return ""
    header = ("set", "label", "examples", "precision", "recall", "F1")
    return "\n\n".join([table(header, rows), " ".join(escape(sentence) for sentence in sentences)]).rstrip()


def list_label_lines(scores: Mapping[str, LabelScores]) -> Iterator[tuple[str, str]]:
    """Yields the lines of the summary about labels: left and right column. Arguments: as in [`label_table`]."""
    for set_name, each in scores.items():
        averages = [
            f"{name.replace('_', ' ').replace('f1', 'F1')} "
            + format_with_interval(name, each["averages"][name], each["intervals"].get(name), 1)
            for name in AVERAGES
        ]
        yield f"{set_title(set_name)} labels", ", ".join(averages)
        for row in _list_lowest(each):
            precision, recall, f1 = _format_scores(row)
            number = format_count(row["number"], "example")
            yield "", f"{row['label']} ({number}): F1 {f1}, precision {precision}, recall {recall}"
        for sentence in describe_labels(set_name, each):
            yield "", sentence


def describe_labels(set_name: str, scores: LabelScores) -> list[str]:
    """Returns sentences about labels that are never predicted, and about labels that the table leaves out."""
    title, labels = set_title(set_name).capitalize(), scores["labels"]
    never = [f"{row['label']} ({row['number']:,})" for row in labels if row["number"] and not row["predicted"]]
    more = f" and {len(never) - MOST_SHOWN:,} more" if len(never) > MOST_SHOWN else ""
    sentences = []
    if never:
        sentences.append(f"{title}: never predicted (number of examples): {', '.join(never[:MOST_SHOWN])}{more}.")
    if len(labels) > MOST_SHOWN:
        shown = len(_list_lowest(scores))
        sentences.append(f"{title}: the {shown} labels with the lowest F1 of {len(labels):,}.")
    return sentences


def _list_lowest(scores: LabelScores) -> list[dict[str, Any]]:
    """Of the labels with examples, returns those with the lowest F1. If there are few labels, returns all by id."""
    labels = scores["labels"]
    if len(labels) <= MOST_SHOWN:
        return labels
    occurring = [row for row in labels if row["number"]]
    return sorted(occurring, key=lambda row: row["f1"])[:MOST_SHOWN]


def _format_scores(row: Mapping[str, Any]) -> list[str]:
    return [format_with_interval(name, row[name], row["intervals"][name], 1) for name in LABEL_METRICS]


def decision_section(facts: DecisionFacts, metrics: Mapping[str, Mapping[str, float | None]]) -> str:
    """Returns Markdown about thresholds and temperature: scores without and with them, and how they were chosen."""
    parts = [describe_calibration(facts)] if facts["calibration"] is not None else []
    if facts["metric"] is not None:
        scores = metrics[facts["set"]]
        rows = [
            (
                name.replace("_", " "),
                format_with_interval(name, value, facts["intervals_without"].get(name), 1),
                format_metric(name, scores[name], 1),
            )
            for name, value in facts["scores_without"].items()
        ]
        parts += [table(("metric", "without thresholds", "with thresholds"), rows), describe_thresholds(facts)]
    return "\n\n".join(parts)


def describe_thresholds(facts: DecisionFacts) -> str:
    """Returns the sentences about thresholds."""
    shown = [f"{label} from {value:.3f}" for label, value in facts["thresholds"].items()]
    more = f" and {len(shown) - MOST_SHOWN:,} more" if len(shown) > MOST_SHOWN else ""
    metric = str(facts["metric"]).replace("_", " ")
    return (
        f"Thresholds, chosen for {metric} on the {set_title(facts['set'])} examples: predict "
        f"{', '.join(shown[:MOST_SHOWN])}{more}. The scores with thresholds are cross-fitted: each fifth of the "
        "examples is decided with thresholds chosen on the rest."
    )


def describe_calibration(facts: DecisionFacts) -> str:
    """Returns the sentences about the temperature."""
    calibration: Any = facts["calibration"]
    return (
        f"Temperature {calibration['temperature']:.3f}, fitted to the {set_title(facts['set'])} examples and included "
        f"in the weights. Expected calibration error (15 bins) before: {100 * calibration['ece_before']:.2f}, after: "
        f"{100 * calibration['ece_after']:.2f} (percent, cross-fitted)."
    )
