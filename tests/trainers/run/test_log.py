"""Log lines of a training run."""

import pytest

from snugbert.trainers.run.log import format_log_line


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
            {"eval_a_mlm_loss": 0.5, "eval_exact_match": 81.25, "eval_a_runtime": 2.1, "epoch": 1},
            "eval  200/1000  epoch 1.00  a MLM loss 0.5000  exact match  81.25",
        ),
    ],
    ids=["step", "pretraining", "evaluation"],
)
def test_log_lines_are_short_and_aligned(logs, line):
    assert format_log_line(logs, 200, 1000) == line
