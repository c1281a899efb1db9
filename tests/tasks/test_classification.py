"""The task of `snugbert glue`: predictions and their scores."""

import itertools

import numpy as np
import pytest

from snugbert.cli.parser import parse_arguments
from snugbert.data.sources import DataSource
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.task_arguments import GlueDataArguments


def test_each_split_is_named_from_its_own_source(tmp_path):
    """MNLI from the Hub, from a folder, and from a folder of which one file is replaced."""

    def name(split, in_dataset=None, **arguments):
        examples = TextSplit(split, "", texts=[[""] * 7], split_in_dataset=in_dataset)
        (source,) = TextClassification(**arguments).describe_sources(examples)
        return source

    glue = {"num_examples": 7, "hub_id": "nyu-mll/glue", "config_name": "mnli"}
    for mnli in ({"task_name": "mnli"}, {"task_name": "mnli", "data_dir": str(tmp_path)}):
        assert name("train", **mnli) == DataSource("GLUE MNLI", "train", **glue)
        assert name("validation", **mnli) == DataSource("GLUE MNLI", "validation_matched", **glue)
        assert name("test_diagnostic", **mnli) == DataSource("GLUE diagnostic", "test", 7, "nyu-mll/glue", "ax")
    (tmp_path / "own.tsv").touch()
    own = {**mnli, "validation_file": str(tmp_path / "own.tsv")}
    assert name("validation", **own) == DataSource("own.tsv", "validation", 7)
    assert name("validation_mismatched", **own) == DataSource("GLUE MNLI", "validation_mismatched", **glue)
    hub = DataSource("me/nli (en)", "validation_matched", 7, "me/nli", "en")
    assert name("validation", "validation_matched", dataset_name="me/nli", dataset_config_name="en") == hub


def score(task: TextClassification, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    split, answers = task.pair(references, predictions)
    return task.score(split, task.measure(split, answers))


def test_f1_does_not_depend_on_the_order_of_labels():
    references, predictions = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    task = TextClassification(task_name="mrpc")
    task.labels = ["not_equivalent", "equivalent"]
    straight = score(task, predictions, references)
    task.labels = ["equivalent", "not_equivalent"]
    assert straight == score(task, 1 - predictions, 1 - references)
    assert straight["combined_score"] == pytest.approx((straight["accuracy"] + straight["f1"]) / 2)


@pytest.mark.parametrize("shares", [(0.1, 0.2, 0.05, 0.1), (0.9, 0.3, 0.6, 0.5)])
def test_the_baseline_of_several_labels_is_the_best_constant(shares):
    references = (np.random.default_rng(0).random((200, 4)) < shares).astype(int)
    task = TextClassification(label_separator=",")
    task.labels = list("abcd")
    scores = {
        "".join(itertools.compress("abcd", answer)): score(task, np.tile(answer, (200, 1)), references)
        for answer in itertools.product((0, 1), repeat=4)
    }
    best = max(scores, key=lambda answer: scores[answer]["micro_f1"])
    baseline = task.baseline(task.pair(references, references)[0], None)
    assert baseline == (f"always {', '.join(best)!r}", scores[best])
    assert baseline.metrics["micro_f1"] > 0.2


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--do_regression"], True), (["--do_regression", "no"], False)]
)
def test_do_regression_is_true_false_or_inferred(flags, value):
    argv = [*flags, "--dataset_name", "imdb"]
    assert parse_arguments((GlueDataArguments,), argv, "snugbert glue", "")[0].do_regression is value
