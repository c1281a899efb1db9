"""The style of all plots, and training curves.

matplotlib is imported inside the functions, because importing it takes a second.
"""

import warnings
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"training": "#2b6cb0", "validation": "#d9480f"}
LINES = {"training": "-", "validation": "--"}  # so that the curves differ without color, too
GREY = "#666666"
TITLE: dict[str, Any] = {"fontsize": 13, "fontweight": "bold", "loc": "left"}
FEW_POINTS = 20
MANY_POINTS = 400  # a curve with more points is drawn pale, with the means of `MEANS` sections on top
MEANS = 200

Curve = tuple[list[float], list[float]]  # x and y of the points


def new_figure(width: float, height: float) -> "Figure":
    """Returns a white figure. Width and height are in inches of 130 pixels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches
    return Figure(figsize=(width, height), dpi=130, layout=layout, facecolor="white")


def save_figure(figure: "Figure", file: Path | IO[bytes]) -> None:
    """Writes a figure as PNG. Characters that the font lacks, such as emoji, become boxes without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(file, format="png")


def draw_curves(panel: "Axes", training: Curve, validation: Curve, number_format: str) -> None:
    """Draws a training and a validation curve. A curve without points is left out."""
    for name, (x, y) in {"training": training, "validation": validation}.items():
        if not y:
            continue
        label = f"{name}, last {y[-1]:{number_format}}"
        if len(y) > MANY_POINTS:
            panel.plot(x, y, color=COLORS[name], linewidth=0.6, alpha=0.35)
            x, y = _means(x), _means(y)
        panel.plot(x, y, LINES[name], color=COLORS[name], linewidth=1.7, marker=marker((x, y)), label=label)


def marker(curve: Curve) -> str | None:
    """Returns the marker of a curve: dots if there are few points. A line of one point would be invisible."""
    return "o" if len(curve[0]) <= FEW_POINTS else None


def _means(values: list[float]) -> list[float]:
    edges = [round(part * len(values) / MEANS) for part in range(MEANS + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def tidy(panel: "Axes", grid: Literal["both", "x", "y"] = "both") -> None:
    """Adds a faint grid and removes the box around the panel."""
    panel.grid(axis=grid, color="#e4e4e4", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
