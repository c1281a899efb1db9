"""The plot of minimal pairs."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from snugbert.evaluation.minimal_pairs import Pair, summarize
from snugbert.reports.evaluation_plots import MOST_BARS, draw_minimal_pairs


@pytest.fixture
def figures(monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: drawn.append(figure))
    return drawn


def make_pairs(kinds: list[tuple[str, str]]) -> list[Pair]:
    return [Pair("", "", paradigm, phenomenon, None, Path(), 1) for paradigm, phenomenon in kinds]


def test_bars_are_phenomena_and_dots_are_paradigms(figures):
    kinds = [("a", "x_y"), ("b", "x_y"), ("c", "z")]
    correct = np.array([[1, 0], [0, 0], [1, 1]], dtype=bool)
    draw_minimal_pairs(summarize(make_pairs(kinds), correct), Path())
    panel = figures[0].axes[0]
    assert [bar.get_width() for bar in panel.patches] == [0.5, 1]
    within, dots, _ = panel.lines
    assert list(within.get_xdata()) == [0, 1]
    assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == [(1, 0), (0, 0), (1, 1)]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["x y (2)", "z (1)"]
    assert panel.get_title(loc="left") == "mean over paradigms: 66.7%"


def test_many_phenomena(figures):
    pairs = make_pairs([(str(number), str(number)) for number in range(MOST_BARS + 1)])
    draw_minimal_pairs(summarize(pairs, np.ones((len(pairs), 2), dtype=bool)), Path())
    assert len(figures[0].axes[0].patches) == MOST_BARS
