"""Log lines, and the remaining time of a training run."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from snugbert import progress
from snugbert.progress import format_duration
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


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when it is set."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def take_steps(callback, clock, first, last, *, seconds=10, bar=False, logs=(), main=True):
    """Resumes a run of 1,000 steps at step `first`, up to step `last`. Trainer logs after the steps `logs`."""
    state = TrainerState(global_step=first, max_steps=1000, is_world_process_zero=main)
    args, control = SimpleNamespace(disable_tqdm=not bar, device=torch.device("cpu")), TrainerControl()
    callback.on_train_begin(args, state, control)
    while state.global_step < last:
        clock[0] += 300 if state.global_step == first else seconds  # the first step is slow
        state.global_step += 1
        control.should_log = state.global_step in logs
        callback.on_step_end(args, state, control)
        if control.should_log:
            callback.on_log(args, state, control, {"loss": 5.0})


def test_a_log_file_gets_a_line_at_once_and_then_every_ten_percent(clock, capsys):
    reads = []
    callback = LogLines(lambda: reads.append(1) or 6.5)
    take_steps(callback, clock, 0, 300)
    lines = capsys.readouterr().err.splitlines()
    # After 10 steps that are not the first, after 10 minutes, and after each further 10 minutes. 10 % take longer.
    assert lines == ["step    1/1000  loss 6.5000"] + [
        f"training: {step // 10} % of 1,000 steps, {format_duration(10 * (1000 - step))} left"
        for step in (12, 31, 91, 151, 211, 271)
    ]
    assert len(reads) == 1  # the host waits for the device only once


@pytest.mark.parametrize("logs", [(), (501,)], ids=["a late first entry", "logging_steps 1"])
def test_the_remaining_time_of_a_resumed_run_counts_its_own_steps(clock, capsys, logs):
    take_steps(LogLines(lambda: 6.5), clock, 500, 1000, seconds=2, logs=logs)
    loss = 5 if logs else 6.5
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(
        [
            f"step  501/1000  loss {loss:.4f}",
            "training: 51 % of 1,000 steps, 16 min 16 s left",
            "training: 60 % of 1,000 steps, 13 min 20 s left",
            "training: 70 % of 1,000 steps, 10 min 0 s left",
            "training: 80 % of 1,000 steps, 6 min 40 s left",
            "training: 90 % of 1,000 steps, 3 min 20 s left",
        ]
    )


def test_other_processes_print_nothing(clock, capsys):
    reads = []
    take_steps(LogLines(lambda: reads.append(1) or 6.5), clock, 0, 1000, main=False)
    assert reads == [1]  # together with the main process
    assert capsys.readouterr().err == ""


def test_the_bar_counts_only_new_steps_and_is_drawn_again_after_a_line(clock, capsys, monkeypatch):
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread
    state = TrainerState(global_step=500, max_steps=1000)
    args, control = SimpleNamespace(disable_tqdm=False, device=torch.device("cpu")), TrainerControl()
    bar = ProgressBar()
    bar.on_train_begin(args, state, control)
    assert bar.training_bar.format_dict["initial"] == 500
    take_steps(LogLines(lambda: 6.5), clock, 500, 502, bar=True)
    LogHandler().handle(logging.makeLogRecord({"msg": "a warning"}))
    for state.global_step, shows_remaining_time in ((501, False), (512, True)):
        bar.on_step_end(args, state, control)
        assert bar.training_bar.n == state.global_step
        assert (bar.training_bar.bar_format is None) == shows_remaining_time
    bar.on_train_end(args, state, control)
    screen = [part for part in re.split(r"[\r\n]+", capsys.readouterr().err) if part.strip()]
    kinds = ["bar" if part.startswith("training:") and "|" in part else part for part in screen]
    assert kinds == ["bar", "step  501/1000  loss 6.5000", "bar", "a warning", "bar", "bar"]
