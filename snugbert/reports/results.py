"""The results of a run: `results.json` for programs, `results.md` and the printed summary for people."""

import json
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from snugbert.card_snugbert import escape
from snugbert.errors import InputError, format_count
from snugbert.files import read_json, write_atomically
from snugbert.progress import format_duration
from snugbert.reports.cards import Head
from snugbert.reports.intervals import METHOD, Interval
from snugbert.reports.label_tables import (
    DecisionFacts,
    LabelScores,
    decision_section,
    describe_calibration,
    describe_thresholds,
    label_table,
    list_label_lines,
)
from snugbert.reports.plots import list_plots
from snugbert.reports.score_tables import (
    UNDEFINED,
    data_table,
    format_interval,
    format_metric,
    results_tables,
    set_title,
)

RESULTS = "results.json"  # in the output folder; it is written last


class TaskFacts(NamedTuple):
    """What reports show about a task, besides the results of a run.

    Attributes:
        labels: in the order of their ids. None: the task has no classes.
    """

    name: str
    head: Head
    labels: list[str] | None
    metrics: tuple[str, ...]
    prediction_files: tuple[str, ...] = ()


class RunResults(TypedDict):
    """The content of `results.json`.

    Keys:
        model: name of the checkpoint that training started from, or "random weights".
        config: name of the configuration, if the user gave one.
        metrics: evaluation set -> metric -> value. Undefined metrics are NaN (null in the file).
        intervals: evaluation set -> overall metric -> low and high end of its 95 % interval, see [`bootstrap`].
        perfect_score: the value of a perfect score in `metrics`: 1 for fractions, 100 for percent.
        baselines: evaluation set -> the metrics of the baseline, and its answer as "answer".
        data: "train" and evaluation sets -> the fields of each [`DataSource`] of its examples.
        copies: sentences about examples that occur more than once, see [`ExampleCopies`].
        training: Trainer's training metrics. Empty if the run did not train.
        seconds: the time of the run, with evaluation and predictions.
        settings: data and training settings.
        shortfalls: which sets do not beat the baseline, and what to try, see [`describe_shortfalls`].
        sweep: scores of all settings of a sweep, see [`summarize_sweep`].
        labels: evaluation set -> scores of each label, if labels are uneven, or a label is never predicted.
        decisions: thresholds and temperature, if the run chose any. `metrics` has the scores with thresholds.
    """

    task: str
    model: str
    config: str | None
    metrics: dict[str, dict[str, float]]
    intervals: NotRequired[dict[str, dict[str, Interval]]]
    perfect_score: int
    baselines: dict[str, dict[str, Any]]
    examples: dict[str, int]
    data: dict[str, list[dict[str, Any]]]
    copies: NotRequired[list[str]]
    training: dict[str, float]
    seconds: NotRequired[float]
    settings: dict[str, Any]
    versions: dict[str, str]
    shortfalls: NotRequired[list[str]]
    sweep: NotRequired[dict[str, Any]]
    labels: NotRequired[dict[str, LabelScores]]
    decisions: NotRequired[DecisionFacts]


def write_results(output_dir: Path, results: RunResults, sweep_tables: str | None = None) -> None:
    """Writes `results.md`, then `results.json`, which marks the run as complete."""
    write_atomically(output_dir / "results.md", _format_tables(results, sweep_tables))
    finite = json.loads(json.dumps(results), parse_constant=lambda _: None)
    write_atomically(output_dir / RESULTS, json.dumps(finite, indent=1, ensure_ascii=False) + "\n")


def read_results(file: Path) -> Any:
    """Reads the `results.json` of a run, even if the run failed or was stopped early. NaN is read as None."""
    results = read_json(file)
    if not results.keys() & {"metrics", "evaluations"}:
        raise InputError(
            f"{file} is damaged, or not the results of a fine-tuning run. Restore this file, or move its folder away."
        )
    return results


