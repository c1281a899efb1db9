"""Evaluation sums and metrics of packed and padded batches equal losses computed by hand. Also trivial predictions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from synthetic import RandomExamples, packed, padded, tiny_model
from transformers import EvalPrediction

from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.trainers.pretraining.scores import (
    compute_metrics,
    detection_baseline,
    sum_per_sequence,
    unigram_baseline,
)


@torch.no_grad()
def test_sums_of_packed_and_padded_batches_are_equal():
    model = tiny_model().eval()
    dataset = RandomExamples(6)
    examples = [dataset[index] for index in range(6)]
    examples[2]["next_sentence_label"] = -100
    sums = []
    for batch in (packed(examples), padded(examples)):
        sums.append(sum_per_sequence(model(**batch, sparse_prediction=True), batch))
    torch.testing.assert_close(sums[0], sums[1], atol=1e-5, rtol=1e-5)
    assert sums[0].shape == (6, 6)
    assert sums[0][:, 2].tolist() == [(example["labels"] >= 0).sum() for example in examples]
    assert sums[0][:, 5].tolist() == [1, 1, 0, 1, 1, 1]
    for example, row in zip(examples, sums[0], strict=True):
        output = model(**packed([example]))
        assert row[0] / row[2] == pytest.approx(output.mlm_loss.item(), rel=1e-4)


def test_metrics_by_hand():
    sums = np.array([[2.0, 1, 4, 0.5, 1, 1], [1.0, 2, 2, 0.0, 0, 0]])
    assert compute_metrics(EvalPrediction(sums, None)) == {
        "mlm_loss": 0.5,
        "mlm_accuracy": 0.5,
        "nsp_loss": 0.5,
        "nsp_accuracy": 1.0,
        "loss": 1.0,
    }
    assert compute_metrics(EvalPrediction(sums[:, :3], None)) == {"mlm_loss": 0.5, "mlm_accuracy": 0.5, "loss": 0.5}
    unlabeled = np.array([[2.0, 1, 4, 0.0, 0, 0]])
    assert compute_metrics(EvalPrediction(unlabeled, None)) == {"mlm_loss": 0.5, "mlm_accuracy": 0.25, "loss": 0.5}
    assert np.isnan(compute_metrics(EvalPrediction(np.zeros((1, 3)), None))["loss"])


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
