"""The task of `snugbert glue`: predictions and their scores."""

import numpy as np
import pytest

from snugbert.trainers.glue.task import make_score


def test_f1_does_not_depend_on_the_order_of_labels():
    references, predictions = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    problem = "single_label_classification"
    straight = make_score("mrpc", ["not_equivalent", "equivalent"], problem)(predictions, references)
    turned = make_score("mrpc", ["equivalent", "not_equivalent"], problem)(1 - predictions, 1 - references)
    assert straight == turned
    assert straight["combined_score"] == pytest.approx((straight["accuracy"] + straight["f1"]) / 2)
