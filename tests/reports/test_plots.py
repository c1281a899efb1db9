"""Plots show the right numbers. Their text fits and does not overlap."""

import math
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import confusion_matrix

from snugbert.reports.plots import draw_confusion_matrix, draw_learning_curve, draw_reliability
from snugbert.reports.pretraining_plots import draw_training

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that were saved. All their text is inside the figure."""
    figures = []

    def record(figure, *args, **kwargs):
        figure.draw_without_rendering()
        extent = figure.get_tightbbox()  # inches
        assert min(extent.x0, extent.y0) >= 0
        assert extent.x1 <= figure.bbox_inches.x1 and extent.y1 <= figure.bbox_inches.y1
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", record)
    return figures


def words(texts) -> list[str]:
    return [text.get_text() for text in texts]


@pytest.mark.parametrize("classes", [2, pytest.param(31, marks=pytest.mark.slow)])
def test_confusion_matrix(tmp_path, figures, recwarn, classes):
    generator = np.random.default_rng(classes)
    right = generator.integers(0, classes - 1, 40 * classes)  # none of the last label
    given = np.where(generator.random(len(right)) < 0.8, right, generator.integers(0, classes, len(right)))
    labels = [f"the_label_{i}" for i in range(classes)]
    labels[1] = "🙂 costs $5 or $6, in " + "a very " * 100 + "long name"  # the font has no emoji
    draw_confusion_matrix(right, given, labels, tmp_path / "plot.png")
    panel = figures[0].axes[0]
    shares = confusion_matrix(right, given, labels=range(classes), normalize="true")
    np.testing.assert_allclose(panel.images[0].get_array(), shares)
    correct = f"{(right == given).sum():,} of {len(right):,} correct ({(right == given).mean():.1%})"
    assert panel.get_title("left") == f"Confusion matrix\n{correct}"
    rows = words(panel.get_yticklabels())
    assert rows[0] == f"the_label_0 ({(right == 0).sum()})" and rows[-1].endswith(" (0)")
    assert len(rows) == classes and len(rows[1]) < 50
    for ticks in (panel.get_xticklabels(), panel.get_yticklabels()):
        assert not any(a.get_window_extent().overlaps(b.get_window_extent()) for a, b in pairwise(ticks))
    assert len(panel.texts) == (classes**2 if classes <= 30 else 0)
    assert not recwarn.list


def test_learning_curve(tmp_path, figures):
    def draw(log, *arguments):
        draw_learning_curve(log, *arguments, tmp_path / "plot.png")
        return figures.pop().axes

    training = [{"loss": 1 / step, "learning_rate": 1e-5, "epoch": step / 10, "step": step} for step in range(1, 31)]
    evaluations = ((0.5, 0.8, 1.0, 10), (0.4, 0.9, 2.0, 20))
    validation = [
        dict(zip(("eval_loss", "eval_accuracy", "epoch", "step"), each, strict=True)) for each in evaluations
    ]
    end = [{"train_runtime": 3.0, "train_loss": 0.2, "epoch": 3.0, "step": 30}]
    loss, accuracy = draw([*training, *validation, *end], "accuracy", 1, 0.25)
    assert loss.get_xlabel() == accuracy.get_xlabel() == "step (10 per epoch)"
    assert list(loss.lines[0].get_xdata()) == [line["step"] for line in training]
    assert list(loss.lines[1].get_ydata()) == [0.5, 0.4]
    assert list(accuracy.lines[0].get_xdata()) == [10, 20] and list(accuracy.lines[0].get_ydata()) == [80, 90]
    ends = ["training, last 0.0333", "validation, last 0.4000"]
    assert words(loss.get_legend().get_texts()) == ends
    assert words(accuracy.get_legend().get_texts()) == ["validation, last 90.00", "baseline 25.00"]

    # An error is not a score. Without a score, or with an undefined one, there is only the loss.
    scored = {"eval_mse": 2.5, "eval_pearson": math.nan, "epoch": 1.0, "step": 10}
    _, error = draw([*training, scored], "mse", 1, 3.0)
    assert words(error.get_legend().get_texts()) == ["validation, last 2.5000", "baseline 3.0000"]
    for log in (training, [*training, scored]):
        assert len(draw(log, "pearson", 1, math.nan)) == 1


def test_reliability(tmp_path, figures):
    before = np.array([0.5, 0.75]), np.array([0.25, 0.75]), np.array([10, 30])
    after = np.array([0.25, 0.75]), np.array([0.25, 0.75]), np.array([10, 30])
    draw_reliability({"before": before, "after": after}, tmp_path / "plot.png")
    errors = [f"{name}, expected calibration error {error}" for name, error in (("before", "6.2%"), ("after", "0.0%"))]
    assert words(figures[0].axes[0].get_legend().get_texts()) == ["Perfectly calibrated", *errors]


def test_no_plot_without_data(tmp_path):
    file, none = tmp_path / "plot.png", np.array([])
    draw_confusion_matrix(none, none, ["a", "b"], file)
    draw_learning_curve([{"train_runtime": 3.0, "step": 1, "epoch": 1.0}], "accuracy", 1, None, file)
    draw_training([{"step": 3, "train_runtime": 3.0}], file)
    assert not file.exists()


@pytest.mark.slow
def test_curves_with_and_without_validation(tmp_path, figures):
    picture, losses = tmp_path / "training.png", [6 - number / 1000 for number in range(1, 21)]
    training = [
        {"step": i + 1, "tokens": 4096 * i, "learning_rate": 1e-3, "tokens_per_second": 900}
        | {"mlm_loss": loss, "mlm_accuracy": 0.1, "grad_norm": math.nan if i == 8 else 1.0}
        for i, loss in enumerate(losses)
    ]
    draw_training(training, picture)
    assert [list(curve.get_ydata()) for curve in figures[0].axes[0].lines] == [losses]

    # Sentence pairs are a second column.
    training = [line | {"nsp_loss": 0.6, "nsp_accuracy": 0.7} for line in training]
    evaluated = {f"eval_{name}": value / 2 for name, value in training[-1].items() if "_" in name} | {"step": 20}
    mixed = [*training, evaluated, {"step": 20, "train_runtime": 3.0}]
    draw_training(mixed, picture, {"mlm_loss": 6.5, "mlm_accuracy": 0.05, "nsp_accuracy": 0.5})
    panels = figures[1].axes
    assert [panel.get_ylabel() for panel in panels] == ["loss (nats)", "loss (nats)", "accuracy", "accuracy"]
    assert [panel.lines[1].get_ydata() for panel in panels[:4]] == [[2.99], [0.3], [0.05], [0.35]]
    named = [words(panel.get_legend().get_texts()) for panel in panels]
    baselines = [[text for text in texts if "baseline" in text] for texts in named]
    assert baselines == [["baseline 6.500"], [], ["baseline 5.0%"], ["baseline 50.0%"]]
