"""The results of a run: `results.json` for programs, `results.md` for people. Commands print the same tables."""

import json
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from snugbert.card_snugbert import escape
from snugbert.errors import InputError, format_count
from snugbert.files import read_json, write_atomically
from snugbert.progress import format_duration
from snugbert.reports.cards import Head
from snugbert.reports.intervals import Interval
from snugbert.reports.plots import list_plots
from snugbert.reports.score_tables import (
    DecisionFacts,
    LabelScores,
    data_table,
    decision_section,
    label_table,
    results_tables,
    set_title,
)

RESULTS = "results.json"  # in the output folder; it is written last


class TaskFacts(NamedTuple):
    """What reports show about a task, besides the results of a run."""

    name: str
    head: Head
    labels: list[str] | None  # in the order of their ids. None: the task has no classes
    prediction_files: tuple[str, ...] = ()
    base_model: str | None = None  # folder or Hub name of the checkpoint to start from. None: random weights


class RunResults(TypedDict):
    """The content of `results.json`. In nested dictionaries, the outer keys are evaluation sets."""

    task: str
    model: str  # name of the checkpoint that training started from, or "random weights"
    config: str | None  # name of the configuration, if the user gave one
    metrics: dict[str, dict[str, float]]  # undefined metrics are NaN (null in the file)
    intervals: NotRequired[dict[str, dict[str, Interval]]]  # 95 % intervals of overall metrics, see [`bootstrap`]
    perfect_score: int  # in `metrics`: 1 for fractions, 100 for percent
    baselines: dict[str, dict[str, Any]]  # the metrics of the baseline, and its answer as "answer"
    examples: dict[str, int]
    data: dict[str, list[dict[str, Any]]]  # the fields of each [`DataSource`] of "train" and of evaluation sets
    copies: NotRequired[list[str]]  # sentences about examples that occur more than once, see [`ExampleCopies`]
    training: dict[str, float]  # Trainer's training metrics. Empty if the run did not train
    seconds: NotRequired[float]  # including evaluation and predictions
    settings: dict[str, Any]  # of data and training
    versions: dict[str, str]
    shortfalls: NotRequired[list[str]]  # sets that do not beat the baseline, see [`describe_shortfalls`]
    sweep: NotRequired[dict[str, Any]]  # scores of all settings, see [`summarize_sweep`]
    labels: NotRequired[dict[str, LabelScores]]  # if labels are uneven, or a label is never predicted
    decisions: NotRequired[DecisionFacts]  # if the run chose any. `metrics` has the scores with thresholds


def write_results(output_dir: Path, results: RunResults, sweep_tables: str | None = None) -> None:
    """Writes `results.md`, then `results.json`, which marks the run as complete."""
    write_atomically(
        output_dir / "results.md", f"# {escape(results['task'])}\n\n{_format_tables(results, sweep_tables)}\n"
    )
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


def list_tables(results: RunResults) -> dict[str, str]:
    """Returns the Markdown of the tables of a run, by their names in the card's template. Empty: nothing to show."""
    metrics, has_decisions = results["metrics"], "decisions" in results and any(results["metrics"].values())
    return {
        "data": data_table(results["data"], metrics),
        "copies": "\n\n".join(results.get("copies", [])),
        "results": results_tables(metrics, results["baselines"], results["perfect_score"], results.get("intervals")),
        "label_scores": label_table(results.get("labels", {})),
        "decisions": decision_section(results["decisions"], metrics) if has_decisions else "",
    }


def _format_tables(results: RunResults, sweep_tables: str | None) -> str:
    """Returns the Markdown of `results.md` without its title."""
    unscored = [set_title(name) for name, metrics in results["metrics"].items() if not metrics]
    parts = [
        *list_tables(results).values(),
        f"Predicted, not scored, because labels are missing: {', '.join(unscored)}." if unscored else "",
        escape(" ".join(results.get("shortfalls", []))),
        sweep_tables or "",
    ]
    return "\n\n".join(part for part in parts if part)


def format_summary(task: TaskFacts, results: RunResults, output_dir: Path, sweep_tables: str | None = None) -> str:
    """Returns the last lines of a command: training time, the tables of `results.md`, and where the files are."""
    training = results["training"]
    title = f"{task.name}: scored"
    if training:
        duration = format_duration(training["train_runtime"])
        epochs, steps = training["epoch"], format_count(int(training["train_steps"]), "step")
        title = f"{task.name}: trained {epochs:g} epoch{'s' * (epochs != 1)} ({steps}) in {duration}"
    files = {
        "model": [file.name for file in sorted(output_dir.glob("model*.safetensors"))],
        "predictions": list(task.prediction_files),
        "plots": [plot.name for plot in list_plots(output_dir)],
        "model card": ["README.md"],
        "all results": ["results.md"],
    }
    if not training and contains_model(output_dir):
        files = {"predictions": files["predictions"]}  # the run that trained wrote the other files
    lines = [f"{'folder':<13}{output_dir}"]
    for kind, names in files.items():
        if present := [name for name in names if (output_dir / name).exists()]:
            lines.append(f"{kind:<13}{', '.join(present)}")
    return "\n\n".join([title, _format_tables(results, sweep_tables), "\n".join(lines)])


def contains_model(output_dir: Path) -> bool:
    """Whether the folder contains a trained model. A run that only scores keeps the results of training."""
    return (output_dir / "config.json").exists()
