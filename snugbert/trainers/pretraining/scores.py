"""Evaluation metrics from a few sums per sequence, so that no logits are kept.

Shapes: a batch has N sequences.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from transformers import EvalPrediction
from transformers.utils import ModelOutput

from snugbert.modeling_snugbert import IGNORE_INDEX


def sum_per_sequence(outputs: ModelOutput, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns masked token loss, correct tokens and labeled tokens per sequence, and the same for its pair label.

    Args:
        outputs: model outputs with `sparse_prediction=True`: logits of the labeled tokens only.
        inputs: a packed or padded batch.

    *Shape:* (N, 3), or (N, 6) with `next_sentence_label`
    """
    labels = inputs["labels"].flatten()
    token_indices = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
    if "cu_seq_lens_q" in inputs:
        # A token belongs to the last sequence that starts at or before it.
        starts = inputs["cu_seq_lens_q"].long()
        num_sequences = len(starts) - 1
        sequence_indices = torch.searchsorted(starts, token_indices, right=True) - 1
    else:
        num_sequences, length = inputs["labels"].shape
        sequence_indices = token_indices // length
    token_scores = _score(get_mlm_logits(outputs), labels[token_indices])
    sums = torch.zeros(num_sequences, 3, device=labels.device)
    sums.index_add_(0, sequence_indices, token_scores)
    if "next_sentence_label" not in inputs:
        return sums
    pair_scores = _score(outputs["seq_relationship_logits"], inputs["next_sentence_label"].flatten())
    return torch.cat([sums, pair_scores], dim=-1)


def get_mlm_logits(outputs: ModelOutput) -> torch.Tensor:
    """Returns the logits of the masked token head."""
    return outputs["prediction_logits"] if "prediction_logits" in outputs else outputs["logits"]


def _score(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Loss, whether the prediction is correct, and whether there is a label. *Shape:* (labels, 3)"""
    loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="none")
    return torch.stack([loss, (logits.argmax(-1) == labels).float(), (labels != IGNORE_INDEX).float()], dim=-1)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Computes the metrics of an evaluation by Trainer, see [`average_sums`]. `loss` is the sum of the losses."""
    metrics = average_sums(np.asarray(prediction.predictions))
    return {"loss": metrics["mlm_loss"] + metrics.get("nsp_loss", 0.0), **metrics}


def average_sums(sums_per_sequence: np.ndarray) -> dict[str, float]:
    """Computes mean losses and accuracies from the sums of [`sum_per_sequence`].

    Without labeled tokens, the loss is NaN. Without labeled pairs, there are no pair metrics.
    """
    sums = sums_per_sequence.sum(axis=0, dtype=np.float64).tolist()
    metrics: dict[str, float] = {}
    for task, start in zip(("mlm", "nsp"), range(0, len(sums), 3), strict=False):
        loss, correct, labeled = sums[start : start + 3]
        if labeled or task == "mlm":
            count = labeled or math.nan
            metrics |= {f"{task}_loss": loss / count, f"{task}_accuracy": correct / count}
    return metrics
