"""Log lines and durations."""

import pytest

from snugbert.trainers.log_lines import format_duration, format_log_line


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


def test_durations():
    assert [format_duration(seconds) for seconds in (0.4, 59.6, 3599, 3601, 90000)] == [
        *("0 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "25 h 0 min")
    ]
