"""Training curves: what is drawn of few, many and no points."""

import numpy as np
import pytest

from snugbert.reports.plots import FEW_POINTS, MANY_POINTS, MEANS, draw_curves, marker, new_figure, tidy


def test_curves():
    panel = new_figure(4, 3).subplots()
    x = [float(step) for step in range(MANY_POINTS + 1)]
    y = [step**0.5 for step in x]
    draw_curves(panel, (x, y), ([1.0, 2.0], [3.0, 4.0]), ".2f")
    pale, means, validation = panel.lines
    assert list(pale.get_ydata()) == y and pale.get_alpha() < 1
    assert len(means.get_ydata()) == MEANS and np.mean(means.get_xdata()) == pytest.approx(np.mean(x), abs=1)
    assert list(validation.get_ydata()) == [3.0, 4.0] and validation.get_marker() == "o"
    assert means.get_linestyle() != validation.get_linestyle()  # they differ without color, too
    assert [line.get_label() for line in (means, validation)] == ["training, last 20.00", "validation, last 4.00"]


def test_a_curve_without_points_is_left_out():
    panel = new_figure(4, 3).subplots()
    draw_curves(panel, ([], []), ([1.0], [2.0]), ".0f")
    tidy(panel)
    (line,) = panel.lines
    assert line.get_label() == "validation, last 2"
    assert not panel.spines["top"].get_visible() and panel.spines["bottom"].get_visible()


def test_few_points_are_dots():
    points = [0.0] * FEW_POINTS
    assert marker((points, points)) == "o"
    assert marker(([*points, 0.0], [*points, 0.0])) is None
