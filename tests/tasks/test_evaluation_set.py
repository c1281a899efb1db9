"""Evaluation sets: scores in training, which set is scored, and the labels of a model."""

import numpy as np
import pytest
from datasets import Dataset
from finetuning_examples import Counting, counting_set
from glue_examples import VOCABULARY

import snugbert
from snugbert.data.sources import DataSource
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.evaluation_set import make_evaluation_set
from snugbert.tasks.question_answering import QuestionAnswering


def test_metrics_in_training():
    task = Counting()
    validation_set = counting_set(task)
    logits = np.eye(3)[[0] * 30]
    task.score = lambda split, rows, counts=None: {"accuracy": float(rows.mean()), "LOC_f1": 0.5}
    accuracy = float((np.array(validation_set.split.inputs["label"]) == 0).mean())
    assert validation_set.score_in_training(logits) == {"accuracy": accuracy, "LOC_f1": 0.5}
    task.training_metrics = ("accuracy", "f1")
    assert validation_set.score_in_training(logits) == {"accuracy": accuracy}
    unlabeled = counting_set(task, labeled=False)
    assert unlabeled.score_in_training(logits) == {} and unlabeled.baseline is None
    assert unlabeled.estimate_intervals(unlabeled.decode(logits)) == {}


def test_a_dataset_in_memory_is_scored_with_a_models_labels():
    """The labels have the model's order. Other labels are refused."""
    tokenizer = snugbert.SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)})
    config = snugbert.SnugBertConfig(id2label={0: "gloomy", 1: "cheerful"}, label2id={"gloomy": 0, "cheerful": 1})
    rows = {"text": ["a good film", "a bad film"], "label": ["cheerful", "gloomy"]}
    data = {"validation": [Dataset.from_dict(rows)]}
    validation = make_evaluation_set(TextClassification(), config, tokenizer, data)
    assert validation.features.inputs["label"][:] == [1, 0]
    assert validation.score(validation.decode(np.eye(2)[[1, 1]])) == {"accuracy": 0.5}
    assert validation.task.describe_sources(validation.split) == [DataSource("dataset", "validation", 2)]
    other = Dataset.from_dict({**rows, "label": ["cheerful", "odd"]})
    with pytest.raises(InputError, match=r"the dataset \(validation\), row 2: unknown label 'odd'"):
        make_evaluation_set(TextClassification(), config, tokenizer, {"validation": [other]})
    unlabeled = Dataset.from_dict({"id": ["1"], "context": ["a good film"], "question": ["a film?"]})
    with pytest.raises(InputError, match=r"^the dataset \(validation\) has no labels"):
        make_evaluation_set(QuestionAnswering(), config, tokenizer, {"validation": [unlabeled]})
