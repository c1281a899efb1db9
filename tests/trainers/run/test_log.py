"""Log lines, and the remaining time of a training run."""

import logging
import re
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from snugbert.trainers.run.log import LogHandler, LogLines, ProgressBar, format_log_line


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        (
            {"loss": 6.521, "grad_norm": 1.31917, "learning_rate": 9e-05, "epoch": 0.609, "tokens": 12},
            "step  200/1000  epoch 0.61  loss 6.5210  grad norm 1.3192  learning rate 9.0e-05",
        ),
        (
            {"loss": float("nan"), "mlm_loss": 10.3421, "tokens_per_second": 123456, "mfu": 0.5},
            "step  200/1000  loss    nan  MLM loss  10.34  tokens/s 123,456  MFU 0.5000",
        ),
        (
            {
                "eval_loss": 0.5,
                "eval_exact_match": 81.25,
                "eval_runtime": 2.1,
                "eval_samples_per_second": 7,
                "epoch": 1,
            },
            "eval  200/1000  epoch 1.00  loss 0.5000  exact match  81.25",
        ),
        (
            {"eval_a_mlm_loss": 0.5, "eval_a_runtime": 2.1, "eval_a_samples_per_second": 7, "epoch": 1},
            "eval  200/1000  epoch 1.00  a MLM loss 0.5000",
        ),
    ],
    ids=["step", "pretraining", "evaluation", "evaluation set"],
)
def test_log_lines_are_short_and_aligned(logs, line):
    assert format_log_line(logs, 200, 1000) == line


def test_the_bar_counts_only_new_steps_and_is_drawn_again_after_a_line(capsys, monkeypatch):
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread
    monkeypatch.setattr("snugbert.progress.is_terminal", lambda: True)
    state, args, control = TrainerState(global_step=500, max_steps=1000), SimpleNamespace(), TrainerControl()
    bar = ProgressBar()
    bar.on_train_begin(args, state, control)
    assert bar.training_bar.initial == 500
    LogHandler().handle(logging.makeLogRecord({"msg": "a warning"}))
    state.global_step = 512
    bar.on_step_end(args, state, control)
    LogLines().on_log(args, state, control, {"loss": 6.5})
    assert bar.training_bar.n == 512
    bar.on_train_end(args, state, control)
    screen = [part for part in re.split(r"[\r\n]+", capsys.readouterr().err) if part.strip()]
    kinds = ["bar" if part.startswith("training:") and "|" in part else part for part in screen]
    assert kinds == ["bar", "a warning", "bar", "step  512/1000  loss 6.5000", "bar", "bar"]


def test_other_processes_print_nothing(capsys):
    state = TrainerState(global_step=1, max_steps=10, is_world_process_zero=False)
    for callback in (ProgressBar(), LogLines()):
        callback.on_train_begin(None, state, None)
        callback.on_log(None, state, None, {"loss": 5.0})
    assert capsys.readouterr().err == ""
