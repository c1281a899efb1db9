"""Evaluation sets: which metrics are logged during training, and which set selects the best model."""

import dataclasses

import numpy as np
from finetuning_examples import make_task, make_tokenizer


def test_metrics_in_training():
    task = make_task(make_tokenizer(), 3)
    (validation_set,) = task.evaluation_sets
    logits = np.eye(3)[[0] * 30]
    validation_set.score = lambda predictions: {"accuracy": float((predictions == 0).mean()), "LOC_f1": 0.5}
    assert validation_set.score_in_training(logits) == {"accuracy": 1.0, "LOC_f1": 0.5}
    some = dataclasses.replace(validation_set, training_metrics=("accuracy", "f1"))
    assert some.score_in_training(logits) == {"accuracy": 1.0}
    assert dataclasses.replace(some, score=None).score_in_training(logits) == {}


def test_the_first_validation_set_is_scored_in_training():
    task = make_task(make_tokenizer(), 3)
    (validation_set,) = task.evaluation_sets
    test_set = dataclasses.replace(validation_set, name="predict")
    task.evaluation_sets = [test_set, validation_set, dataclasses.replace(validation_set, name="eval_mm")]
    assert task.validation_set is validation_set
    task.evaluation_sets = [test_set]
    assert task.validation_set is None
