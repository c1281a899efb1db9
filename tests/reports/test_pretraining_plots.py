"""The plots of pretraining: training curves, and accuracies on minimal pairs."""

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from snugbert.reports.pretraining_plots import draw_training

pytestmark = pytest.mark.usefixtures("pictures")


def log_line(number: int, next_sentences: bool) -> dict[str, float]:
    line = {"step": number, "tokens": 4096 * number, "learning_rate": 1e-3 / number, "tokens_per_second": 900}
    line |= {"mlm_loss": 6 - number / 1000, "mlm_accuracy": 0.1, "grad_norm": 1 / number if number != 8 else math.nan}
    return line | ({"nsp_loss": 0.6, "nsp_accuracy": 0.7} if next_sentences else {})


def evaluated(line: dict[str, float]) -> dict[str, float]:
    return {"step": line["step"]} | {f"eval_{name}": value / 2 for name, value in line.items() if "_" in name}


def pixels(image_file, color: tuple[int, int, int]) -> int:
    return int((np.asarray(Image.open(image_file).convert("RGB")) == color).all(-1).sum())


BLUE, ORANGE = (0x2B, 0x6C, 0xB0), (0xD9, 0x48, 0x0F)  # of training and validation


@pytest.mark.parametrize("lines", [1, 3000])
def test_plots_of_training_with_and_without_validation(tmp_path, monkeypatch, lines):
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: (figures.append(figure), save(figure, *args, **kw))
    )
    log, picture = tmp_path / "metrics.jsonl", tmp_path / "training.png"
    training = [log_line(number, next_sentences=False) for number in range(1, lines + 1)]
    whole = "".join(json.dumps(line) + "\n" for line in training)
    log.write_text(whole)
    draw_training(log, picture)
    blue, width = pixels(picture, BLUE), Image.open(picture).width
    assert blue > 50 and pixels(picture, ORANGE) == 0

    # A killed run leaves an incomplete line. Sentence pairs are a second column.
    training = [log_line(number, next_sentences=True) for number in range(1, lines + 1)]
    mixed = [*training, evaluated(training[-1]), {"step": lines, "train_runtime": 3.0}]
    log.write_text("".join(json.dumps(line) + "\n" for line in mixed) + '{"tokens": 4096, "mlm_lo')
    draw_training(log, picture, {"mlm_loss": 6.5, "mlm_accuracy": 0.05, "nsp_accuracy": 0.5})
    assert pixels(picture, BLUE) > 1.5 * blue and pixels(picture, ORANGE) > 50
    assert Image.open(picture).width > 1.5 * width
    panels = figures[-1].axes
    assert [panel.get_ylabel() for panel in panels] == [
        *("loss (nats)", "loss (nats)", "accuracy", "accuracy"),
        *("learning rate", "gradient norm", "tokens / s"),
    ]
    named = [{text.get_text() for text in panel.get_legend().get_texts()} for panel in panels[:4]]
    assert all(any(text.startswith("validation, last") for text in texts) for texts in named)
    baselines = [[text for text in texts if "baseline" in text] for texts in named]
    assert baselines == [["baseline 6.500"], [], ["baseline 5.0%"], ["baseline 50.0%"]]


def test_an_empty_log_has_no_plot(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "train_runtime": 3.0}\n\n{"tok')
    draw_training(tmp_path / "metrics.jsonl", tmp_path / "training.png")
    assert not (tmp_path / "training.png").exists()
