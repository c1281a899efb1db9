"""The plot of pretraining: training curves."""

import math

from snugbert.reports.pretraining_plots import draw_training


def log_line(number: int, next_sentences: bool) -> dict[str, float]:
    line = {"step": number, "tokens": 4096 * number, "learning_rate": 1e-3 / number, "tokens_per_second": 900}
    line |= {"mlm_loss": 6 - number / 1000, "mlm_accuracy": 0.1, "grad_norm": 1 / number if number != 8 else math.nan}
    return line | ({"nsp_loss": 0.6, "nsp_accuracy": 0.7} if next_sentences else {})


def evaluated(line: dict[str, float]) -> dict[str, float]:
    return {"step": line["step"]} | {f"eval_{name}": value / 2 for name, value in line.items() if "_" in name}


def test_curves_with_and_without_validation(tmp_path, figures):
    lines = 20
    picture = tmp_path / "training.png"
    draw_training([log_line(number, False) for number in range(1, lines + 1)], picture)
    loss = figures[0].axes[0].lines
    assert [list(curve.get_ydata()) for curve in loss] == [[6 - number / 1000 for number in range(1, lines + 1)]]

    # Sentence pairs are a second column.
    training = [log_line(number, True) for number in range(1, lines + 1)]
    mixed = [*training, evaluated(training[-1]), {"step": lines, "train_runtime": 3.0}]
    draw_training(mixed, picture, {"mlm_loss": 6.5, "mlm_accuracy": 0.05, "nsp_accuracy": 0.5})
    panels = figures[1].axes
    assert [panel.get_ylabel() for panel in panels] == ["loss (nats)", "loss (nats)", "accuracy", "accuracy"]
    assert [panel.lines[1].get_ydata() for panel in panels[:4]] == [[3 - lines / 2000], [0.3], [0.05], [0.35]]
    named = [[text.get_text() for text in panel.get_legend().get_texts()] for panel in panels[:4]]
    baselines = [[text for text in texts if "baseline" in text] for texts in named]
    assert baselines == [["baseline 6.500"], [], ["baseline 5.0%"], ["baseline 50.0%"]]
    draw_training([{"step": 3, "train_runtime": 3.0}], tmp_path / "empty.png")
    assert picture.exists() and not (tmp_path / "empty.png").exists()
