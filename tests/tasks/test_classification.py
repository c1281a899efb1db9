"""The task of `snugbert glue`: predictions and their scores."""

import itertools

import numpy as np
import pytest

from snugbert.data.sources import DataSource
from snugbert.tasks.classification import describe_split, make_score, score_baseline
from snugbert.tasks.classification_arguments import GlueDataArguments
from snugbert.tasks.classification_data import GlueSplit


def test_each_split_is_named_from_its_own_source(tmp_path):
    """MNLI from the Hub, from a folder, and from a folder of which one file is replaced."""

    def name(split, in_dataset=None, **arguments):
        return describe_split(GlueDataArguments(**arguments), split, GlueSplit("", None, None, (), in_dataset), 7)

    glue = {"num_examples": 7, "hub_id": "nyu-mll/glue", "config_name": "mnli"}
    for mnli in ({"task_name": "mnli"}, {"task_name": "mnli", "data_dir": str(tmp_path)}):
        assert name("train", **mnli) == DataSource("GLUE MNLI", "train", **glue)
        assert name("validation", **mnli) == DataSource("GLUE MNLI", "validation_matched", **glue)
        assert name("diagnostic", **mnli) == DataSource("GLUE diagnostic", "test", 7, "nyu-mll/glue", "ax")
    (tmp_path / "own.tsv").touch()
    own = {**mnli, "validation_file": str(tmp_path / "own.tsv")}
    assert name("validation", **own) == DataSource("own.tsv", "validation", 7)
    assert name("validation_mismatched", **own) == DataSource("GLUE MNLI", "validation_mismatched", **glue)
    hub = DataSource("nyu-mll/multi_nli", "validation_matched", 7, "nyu-mll/multi_nli")
    assert name("validation", "validation_matched", dataset_name="nyu-mll/multi_nli") == hub


def test_f1_does_not_depend_on_the_order_of_labels():
    references, predictions = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    problem = "single_label_classification"
    straight = make_score("mrpc", ["not_equivalent", "equivalent"], problem)(predictions, references)
    turned = make_score("mrpc", ["equivalent", "not_equivalent"], problem)(1 - predictions, 1 - references)
    assert straight == turned
    assert straight["combined_score"] == pytest.approx((straight["accuracy"] + straight["f1"]) / 2)


@pytest.mark.parametrize("shares", [(0.1, 0.2, 0.05, 0.1), (0.9, 0.3, 0.6, 0.5)])
def test_the_baseline_of_several_labels_is_the_best_constant(shares):
    references = (np.random.default_rng(0).random((200, 4)) < shares).astype(int)
    score = make_score(None, list("abcd"), "multi_label_classification")
    scores = {
        "".join(itertools.compress("abcd", answer)): score(np.tile(answer, (200, 1)), references)
        for answer in itertools.product((0, 1), repeat=4)
    }
    best = max(scores, key=lambda answer: scores[answer]["micro_f1"])
    baseline = score_baseline(references, list("abcd"), score)
    assert baseline == (f"always {', '.join(best)!r}", scores[best])
    assert baseline.metrics["micro_f1"] > 0.2
