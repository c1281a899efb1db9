"""The plot of minimal pairs."""

from itertools import islice
from pathlib import Path
from typing import Any

from snugbert.reports.plots import COLORS, GREY, TITLE, new_figure, tidy

PLOT_NAME = "minimal_pairs.png"
MOST_BARS = 100


def draw_minimal_pairs(results: dict[str, Any], file: Path) -> None:
    """Draws the accuracy on each phenomenon as a bar, with a dot for each of its paradigms.

    Only the first `MOST_BARS` are drawn.

    Args:
        results: from [`score_pairs`].
        file: the plot, a PNG.
    """
    from matplotlib.ticker import PercentFormatter

    groups: dict[str, Any] = dict(islice(results["phenomena"].items(), MOST_BARS))
    names = [f"{name.replace('_', ' ')} ({group['pairs']:,})".replace("$", r"\$") for name, group in groups.items()]
    places = range(len(groups))
    figure = new_figure(6.5 + 0.08 * max(map(len, names)), 1.5 + 0.32 * len(groups))
    panel = figure.subplots()
    bars = [group["accuracy"]["original"] for group in groups.values()]
    panel.barh(places, bars, height=0.6, color=COLORS["training"], alpha=0.55, label="pseudo-log-likelihood")
    panel.plot(
        [group["accuracy"]["within_word_l2r"] for group in groups.values()],
        places,
        marker="|",
        markersize=13,
        markeredgewidth=2,
        linestyle="",
        color=COLORS["validation"],
        label="within-word left-to-right",
        clip_on=False,
    )
    dots = [
        (paradigm["accuracy"]["original"], list(groups).index(paradigm["phenomenon"]))
        for paradigm in results["paradigms"].values()
        if paradigm["phenomenon"] in groups
    ]
    panel.plot(*zip(*dots, strict=True), "o", markersize=3, color=GREY, label="one paradigm", clip_on=False)
    panel.axvline(0.5, color=GREY, linestyle=":", label="chance")
    for place, value in enumerate(bars):
        panel.text(1.03, place, f"{value:.1%}", va="center")
    panel.set_yticks(places, names)
    panel.set_ylim(len(groups) - 0.5, -0.5)  # the first group on top
    panel.set_xlim(0, 1)
    panel.xaxis.set_major_formatter(PercentFormatter(1))
    panel.set_title(f"mean over paradigms: {results['accuracy']['original']:.1%}", **TITLE)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, reverse=True)
    tidy(panel, "x")
    figure.savefig(file, format="png")
