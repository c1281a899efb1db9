"""Figures, to test the numbers that they show."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that were saved. All their text is inside the figure."""
    figures, save = [], Figure.savefig

    def record(figure, *args, **kwargs):
        save(figure, *args, **kwargs)
        extent = figure.get_tightbbox()  # inches
        assert min(extent.x0, extent.y0) >= 0
        assert extent.x1 <= figure.bbox_inches.x1 and extent.y1 <= figure.bbox_inches.y1
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", record)
    return figures
