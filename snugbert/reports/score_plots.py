"""The plots of a fine-tuning run, and their captions.

All scores are drawn in percent.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snugbert.card_snugbert import PLOT
from snugbert.reports.plots import COLORS, GREY, TITLE, Curve, draw_curves, new_figure, save_figure, tidy
from snugbert.reports.score_tables import is_score, set_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE = COLORS["training"], COLORS["validation"]
INK, BARS = "#222222", "#8fb3d9"
SMALLEST_RANGE = 1.0  # percentage points; equal scores would get an axis of a tenth of that
FEW_LABELS = 30  # up to this many labels, the cells of a confusion matrix have room for two lines of text
LONGEST_LABEL = 32  # characters
SMALLEST_TYPE = 4.5  # points; smaller text is left out
# Groups of answers by their number of words. The last group has no upper limit.
ANSWER_LENGTHS = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, math.inf))

# File name -> caption.
CAPTIONS = {
    "learning_curve.png": "Loss and score over the steps of training",
    "confusion_matrix.png": "Confusion matrix: one row per true label, one column per predicted label",
    "f1_by_answer_length.png": "F1 by the length of the correct answer",
    "thresholds.png": "Exact match and F1 by no-answer threshold",
    "reliability.png": "Reliability: how often predictions are correct, by their probability",
    "sweep.png": "Validation score of each run of the sweep by its settings",
}


def plot_file(folder: Path, set_name: str, plot: str) -> Path:
    """Returns the path of `plot`, a key of `CAPTIONS`. The prefix is the evaluation set, except for "eval"."""
    return folder / (plot if set_name == "eval" else f"{set_name}_{plot}")


def list_plots(output_dir: Path) -> list[Path]:
    """Returns the plots in the folder of a run by kind, with the plot of "eval" first."""
    plots = []
    for name in CAPTIONS:
        others = [file for file in sorted(output_dir.glob(f"*_{name}")) if PLOT.fullmatch(file.name)]
        plots += [file for file in (output_dir / name, *others) if file.exists()]
    return plots


def describe_plot(plot: Path) -> str:
    """Returns the caption of a plot, with the name of its evaluation set."""
    name = next(name for name in CAPTIONS if plot.name.endswith(name))
    set_name = plot.name.removesuffix(name).removesuffix("_")
    return CAPTIONS[name] + (f", {set_title(set_name)} examples" if set_name else "")


def remove_plots(output_dir: Path) -> None:
    """Removes the plots of an earlier run. Otherwise the next model card would show them."""
    for plot in list_plots(output_dir):
        plot.unlink()


def draw_confusion_matrix(references: np.ndarray, predictions: np.ndarray, labels: list[str], file: Path) -> None:
    """Draws a confusion matrix: how often each label was predicted for each true label.

    A row is a true label, a column a predicted label. The color shows the fraction of the row. Cells show counts
    if they fit, and the fraction too if there are at most `FEW_LABELS` labels.

    Args:
        references: ids of the true labels. *Shape:* (N,)
        predictions: ids of the predicted labels. *Shape:* (N,)
        labels: names, in the order of the ids.
        file: the plot, a PNG. It is not written if there are no examples.
    """
    if not len(references):
        return
    n = len(labels)
    counts = np.bincount(n * references + predictions, minlength=n * n).reshape(n, n)
    totals = counts.sum(axis=1)
    shares = counts / totals.clip(1)[:, None]
    cell = float(np.clip(9 / n, 0.45, 1.2)) if n <= FEW_LABELS else min(0.22, 20 / n)  # inches
    type_size = max(SMALLEST_TYPE, min(10, 0.55 * 72 * cell))
    shown = range(0, n, math.ceil(SMALLEST_TYPE / (0.55 * 72 * cell)))
    columns = [_shorten(label) for label in labels]
    rows = [f"{label} ({total:,})" for label, total in zip(columns, totals, strict=True)]
    upright = max(map(len, columns)) * 0.6 * type_size > 72 * cell
    letter = 0.6 * type_size / 72  # width of an average letter, in inches
    figure = new_figure(
        max(5.0, n * cell + letter * max(map(len, rows)) + (1.9 if n > FEW_LABELS else 0.9)),
        n * cell + (letter * max(map(len, columns)) if upright else 0.2) + 1.2,
    )
    panel = figure.subplots()
    image = panel.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    panel.set_xticks(shown, [columns[i] for i in shown], rotation=90 if upright else 0, fontsize=type_size)
    panel.set_yticks(shown, [rows[i] for i in shown], fontsize=type_size)
    cells = "\n(cells: count and share of the row)" if n <= FEW_LABELS else ""
    panel.set_xlabel(f"predicted label{cells}")
    panel.set_ylabel("true label (count)")
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    correct, total = int(counts.trace()), int(totals.sum())
    panel.set_title(f"Confusion matrix\n{correct:,} of {total:,} correct ({correct / total:.1%})", **TITLE)
    if n > FEW_LABELS:
        from matplotlib.ticker import PercentFormatter

        bar = figure.colorbar(image, label="share of the row", format=PercentFormatter(1), shrink=0.5, aspect=30)
        bar.outline.set_visible(False)
    _write_into_cells(panel, counts, shares, cell)
    save_figure(figure, file)


def _shorten(label: str) -> str:
    short = label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"
    return short.replace("$", r"\$")  # matplotlib reads text between two dollars as a formula


def _write_into_cells(panel: "Axes", counts: np.ndarray, shares: np.ndarray, cell: float) -> None:
    few = len(counts) <= FEW_LABELS
    letters = max(len(f"{counts.max():,}"), 4 if few else 2)
    type_size = min(10, 0.85 * 72 * cell / (0.6 * letters), 72 * cell / (1.3 * (2 if few else 1)))
    if type_size < SMALLEST_TYPE:
        return
    for (row, column), count in np.ndenumerate(counts):
        share = shares[row, column]
        if few or share >= 0.01:  # with many labels, leave out the rare cells
            text = f"{count:,}\n{share:.0%}" if few and count else f"{count:,}"
            color = "white" if share > 0.5 else INK if count else "#aaaaaa"
            # Excluded from the layout, which would measure thousands of texts.
            panel.text(column, row, text, ha="center", va="center", color=color, fontsize=type_size, in_layout=False)


def draw_f1_by_answer_length(lengths: np.ndarray, f1: np.ndarray, file: Path) -> None:
    """Draws the mean F1 by the length of the correct answer, with 95 % confidence intervals.

    Args:
        lengths: number of words in the correct answer. 0: the question has no answer. *Shape:* (N,)
        f1: F1 of each question, in percent. *Shape:* (N,)
        file: the plot, a PNG. It is not written if there are no questions.
    """
    if not len(lengths):
        return
    groups = {}
    for low, high in ANSWER_LENGTHS:
        group = f1[(low <= lengths) & (lengths <= high)]
        if len(group):
            words = f"{low}" if low == high else f"{low} or more" if high == math.inf else f"{low}-{high:g}"
            groups[f"{words if high else 'no answer'}\n({len(group):,})"] = group
    means = np.array([group.mean() for group in groups.values()])
    # 1.96 standard errors: 0 if all scores are equal, undefined for a single question. In both cases, no interval is
    # drawn. Intervals end at 0 and 100.
    margins = np.array([1.96 * g.std(ddof=1) / math.sqrt(len(g)) if len(g) > 1 else 0 for g in groups.values()])
    figure = new_figure(max(5.5, 1.5 + 0.85 * len(groups)), 4.6)
    panel = figure.subplots()
    panel.bar(range(len(groups)), means, width=0.7, color=BARS)
    panel.axhline(f1.mean(), color=ORANGE, linestyle=":", label=f"all questions ({len(f1):,}): {f1.mean():.1f}")
    ends = np.stack([(means - margins).clip(0), (means + margins).clip(max=100)])
    uncertain = np.flatnonzero(margins)
    if len(uncertain):
        panel.errorbar(
            uncertain,
            means[uncertain],
            abs(ends - means)[:, uncertain],
            fmt="none",
            ecolor=INK,
            elinewidth=1,
            capsize=3,
            label="95 % confidence interval",
        )
    for place, (mean, end) in enumerate(zip(means, ends[1], strict=True)):
        # The white box keeps the line of all questions away from the number.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        panel.text(place, end + 3, f"{mean:.1f}", ha="center", color=INK, bbox=box)
    panel.set_xticks(range(len(groups)), list(groups))
    panel.set_xlim(-0.6, max(len(groups), 4) - 0.4)
    panel.set_ylim(0, 110)
    panel.set_yticks(range(0, 101, 20))
    panel.set_ylabel("mean F1 (percent)")
    panel.set_xlabel("words in the correct answer (number of questions)")
    panel.set_title("F1 by length of the correct answer", **TITLE)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    tidy(panel, "y")
    save_figure(figure, file)


def draw_thresholds(thresholds: np.ndarray, exact: np.ndarray, f1: np.ndarray, chosen: float, file: Path) -> None:
    """Draws exact match and F1 over the threshold above which the predicted answer is "no answer".

    Args:
        thresholds: thresholds in ascending order. The first is -inf: every question gets "no answer". *Shape:* (K,)
        exact: exact match for each threshold, in percent. *Shape:* (K,)
        f1: F1 for each threshold, in percent. *Shape:* (K,)
        chosen: the threshold of the predictions.
        file: the plot, a PNG. It is not written if -inf is the only threshold.
    """
    if len(thresholds) < 2:
        return
    # A score is constant from its threshold to the next. The first and the last score reach the edges of the plot.
    at = int(np.searchsorted(thresholds, chosen, side="right")) - 1
    shown = [*thresholds[1:], chosen] if np.isfinite(chosen) else thresholds[1:]
    low, high = min(shown), max(shown)
    margin = 0.03 * (high - low or 1.0)
    drawn = np.array([low - margin, *thresholds[1:], high + margin])
    figure = new_figure(8, 4.6)
    panel = figure.subplots()
    panel.set_xlim(drawn[0], drawn[-1])
    for name, scores, color, line in (("F1", f1, BLUE, "-"), ("exact match", exact, ORANGE, "--")):
        label = f"{name}, {scores[at]:.1f} at the chosen threshold"
        style: dict[str, Any] = {"color": color, "linestyle": line, "linewidth": 1.7}
        panel.plot(drawn, [*scores, scores[-1]], drawstyle="steps-post", label=label, **style)
    panel.axvline(
        np.clip(chosen, drawn[0], drawn[-1]), color=GREY, linestyle=":", label=f"chosen threshold, {chosen:.2f}"
    )
    best = int(f1.argmax())
    where = f"at {thresholds[best]:.2f}" if best else "without any answer"
    diamond: dict[str, Any] = {"linestyle": "", "marker": "D", "color": INK, "clip_on": False, "zorder": 3}
    panel.plot([drawn[best]], [f1[best]], label=f"best F1, {f1[best]:.1f} {where}", **diamond)
    panel.set_xlabel('threshold: questions with a higher no-answer score get "no answer"')
    panel.set_ylabel("score (percent)")
    panel.set_title("F1 and exact match by no-answer threshold", **TITLE)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    tidy(panel)
    save_figure(figure, file)


def draw_reliability(curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], file: Path) -> None:
    """Draws the share of correct labels over the probability, and the number of labels.

    Args:
        curves: "before" and "after" -> mean probability, share correct and number of each bin that is not empty.
        file: the plot, a PNG.
    """
    from matplotlib.ticker import PercentFormatter

    figure = new_figure(5.6, 6.2)
    panel, counts = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    panel.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="perfectly calibrated")
    for (name, (means, shares, numbers)), color, line, width in zip(
        curves.items(), (ORANGE, BLUE), ("--", "-"), (0.022, 0.014), strict=True
    ):
        error = (numbers * abs(means - shares)).sum() / numbers.sum()
        label = f"{name}, expected calibration error {error:.1%}"
        panel.plot(means, shares, line, color=color, marker="o", markersize=5, linewidth=1.7, label=label)
        counts.bar(means, numbers, width=width, color=color, alpha=0.7)
    panel.set_ylabel("share correct")
    panel.yaxis.set_major_formatter(PercentFormatter(1))
    counts.set_ylabel("number")
    counts.set_xlabel("probability")
    counts.xaxis.set_major_formatter(PercentFormatter(1))
    panel.set_title("Reliability before and after calibration", **TITLE)
    figure.legend(loc="outside lower center", frameon=False)
    for each in (panel, counts):
        tidy(each)
    save_figure(figure, file)


def draw_learning_curve(
    log_history: list[dict[str, Any]],
    metric: str,
    perfect_score: int,
    final: dict[str, float],
    baseline: float | None,
    file: Path,
) -> None:
    """Draws the loss, and a metric on the validation examples, over the steps of a run. Scores are in percent.

    Args:
        log_history: `trainer.state.log_history`.
        metric: name of the metric, without "eval_".
        perfect_score: the value of a perfect score: 1 or 100.
        final: `step` of the final model, and its `loss` and `metric` on the validation examples. Empty: unknown.
        baseline: the metric of the baseline. None: unknown.
        file: the plot, a PNG. It is not written if nothing was logged.
    """
    percent = is_score(metric)
    factors = {metric: 100 / perfect_score if percent else 1, "loss": 1}

    def curve(line_name: str, name: str) -> Curve:
        lines = [line for line in log_history if math.isfinite(line.get(line_name, math.nan))]
        return [line["step"] for line in lines], [factors[name] * line[line_name] for line in lines]

    final = {name: factors.get(name, 1) * value for name, value in final.items() if math.isfinite(value)}
    curves = {"loss": (curve("loss", "loss"), curve("eval_loss", "loss"))}
    curves[metric] = ([], []), curve(f"eval_{metric}", metric)
    curves = {name: pair for name, pair in curves.items() if pair[0][1] or pair[1][1] or name in final}
    if not curves:
        return
    figure = new_figure(4.5 * len(curves), 4.5)
    for panel, (name, (training, validation)) in zip(
        figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True
    ):
        number = ".2f" if name == metric and percent else ".4f"
        draw_curves(panel, training, validation, number)
        if name in final:
            label = f"validation, final model {final[name]:{number}}"
            diamond: dict[str, Any] = {"marker": "D", "markersize": 7, "color": INK, "clip_on": False, "zorder": 3}
            panel.plot([final["step"]], [final[name]], linestyle="", label=label, **diamond)
        if name == metric and baseline is not None and math.isfinite(baseline):
            height = factors[metric] * baseline
            panel.axhline(height, color=GREY, linestyle=":", label=f"baseline {height:{number}}")
        if name == metric and not validation[1]:  # a single score; a narrow scale would exaggerate differences
            panel.set_ylim(bottom=min(0, *panel.get_ylim()))
        if name == metric and percent:
            low, high = panel.get_ylim()
            panel.set_ylim(top=max(high, low + SMALLEST_RANGE))
        title = name.replace("_", " ").replace("f1", "F1")
        panel.set_title("Loss" if name == "loss" else f"Validation {title}", **TITLE)
        panel.set_ylabel(f"{title} (percent)" if name == metric and percent else title)
        panel.set_xlabel(f"step ({log_history[-1]['step'] / log_history[-1]['epoch']:,.0f} per epoch)")
        panel.set_xlim(0, 1.04 * log_history[-1]["step"])
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False)
        tidy(panel)
    save_figure(figure, file)
