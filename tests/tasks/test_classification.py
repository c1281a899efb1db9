"""The task of `snugbert glue`: predictions, and their scores next to scikit-learn."""

import itertools

import evaluate
import numpy as np
import pytest
import sklearn.metrics

from snugbert.data.sources import DataSource
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.metrics import TaskMetric


def test_each_split_is_named_from_its_own_source(tmp_path):
    """MNLI from a folder and from the Hub, and with one file of your own."""

    def name(split, in_dataset=None, **arguments):
        examples = TextSplit(split, "", texts=[[""] * 7], split_in_dataset=in_dataset)
        (source,) = TextClassification(**arguments).describe_sources(examples)
        return source

    glue = {"num_examples": 7, "hub_id": "nyu-mll/glue", "config_name": "mnli"}
    mnli = {"task_name": "mnli", "data_dir": str(tmp_path)}
    assert name("train", **mnli) == DataSource("GLUE MNLI", "train", **glue)
    assert name("validation", **mnli) == DataSource("GLUE MNLI", "validation_matched", **glue)
    assert name("test_diagnostic", task_name="mnli") == DataSource("GLUE diagnostic", "test", 7, "nyu-mll/glue", "ax")
    (tmp_path / "own.tsv").touch()
    own = {**mnli, "validation_file": str(tmp_path / "own.tsv")}
    assert name("validation", **own) == DataSource("own.tsv", "validation", 7)
    assert name("validation_mismatched", **own) == DataSource("GLUE MNLI", "validation_mismatched", **glue)
    hub = DataSource("me/nli (en)", "validation_matched", 7, "me/nli", "en")
    assert name("validation", "validation_matched", dataset_name="me/nli", dataset_config_name="en") == hub


def score(task: TextClassification, predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    split, answers = task.pair(references, predictions)
    return task.score(split, task.measure(split, answers))


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


def test_evaluate_adds_batches_and_combines_metrics(tmp_path):
    random = np.random.default_rng(1)
    predictions, references = random.integers(0, 2, (2, 90))
    mrpc, cola = TextClassification(task_name="mrpc"), TextClassification(task_name="cola")
    batches = TaskMetric(mrpc, cache_dir=str(tmp_path))  # on disk, evaluate's default
    for i in range(0, 90, 32):
        batches.add_batch(predictions=predictions[i : i + 32], references=references[i : i + 32])
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(references, predictions),
        "f1": sklearn.metrics.f1_score(references, predictions),
    }
    expected["combined_score"] = (expected["accuracy"] + expected["f1"]) / 2
    assert batches.compute() == pytest.approx(expected)
    combined = evaluate.combine([TaskMetric(task, keep_in_memory=True) for task in (mrpc, cola)])
    expected["matthews_correlation"] = sklearn.metrics.matthews_corrcoef(references, predictions)
    assert combined.compute(predictions=predictions, references=references) == pytest.approx(expected)
