"""The look that the pictures of all commands have in common, and the curves of a run.

matplotlib is imported where it is used: it takes a second, which no other part of a run needs.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {"training": "#2b6cb0", "validation": "#d9480f"}
GREY = "#666666"
TITLE: dict[str, Any] = {"fontsize": 13, "fontweight": "bold", "loc": "left"}
FEW_POINTS = 20
MANY_POINTS = 400  # a curve of more points is drawn pale, with the means of `MEANS` stretches over it
MEANS = 200

Curve = tuple[list[float], list[float]]  # x and y of its points


def new_figure(width: float, height: float) -> "Figure":
    """A white figure of that many inches, of 130 dots each."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches
    return Figure(figsize=(width, height), dpi=130, layout=layout, facecolor="white")


def draw_curves(panel: Any, training: Curve, validation: Curve, form: str) -> None:
    """Draws the two curves of a figure, as far as there are any; `form` is that of their last values in the legend."""
    for name, (x, y) in {"training": training, "validation": validation}.items():
        if not y:
            continue
        label = f"{name}, last {y[-1]:{form}}"
        if len(y) > MANY_POINTS:
            panel.plot(x, y, color=COLORS[name], linewidth=0.6, alpha=0.35)
            x, y = _means(x), _means(y)
        panel.plot(x, y, color=COLORS[name], linewidth=1.7, marker=marker((x, y)), label=label)


def marker(curve: Curve) -> str | None:
    """What the points of a curve are drawn as: dots where they are few; a line of one point would be none."""
    return "o" if len(curve[0]) <= FEW_POINTS else None


def _means(values: list[float]) -> list[float]:
    edges = [round(part * len(values) / MEANS) for part in range(MEANS + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def tidy(panel: Any, grid: Literal["both", "x", "y"] = "both") -> None:
    """Puts a faint grid behind the panel and takes away the box around it."""
    panel.grid(axis=grid, color="#e4e4e4", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
