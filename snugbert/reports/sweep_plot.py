"""The plot of a sweep: the validation score of each setting, by every flag that varies."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugbert.reports.plots import COLORS, GREY, new_figure, save_figure, tidy
from snugbert.reports.score_tables import is_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS_OF_PANELS = 3
FEW_VALUES = 5  # up to this many values, each has a tick
WIDE = 10  # a range whose ends have at least this ratio gets a logarithmic axis


def draw_sweep(summary: Mapping[str, Any], columns: Sequence[str], perfect_score: int, file: Path) -> None:
    """Draws a panel for each flag that varies. Points are means of settings, with bars of one standard deviation.

    Args:
        summary: see [`summarize_sweep`].
        columns: the names of the settings.
        perfect_score: the value of a perfect score: 1 or 100.
        file: the plot, a PNG. It is not written if nothing varies.
    """
    metric = summary["chosen_by"].partition("_")[2]
    factor = 100 / perfect_score if is_score(metric) else 1
    best = summary["best_setting"]
    rows = [
        {**row, "kind": "best" if row == best else "complete", "height": factor * row["mean"]}
        for row in summary["settings"]
    ]
    rows += [{**row, "kind": "stopped", "height": factor * row["scores"][-1]} for row in summary.get("stopped", [])]
    rows = [row for row in rows if math.isfinite(row["height"])]
    varied = [name for name in columns if len({str(row[name]) for row in rows}) > 1]
    if not varied:
        return
    width = min(COLUMNS_OF_PANELS, len(varied))
    height = math.ceil(len(varied) / width)
    figure = new_figure(max(6.0, 4.0 * width), 3.6 * height + 0.6)
    panels = figure.subplots(height, width, squeeze=False, sharey=True).flatten()
    for panel, name in zip(panels, varied, strict=False):
        _draw_panel(panel, rows, name, factor)
    for panel in panels[len(varied) :]:
        panel.set_visible(False)
    title = metric.replace("_", " ").replace("f1", "F1")
    figure.supylabel(f"validation {title}{' (percent)' if is_score(metric) else ''}", fontsize="medium")
    figure.suptitle(f"Validation {title} by setting", fontsize=13, fontweight="bold")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    save_figure(figure, file)


def _draw_panel(panel: "Axes", rows: Sequence[Mapping[str, Any]], name: str, factor: float) -> None:
    values = [row[name] for row in rows]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = {str(value): place for place, value in enumerate(dict.fromkeys(map(str, values)))}
    styles: dict[str, tuple[str, dict[str, Any]]] = {
        "complete": ("setting", {"marker": "o", "color": COLORS["training"]}),
        "stopped": ("stopped early, last score", {"marker": "x", "color": GREY}),
        "best": ("best setting", {"marker": "D", "color": COLORS["validation"], "zorder": 3}),
    }
    for kind, (label, style) in styles.items():
        chosen = [row for row in rows if row["kind"] == kind]
        if chosen:
            x = [row[name] if numeric else places[str(row[name])] for row in chosen]
            spread = [factor * row.get("std", math.nan) for row in chosen]
            bars = [each if math.isfinite(each) else 0 for each in spread]
            panel.errorbar(x, [row["height"] for row in chosen], bars, linestyle="", capsize=2, label=label, **style)
    if not numeric:
        panel.set_xticks(range(len(places)), list(places))
        panel.set_xlim(-0.5, len(places) - 0.5)
    elif min(values) > 0 and max(values) >= WIDE * min(values):
        panel.set_xscale("log")
    elif len(places) <= FEW_VALUES:
        panel.set_xticks(sorted(set(values)))
    panel.set_xlabel(name.replace("_", " "))
    tidy(panel)
