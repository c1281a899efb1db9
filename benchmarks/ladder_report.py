"""The runs of `pretraining_ladder.py` in `ladder.jsonl`, and their table and plot."""

import json
from pathlib import Path
from statistics import mean
from typing import Any

from snugbert.reports.plots import GREY, new_figure, tidy

RUNS_NAME, REPORT_NAME, PLOT_NAME = "ladder.jsonl", "pretraining_ladder.md", "pretraining_ladder.png"
HEADER = (
    "| recipe | model | seeds | million tokens | PFLOPs | minutes | masked token loss, nats | gain | spread "
    "| masked token accuracy | loss on pairs, nats | pair accuracy |\n|" + " --- |" * 12
)

Run = dict[str, Any]  # a line of `ladder.jsonl`


def read_runs(output_dir: Path) -> list[Run]:
    """Reads the finished runs, in the order in which they finished."""
    file = output_dir / RUNS_NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def get_row(run: Run) -> tuple[str, str]:
    """Returns the row of the table to which a run belongs: recipe and model."""
    return run["recipe"], run["model"]


def report(output_dir: Path) -> str:
    """Makes the table and the plot of all finished runs.

    Raises:
        SystemExit: there are no finished runs.
    """
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in read_runs(output_dir):
        rows.setdefault(get_row(run), []).append(run)
    if not rows:
        raise SystemExit(f"error: --report: {output_dir} has no finished runs.")
    first = {model: group for (_, model), group in reversed(rows.items())}  # row of each model
    runs = [run for group in rows.values() for run in group]
    machines = [", ".join(f"{name} {value}" for name, value in run["machine"].items()) for run in runs]
    commands = [f"    python benchmarks/pretraining_ladder.py {run['command']}" for run in runs]
    text = "\n".join(
        [
            *dict.fromkeys(machines),
            "",
            *dict.fromkeys(commands),
            "",
            HEADER,
            *(format_row(group, first[group[0]["model"]]) for group in rows.values()),
            "",
            "Means over the seeds. Gain: against the first recipe of the same model. Spread: largest minus smallest "
            f"loss. Predicting by token frequency: {runs[0]['unigram_mlm_loss']:.3f} nats.",
            "",
            *dict.fromkeys(f"- `{run['recipe']}`: {run['about']}" for run in runs),
            "",
        ]
    )
    (output_dir / REPORT_NAME).write_text(text)
    draw(rows, output_dir / PLOT_NAME)
    return text


def format_row(runs: list[Run], first: list[Run]) -> str:
    """Formats a row of the table."""

    def average(name: str, form: str, unit: float = 1) -> str:
        return format(mean(run[name] for run in runs) / unit, form) if name in runs[0] else ""

    losses = [run["mlm_loss"] for run in runs]
    gain = mean(run["mlm_loss"] for run in first) - mean(losses)
    cells = [
        runs[0]["recipe"],
        runs[0]["model"],
        str(len(runs)),
        average("tokens", ".2f", 1e6),
        average("flops", ".2f", 1e15),
        average("seconds", ".1f", 60),
        average("mlm_loss", ".3f"),
        "" if runs is first else f"{gain:.3f}",
        f"{max(losses) - min(losses):.3f}" if len(runs) > 1 else "",
        average("mlm_accuracy", ".1%"),
        average("pairs_mlm_loss", ".3f"),
        average("nsp_accuracy", ".1%"),
    ]
    return f"| {' | '.join(cells)} |"


def draw(rows: dict[tuple[str, str], list[Run]], file: Path) -> None:
    """Plots the loss of every run over tokens, FLOPs and minutes. The runs of a row have the same color."""
    axes = [("tokens", 1e6, "million tokens"), ("flops", 1e15, "PFLOPs"), ("seconds", 60, "minutes of training")]
    figure = new_figure(18, 4.8)
    for panel, (name, unit, title) in zip(figure.subplots(1, 3), axes, strict=True):
        for number, ((recipe, model), runs) in enumerate(rows.items()):
            for run in runs:
                x = [point[name] / unit for point in run["points"]]
                losses = [point["mlm_loss"] for point in run["points"]]
                label = f"{recipe}, {model}" if run is runs[0] else None
                panel.plot(x, losses, color=f"C{number}", marker="o", markersize=4, label=label)
        panel.axhline(runs[0]["unigram_mlm_loss"], color=GREY, linestyle=":", label="token frequencies")
        panel.set_xlabel(title)
        panel.set_ylabel("masked token loss, nats")
        panel.set_xlim(left=0)
        panel.legend(frameon=False)
        tidy(panel)
    figure.savefig(file)