def format_scores(results: RunResults) -> str:
    """Returns Markdown tables of the metrics of a run."""
    return results_tables(results["metrics"], results["baselines"], results["perfect_score"], results.get("intervals"))


def _format_tables(results: RunResults, sweep_tables: str | None) -> str:
    """Returns the Markdown of `results.md`. Arguments: as in [`write_results`]."""
    decisions = decision_section(results["decisions"], results["metrics"]) if "decisions" in results else ""
    parts = [
        f"# {escape(results['task'])}",
        data_table(results["data"], results["metrics"]),
        *results.get("copies", []),
        format_scores(results),
        label_table(results.get("labels", {})),
        decisions,
        escape(" ".join(results.get("shortfalls", []))),
        sweep_tables or "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_summary(task: TaskFacts, results: RunResults, output_dir: Path) -> str:
    """Returns the last lines of a command: training time, metrics next to the baseline, and where the files are."""
    training = results["training"]
    title = f"{task.name}: scored"
    if training:
        duration = format_duration(training["train_runtime"])
        epochs, steps = training["epoch"], format_count(int(training["train_steps"]), "step")
        amount = f"{epochs:g} epoch{'s' * (epochs != 1)} ({steps})"
        title = f"{task.name}: trained {amount} in {duration}"
    lines = []
    intervals, perfect_score = results.get("intervals", {}), results["perfect_score"]
    for name, metrics in results["metrics"].items():
        shown = {metric: value for metric, value in metrics.items() if metric in task.metrics} or metrics
        baseline = results["baselines"].get(name, {})
        cells = []
        for metric, value in shown.items():
            score, to_beat = (format_metric(metric, v, perfect_score) for v in (value, baseline.get(metric)))
            interval = format_interval(metric, intervals.get(name, {}).get(metric), perfect_score)
            # The correlation of a constant is undefined.
            details = [*([interval] if interval else []), *([] if to_beat == UNDEFINED else [f"baseline {to_beat}"])]
            cells.append(f"{metric} {score}" + (f" ({'; '.join(details)})" if details else ""))
        text = ", ".join(cells) if cells else "predicted, not scored: labels are missing"
        examples = format_count(results["examples"][name], "example")
        lines.append((set_title(name), f"{examples}: {text}"))
    lines += [("copies", sentence) for sentence in results.get("copies", [])]
    lines += list_label_lines(results.get("labels", {}))
    if (decisions := results.get("decisions")) is not None:
        if decisions["metric"] is not None:
            lines.append(("thresholds", describe_thresholds(decisions)))
        if decisions["calibration"] is not None:
            lines.append(("calibration", describe_calibration(decisions)))
    answers = dict.fromkeys(baseline["answer"] for baseline in results["baselines"].values())
    if answers:
        lines.append(("baseline", ", ".join(answers)))
    if any(intervals.values()):
        lines.append(("intervals", METHOD))
    lines.append(("folder", str(output_dir)))
    files = {
        "model": [file.name for file in sorted(output_dir.glob("model*.safetensors"))],
        "predictions": list(task.prediction_files),
        "plots": [plot.name for plot in list_plots(output_dir)],
        "model card": ["README.md"],
        "all results": ["results.md"],
    }
    if not training and contains_model(output_dir):
        files = {"predictions": files["predictions"]}  # the run that trained wrote the other files
    for kind, names in files.items():
        present = [name for name in names if (output_dir / name).exists()]
        if present:
            lines.append((kind, ", ".join(present)))
    width = max(len(left) for left, _ in lines)
    table = [f"  {left:<{width}}  {right}" for left, right in lines]
    parts = ["\n".join([title, *table]), "\n".join(results.get("shortfalls", []))]
    return "\n\n".join(part for part in parts if part)


def contains_model(output_dir: Path) -> bool:
    """Whether the folder contains a trained model. A run that only scores keeps the results of training."""
    return (output_dir / "config.json").exists()
