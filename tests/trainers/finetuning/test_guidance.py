"""A run that does not beat its baseline says so and suggests what to try."""

import dataclasses
import math

import pytest
from finetuning_examples import arguments, make_task, make_tokenizer

from snugbert.trainers.finetuning.guidance import describe_shortfalls, describe_wide_intervals
from snugbert.trainers.finetuning.run import fine_tune
from snugbert.trainers.finetuning.task import Baseline

ADVICE = (
    "Try longer training (--num_train_epochs 9), another learning rate (--learning_rate 3e-04 or 3e-03), "
    "more examples, or a larger pretrained checkpoint."
)


@pytest.mark.parametrize(
    ("metric", "score", "baseline", "told"),
    [
        ("accuracy", 0.26, 0.25, None),
        ("accuracy", 0.25, 0.25, "Validation: accuracy 25.00 does not beat the baseline, 25.00 (always 'few')."),
        ("mse", 2.0, 2.5, None),
        ("mse", 3.0, 2.5, "Validation: mse 3.0000 does not beat the baseline, 2.5000 (always 'few')."),
        ("pearson", 0.1, math.nan, None),
        ("pearson", -0.1, math.nan, "Validation: pearson -10.00 does not beat the baseline, 0.00 (the correlation of"),
        ("pearson", math.nan, math.nan, "Validation: pearson is undefined, because all predictions or"),
        ("matthews_correlation", 0.0, 0.0, "Validation: matthews correlation 0.00 does not beat"),
    ],
)  # fmt: skip
def test_shortfalls(metric, score, baseline, told, tmp_path):
    task = make_task(make_tokenizer(), 3)
    task.main_metric = metric
    task.evaluation_sets[0].baseline = Baseline("always 'few'", {metric: baseline})
    task.evaluation_sets += [dataclasses.replace(task.evaluation_sets[0], name="predict", baseline=None)]
    metrics = {"eval": {metric: score}, "predict": {}}
    sentences = describe_shortfalls(task, metrics, arguments(tmp_path), trained=True)
    if told is None:
        assert sentences == []
    else:
        assert sentences[0].startswith(told) and sentences[1:] == [ADVICE]
    (check,) = describe_shortfalls(task, metrics, arguments(tmp_path), trained=False)[1:] or [None]
    assert check is None or check.startswith("Check that the checkpoint was fine-tuned for this task")


@pytest.mark.parametrize(("perfect_score", "metric"), [(1, "accuracy"), (100, "f1")])
def test_wide_intervals(perfect_score, metric):
    """Warnings cover only the main metric, in points out of 100."""
    task = make_task(make_tokenizer(), 3)
    task.main_metric, task.perfect_score = metric, perfect_score
    ends = {"eval": (0.4, 0.5), "eval_mm": (0.4, 0.625), "predict": (1.0, 1.0), "predict_ax": None}
    intervals = {
        name: {metric: pair and [perfect_score * end for end in pair], "other": (0, 1)} for name, pair in ends.items()
    }
    assert describe_wide_intervals(task, {**intervals, "predict_mm": {}}, "Score more examples.") == [
        f"validation mismatched {metric}: the 95 % interval is 22 points wide. Score more examples.",
        f"test {metric}: the 95 % interval has width 0. It is too narrow. Score more examples.",
    ]
    task.main_metric = "mse"
    assert describe_wide_intervals(task, {"eval": {"mse": (0.0, 50.0)}}, "") == []


def test_a_run_reports_its_shortfall(model_args, tmp_path):
    task = make_task(make_tokenizer())
    task.evaluation_sets[0].baseline = Baseline("always right", {"accuracy": 1.0})
    settings = {"max_steps": 1, "save_strategy": "no"}
    results = fine_tune(task, model_args, arguments(tmp_path / "run", **settings))
    written = (tmp_path / "run/results.md").read_text()
    assert "does not beat the baseline, 100.00 (always right). Try longer training (--max_steps 3)" in written
    assert written.count("Try ") == 1 and len(results["shortfalls"]) == 2
