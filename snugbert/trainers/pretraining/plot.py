"""`training.png`: the curves of a pretraining run, from its `metrics.jsonl`.

A line of `metrics.jsonl` is a JSON object. A training line has `step`, `tokens` (seen so far), `learning_rate`,
`mlm_loss` and `mlm_accuracy`, and with sentence pairs `nsp_loss` and `nsp_accuracy`. An evaluation line has `step` and
the same metrics with the prefix `eval_`. Losses are in nats, accuracies between 0 and 1.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from snugbert.plots import GREY, TITLE, Curve, draw_curves, marker, new_figure, tidy

PLOT_NAME = "training.png"  # in the output folder
TASKS = {"mlm": "Masked tokens", "nsp": "Sentence pairs"}
MEASURES = {"loss": "loss (nats)", "accuracy": "accuracy"}
FORMATS = {"loss": ".3f", "accuracy": ".1%"}


def draw_training(metrics_file: Path, image_file: Path, baselines: Mapping[str, float] | None = None) -> None:
    """Draws losses, accuracies and the learning rate over the tokens seen.

    Args:
        metrics_file: the log. Incomplete lines, which a killed run may leave, are skipped.
        image_file: the PNG to write. If the log has no metrics, an old image is removed.
        baselines: metrics of trivial predictions by name, such as `mlm_loss`, drawn as dotted lines.
    """
    from matplotlib.ticker import PercentFormatter

    lines = _read_metrics(metrics_file)
    tasks = [task for task in TASKS if any(f"{task}_loss" in name for line in lines for name in line)]
    if not tasks:
        image_file.unlink(missing_ok=True)
        return
    unit, unit_name = _choose_unit(max(line["tokens"] for line in lines))
    figure = new_figure(6 * len(tasks) + 0.5, 8)
    panels = figure.subplots(3, len(tasks), sharex=True, squeeze=False, height_ratios=(4, 4, 1.3))
    rates = _curve(lines, "learning_rate", unit)
    for column, task in enumerate(tasks):
        for row, (measure, label) in enumerate(MEASURES.items()):
            name = f"{task}_{measure}"
            form, baseline = FORMATS[measure], (baselines or {}).get(name)
            draw_curves(panels[row, column], _curve(lines, name, unit), _curve(lines, f"eval_{name}", unit), form)
            if baseline is not None:
                text = f"baseline {baseline:{form}}"
                panels[row, column].axhline(baseline, color=GREY, linestyle=":", label=text)
            panels[row, column].legend(frameon=False)
            panels[row, column].set_ylabel(label)
            if measure == "accuracy":
                panels[row, column].yaxis.set_major_formatter(PercentFormatter(1))
        panels[0, column].set_title(TASKS[task], **TITLE)
        panels[2, column].plot(*rates, color=GREY, marker=marker(rates))
        panels[2, column].set_ylim(bottom=0)
        panels[2, column].set_ylabel("learning rate")
        panels[2, column].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        panels[2, column].set_xlabel(f"tokens seen{unit_name}")
        panels[2, column].set_xlim(left=0)
    for panel in panels.flat:
        tidy(panel)
    figure.savefig(image_file, format="png")


def _read_metrics(metrics_file: Path) -> list[dict[str, Any]]:
    """The complete lines of the log, in order, each with `tokens`. Empty before the first training line."""
    lines = []
    for text in metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    measured = [{"step": 0, "tokens": 0}, *(line for line in lines if "tokens" in line)]
    if len(measured) == 1:
        return []
    # Interpolation gives evaluation lines their tokens. All steps have nearly the same number.
    steps, tokens = [line["step"] for line in measured], [line["tokens"] for line in measured]
    lines = [{"tokens": float(np.interp(line["step"], steps, tokens))} | line for line in lines]
    return sorted(lines, key=lambda line: line["tokens"])


def _choose_unit(maximum: float) -> tuple[float, str]:
    for unit, name in ((1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)")):
        if maximum >= unit:
            return unit, name
    return 1, ""


def _curve(lines: list[dict[str, Any]], name: str, unit: float) -> Curve:
    points = [(line["tokens"] / unit, line[name]) for line in lines if name in line]
    return [x for x, _ in points], [y for _, y in points]
