"""The task of `snugbert glue`: predictions and their scores."""

import itertools

import numpy as np
import pytest

from snugbert.trainers.glue.task import make_score, score_baseline


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
