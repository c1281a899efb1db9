"""The metrics of trivial predictions."""

from types import SimpleNamespace

import numpy as np
import pytest

from snugbert.data.corpus import Block, Corpus
from snugbert.trainers.pretraining.baselines import detection_baseline, unigram_baseline


def test_unigram_baseline_by_hand():
    def corpus_of(tokens):
        half = len(tokens) // 2
        blocks = [np.array(tokens[:half]), np.array(tokens[half:])]
        return Corpus([Block(block, np.array([0, len(block)]), np.array([0, 1])) for block in blocks], digest="")

    # [UNK] (0) is never predicted. Without it, counts plus one are 1, 2, 1, 4 of 8.
    dataset = SimpleNamespace(corpus=corpus_of([3, 1, 0, 0]), vocab_size=4, special_ids=np.array([0]))
    baseline = unigram_baseline(corpus_of([3, 0, 3, 3, 0, 1]), dataset)
    assert baseline["mlm_loss"] == pytest.approx(-(np.log(4 / 8) + np.log(2 / 8)) / 2)
    assert baseline["mlm_accuracy"] == 0.5


def test_detection_baseline_by_hand():
    assert detection_baseline(0.25) == {
        "disc_loss": pytest.approx(0.25 * np.log(4) + 0.75 * np.log(4 / 3)),
        "disc_accuracy": 0.75,
    }
    assert detection_baseline(0.75)["disc_accuracy"] == 0.75
    assert detection_baseline(0.0) == {"disc_loss": 0.0, "disc_accuracy": 1.0}
