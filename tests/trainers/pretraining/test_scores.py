"""Evaluation sums and metrics of packed and padded batches equal losses computed by hand."""

import numpy as np
import pytest
import torch
from synthetic import RandomExamples, packed, tiny_model
from transformers import EvalPrediction

from snugbert.trainers.pretraining.scores import compute_metrics, sum_per_sequence


def padded(examples) -> dict[str, torch.Tensor]:
    def stack(name, value):
        values = [example[name] for example in examples]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=value)

    batch = {"input_ids": stack("input_ids", 0), "labels": stack("labels", -100)}
    batch["attention_mask"] = (batch["input_ids"] != 0).long()
    batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
    return batch


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
