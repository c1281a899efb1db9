"""The style of all plots, and the plots of a fine-tuning run with their captions.

matplotlib is imported inside the functions, because importing it takes a second. Scores are drawn in percent.
"""

import math
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from snugbert.reports.score_tables import is_score, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {"training": "#2b6cb0", "validation": "#d9480f"}
LINES = {"training": "-", "validation": "--"}  # so that the curves differ even without color
GREY = "#666666"
TITLE: dict[str, Any] = {"fontsize": 13, "fontweight": "bold", "loc": "left"}
FEW_POINTS = 20
FEW_LABELS = 30  # up to this many labels, the cells of a confusion matrix have room for text
LONGEST_LABEL = 32  # characters
SMALLEST_TYPE = 4.5  # points

# File name -> caption.
CAPTIONS = {
    "learning_curve.png": "Loss and score over the steps of training",
    "confusion_matrix.png": "Confusion matrix: one row per true label, one column per predicted label",
    "reliability.png": "Reliability: how often predictions are correct, by their probability",
}
PREFIXES = ("", "eval_ax_", "eval_mm_", "predict_", "predict_ax_", "predict_mm_")  # names of evaluation sets

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


def draw_curves(
    panel: "Axes", training: Curve, validation: Curve, number_format: str, baseline: float | None = None
) -> None:
    """Draws a training and a validation curve, and the baseline. A curve without points is left out."""
    for name, (x, y) in {"training": training, "validation": validation}.items():
        if not y:
            continue
        label = f"{name}, last {y[-1]:{number_format}}"
        marker = "o" if len(x) <= FEW_POINTS else None  # a line of one point would be invisible
        panel.plot(x, y, LINES[name], color=COLORS[name], linewidth=1.2, marker=marker, label=label)
    if baseline is not None and math.isfinite(baseline):
        panel.axhline(baseline, color=GREY, linestyle=":", label=f"baseline {baseline:{number_format}}")


def tidy(panel: "Axes") -> None:
    """Adds a faint grid and removes the box around the panel."""
    panel.grid(color="#e4e4e4", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


# --- fine-tuning ------------------------------------------------------------------------------------------------


def plot_file(folder: Path, set_name: str, plot: str) -> Path:
    """Returns the path of `plot`, a key of `CAPTIONS`. The prefix is the evaluation set, unless it is "eval"."""
    return folder / (plot if set_name == "eval" else f"{set_name}_{plot}")


def list_plots(output_dir: Path) -> list[Path]:
    """Returns the plots in the folder of a run, sorted by kind. Within a kind, the plot of "eval" is first."""
    files = [output_dir / f"{prefix}{name}" for name in CAPTIONS for prefix in PREFIXES]
    return [file for file in files if file.exists()]


def describe_plot(plot: Path) -> str:
    """Returns the caption of a plot, with the name of its evaluation set."""
    name = next(name for name in CAPTIONS if plot.name.endswith(name))
    set_name = plot.name.removesuffix(name).removesuffix("_")
    return CAPTIONS[name] + (f", {set_title(set_name)} examples" if set_name else "")


def draw_confusion_matrix(references: np.ndarray, predictions: np.ndarray, labels: list[str], file: Path) -> None:
    """Draws a confusion matrix. A cell is the fraction of its row's examples that got its column's label.

    Each row is a true label, with its number of examples. Each column is a predicted label. References and predictions
    are ids of `labels`. Nothing is drawn if there are no examples.
    """
    from sklearn.metrics import ConfusionMatrixDisplay

    if not len(references):
        return
    totals = np.bincount(references, minlength=len(labels))
    names = [_shorten(label) for label in labels]
    size = float(np.clip(0.5 * len(labels), 4, 20))  # inches
    type_size = float(np.clip(0.6 * 72 * size / len(labels), SMALLEST_TYPE, 10))
    figure = new_figure(size + 3, size + 2)
    panel = figure.subplots()
    ConfusionMatrixDisplay.from_predictions(
        references,
        predictions,
        labels=range(len(labels)),
        normalize="true",
        ax=panel,
        cmap="Blues",
        im_kw={"vmin": 0, "vmax": 1},
        include_values=len(labels) <= FEW_LABELS,
        values_format=".0%",
        text_kw={"fontsize": type_size},
    )
    shown = range(0, len(labels), math.ceil(SMALLEST_TYPE * len(labels) / (0.8 * 72 * size)))
    panel.set_xticks(shown, [names[i] for i in shown], rotation=90, fontsize=type_size)
    panel.set_yticks(shown, [f"{names[i]} ({totals[i]:,})" for i in shown], fontsize=type_size)
    panel.set_xlabel("predicted label")
    panel.set_ylabel("true label (count)")
    correct, total = int((references == predictions).sum()), len(references)
    panel.set_title(f"Confusion matrix\n{correct:,} of {total:,} correct ({correct / total:.1%})", **TITLE)
    save_figure(figure, file)


def _shorten(label: str) -> str:
    short = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
    return short.replace("$", r"\$")  # matplotlib reads text between two dollars as a formula


def draw_reliability(curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], file: Path) -> None:
    """Draws the share of correct labels over the probability.

    `curves`: "before" and "after" -> mean probability, share correct and count of each bin that is not empty.
    """
    from sklearn.calibration import CalibrationDisplay

    figure = new_figure(5.6, 5.6)
    panel = figure.subplots()
    for name, (means, shares, numbers) in curves.items():
        error = (numbers * abs(means - shares)).sum() / numbers.sum()
        label = f"{name}, expected calibration error {error:.1%}"
        CalibrationDisplay(shares, means, None).plot(ax=panel, name=label)
    panel.set(xlabel="probability", ylabel="share correct")
    panel.set_title("Reliability before and after calibration", **TITLE)
    tidy(panel)
    save_figure(figure, file)


def draw_learning_curve(
    log_history: list[dict[str, Any]], metric: str, perfect_score: int, baseline: float | None, file: Path
) -> None:
    """Draws the loss, and a metric on the validation examples, over the steps of a run. Scores are in percent.

    `metric` is named without "eval_". `perfect_score` is 1 or 100. `baseline`: None if unknown. Without log lines, no
    `file` is written.
    """
    percent = is_score(metric)
    factor, number = (100 / perfect_score, ".2f") if percent else (1, ".4f")

    def curve(name: str, factor: float = 1) -> Curve:
        lines = [line for line in log_history if math.isfinite(line.get(name, math.nan))]
        return [line["step"] for line in lines], [factor * line[name] for line in lines]

    losses, scores = (curve("loss"), curve("eval_loss")), curve(f"eval_{metric}", factor)
    has_loss, has_scores = any(y for _, y in losses), bool(scores[1])
    if not has_loss and not has_scores:
        return
    figure = new_figure(4.5 * (has_loss + has_scores), 4.5)
    panels = list(figure.subplots(1, has_loss + has_scores, squeeze=False)[0])
    if has_loss:
        draw_curves(panels[0], *losses, ".4f")
        panels[0].set_title("Loss", **TITLE)
        panels[0].set_ylabel("loss")
    if has_scores:
        draw_curves(panels[-1], ([], []), scores, number, None if baseline is None else factor * baseline)
        title = metric.replace("_", " ").replace("f1", "F1")
        panels[-1].set_title(f"Validation {title}", **TITLE)
        panels[-1].set_ylabel(f"{title} (percent)" if percent else title)
    last = log_history[-1]
    for panel in panels:
        panel.set_xlabel(f"step ({last['step'] / last['epoch']:,.0f} per epoch)")
        panel.set_xlim(0, 1.04 * last["step"])
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
        tidy(panel)
    save_figure(figure, file)
