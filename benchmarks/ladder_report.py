"""The runs of `pretraining_ladder.py` in `ladder.jsonl`, and their table and plot."""

import json
import math
from pathlib import Path
from statistics import mean
from typing import Any

from reporting import format_machine, format_table

from snugbert.reports.plots import GREY, new_figure, tidy

RUNS_NAME, REPORT_NAME, PLOT_NAME = "ladder.jsonl", "pretraining_ladder.md", "pretraining_ladder.png"
LOSSES = {"mlm_loss": "masked token loss, nats", "bits_per_character": "bits per character"}

Run = dict[str, Any]  # a line of `ladder.jsonl`


def read_runs(output_dir: Path) -> list[Run]:
    """Reads the finished runs, in the order in which they finished."""
    file = output_dir / RUNS_NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def get_row(run: Run) -> tuple[str, str]:
    """Returns the row of the table to which a run belongs: recipe and model."""
    return run["recipe"], run["model"]


def report(output_dir: Path) -> str:
    """Makes the table and the plot of all finished runs."""
    rows: dict[tuple[str, str], list[Run]] = {}
    for run in read_runs(output_dir):
        rows.setdefault(get_row(run), []).append(run)
    runs = [run for group in rows.values() for run in group]
    # Losses per token can be compared only if all recipes have the tokenizer of the ladder.
    loss = "bits_per_character" if any("tokenizer_name" in run["settings"] for run in runs) else "mlm_loss"
    first = {model: group for (_, model), group in reversed(rows.items())}  # row of each model
    table = [make_row(group, first[model], loss) for (_, model), group in rows.items()]
    titles = [title for title in table[0] if any(row[title] for row in table)]
    machines = [format_machine(run["machine"]) for run in runs]
    commands = [f"    python benchmarks/pretraining_ladder.py {run['command']}" for run in runs]
    baselines = ", ".join(f"{value:.3f}" for value in list_baselines(runs, loss))
    text = "\n".join(
        [
            *dict.fromkeys(machines),
            "",
            *dict.fromkeys(commands),
            "",
            format_table(titles, ([row[title] for title in titles] for row in table)),
            "",
            f"Means over the seeds. Gain ({LOSSES[loss]}): against the first recipe of the same model. Spread: "
            f"largest minus smallest. Predicting by token frequency: {baselines}.",
            *describe_pairs(list(rows.values())),
            "",
            *dict.fromkeys(f"- `{run['recipe']}`: {run['about']}" for run in runs),
            "",
        ]
    )
    (output_dir / REPORT_NAME).write_text(text)
    draw(rows, loss, output_dir / PLOT_NAME)
    return text


def make_row(runs: list[Run], first: list[Run], loss: str) -> dict[str, str]:
    """Formats a row of the table: column -> cell. Cells are empty if a run has no value.

    Args:
        runs: the seeds of a recipe.
        first: the seeds of the recipe to compare it with.
        loss: the loss to compare.
    """

    def average(name: str, form: str, unit: float = 1) -> str:
        return format(mean(run[name] for run in runs) / unit, form) if all(name in run for run in runs) else ""

    losses, first_losses = ([run[loss] for run in group if loss in run] for group in (runs, first))
    is_compared = runs is not first and losses and first_losses
    accuracies = list_pair_accuracies(runs)
    return {
        "recipe": runs[0]["recipe"],
        "model": runs[0]["model"],
        "million parameters": average("parameters", ".1f", 1e6),
        "seeds": str(len(runs)),
        "million tokens": average("tokens", ".2f", 1e6),
        "PFLOPs": average("flops", ".2f", 1e15),
        "core hours": average("core_hours", ".2f"),
        "minutes": average("seconds", ".1f", 60),
        **{title: average(name, ".3f") for name, title in LOSSES.items()},
        "gain": f"{mean(first_losses) - mean(losses):.3f}" if is_compared else "",
        "spread": f"{max(losses) - min(losses):.3f}" if len(losses) > 1 else "",
        "masked token accuracy": average("mlm_accuracy", ".1%"),
        "loss on pairs, nats": average("pairs_mlm_loss", ".3f"),
        "pair accuracy": average("nsp_accuracy", ".1%"),
        "BLiMP": format_range(accuracies),
    }


def format_range(values: list[float]) -> str:
    """Formats the mean, and the smallest and largest of several values."""
    ends = f" ({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else ""
    return f"{mean(values):.1f}{ends}" if values else ""


def list_pair_accuracies(runs: list[Run]) -> list[float]:
    """Lists the accuracies on minimal pairs in percent, of the runs that were scored."""
    return [100 * run["minimal_pairs"]["accuracy"]["original"] for run in runs if "minimal_pairs" in run]


def describe_pairs(rows: list[list[Run]]) -> list[str]:
    """Explains the column of minimal pairs, if there is one, and how much of a difference seeds alone make."""
    accuracies = [list_pair_accuracies(runs) for runs in rows]
    if not any(accuracies):
        return []
    spreads = [max(seeds) - min(seeds) for seeds in accuracies if len(seeds) > 1]
    chance = "No recipe has several seeds, so any difference may be chance."
    if spreads:
        chance = f"Seeds alone change it by up to {max(spreads):.1f} points. A smaller difference may be chance."
    return [f"BLiMP: percent of the pairs, mean over paradigms (smallest to largest of the seeds). {chance}"]


def list_baselines(runs: list[Run], loss: str) -> list[float]:
    """Lists the losses of predicting tokens by their frequency, one for each tokenizer."""
    name = f"unigram_{loss}"
    return list(dict.fromkeys(run[name] for run in runs if name in run))


def draw(rows: dict[tuple[str, str], list[Run]], loss: str, file: Path) -> None:
    """Plots the loss of every run over tokens, FLOPs and minutes. The runs of a row have the same color."""
    axes = [("tokens", 1e6, "million tokens"), ("flops", 1e15, "PFLOPs"), ("seconds", 60, "minutes of training")]
    figure = new_figure(18, 4.8)
    for panel, (name, unit, title) in zip(figure.subplots(1, 3), axes, strict=True):
        for number, ((recipe, model), runs) in enumerate(rows.items()):
            for run in runs:
                x = [point[name] / unit for point in run["points"]]
                losses = [point.get(loss, math.nan) for point in run["points"]]
                label = f"{recipe}, {model}" if run is runs[0] else None
                panel.plot(x, losses, color=f"C{number}", marker="o", markersize=4, label=label)
        for number, value in enumerate(list_baselines([run for runs in rows.values() for run in runs], loss)):
            panel.axhline(value, color=GREY, linestyle=":", label=None if number else "token frequencies")
        panel.set_xlabel(title)
        panel.set_ylabel(LOSSES[loss])
        panel.set_xlim(left=0)
        panel.legend(frameon=False)
        tidy(panel)
    figure.savefig(file)
