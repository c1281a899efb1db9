"""A run that does not beat its baseline says so and suggests what to try."""

import math

import pytest
from finetuning_examples import arguments, counting_set, make_tokenizer, prepare_counting

from snugbert.tasks.base import Baseline
from snugbert.trainers.finetuning.single_run import describe_shortfalls, fine_tune

ADVICE = (
    "Try longer training (--num_train_epochs 9), another learning rate (--learning_rate 3e-04 or 3e-03), "
    "more examples, or a larger pretrained checkpoint."
)


@pytest.mark.parametrize(
    ("metric", "score", "baseline", "told"),
    [
        ("accuracy", 0.26, 0.25, None),
        ("accuracy", 0.25, 0.25, "Validation: accuracy 25.00 equals the baseline (always 'few')."),
        ("accuracy", 0.2, 0.25, "Validation: accuracy 20.00 is below the baseline, 25.00 (always 'few')."),
        ("accuracy", 0.24999, 0.25, "Validation: accuracy 25.00 equals the baseline (always 'few')."),
        ("accuracy", 0.9, 1.0, "Validation: accuracy 90.00 is below the baseline, 100.00 (always 'few')."),
        ("f1", 0.0, 0.0, "Validation: f1 0.00 equals the baseline (always 'few')."),
        ("mse", 2.0, 2.5, None),
        ("mse", 3.0, 2.5, "Validation: mse 3.0000 is above the baseline, 2.5000 (always 'few')."),
        ("pearson", 0.1, math.nan, None),
        ("pearson", -0.1, math.nan, "Validation: pearson -10.00 is below the baseline, 0.00 (the correlation of"),
        ("pearson", math.nan, math.nan, "Validation: pearson is undefined, because all predictions or"),
        ("matthews_correlation", 0.0, 0.0, "Validation: matthews correlation 0.00 equals"),
    ],
)  # fmt: skip
def test_shortfalls(metric, score, baseline, told, tmp_path):
    task = prepare_counting(make_tokenizer(), 3)
    task.task.main_metric = metric
    task.evaluation_sets[0].baseline = Baseline("always 'few'", {metric: baseline})
    task.evaluation_sets.append(counting_set(task.task, "test", labeled=False))
    metrics = {"eval": {metric: score}, "predict": {}}
    sentences = describe_shortfalls(task, metrics, arguments(tmp_path), trained=True)
    if told is None:
        assert sentences == []
    else:
        assert sentences[0].startswith(told) and sentences[1:] == [ADVICE]
    (check,) = describe_shortfalls(task, metrics, arguments(tmp_path), trained=False)[1:] or [None]
    assert check is None or check.startswith("Check that the checkpoint was fine-tuned for this task")


@pytest.mark.parametrize(("metric", "perfect"), [("accuracy", 1.0), ("mse", 0.0)])
def test_a_baseline_that_cannot_be_beaten(metric, perfect, tmp_path):
    """Longer training would not help."""
    task = prepare_counting(make_tokenizer(), 3)
    task.task.main_metric = metric
    task.evaluation_sets[0].baseline = Baseline("always 'few'", {metric: perfect})
    shown = "100.00" if perfect else "0.0000"
    assert describe_shortfalls(task, {"eval": {metric: perfect}}, arguments(tmp_path), trained=True) == [
        f"Validation: {metric} {shown} equals the baseline (always 'few'). All examples have the same answer.",
        "To compare models, evaluate on examples with different answers.",
    ]


def test_a_run_reports_its_shortfall(model_args, tmp_path):
    task = prepare_counting(make_tokenizer())
    task.evaluation_sets[0].baseline = Baseline("always right", {"accuracy": 1.0})
    settings = {"max_steps": 1, "save_strategy": "no"}
    results = fine_tune(task, arguments(tmp_path / "run", **settings))
    written = (tmp_path / "run/results.md").read_text()
    assert "is below the baseline, 100.00 (always right). Try longer training (--max_steps 3)" in written
    assert written.count("Try ") == 1 and len(results["shortfalls"]) == 2
