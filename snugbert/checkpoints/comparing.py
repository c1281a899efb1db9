"""Compares an exported model, run by its engine, with the SnugBERT model.

Shapes: B texts of at most L tokens.
"""

from collections.abc import Iterable

import numpy as np
import torch
from transformers import PreTrainedModel

from snugbert.export.engine import Batch, Run

# Outputs with a value or row per token. They are undefined at padding.
TOKEN_OUTPUTS = ("last_hidden_state", "prediction_logits", "start_logits", "end_logits")
TOKEN_HEADS = ("ForMaskedLM", "ForTokenClassification", "ForReplacedTokenDetection")  # whose `logits` are such outputs
TOLERANCE = 1e-4  # largest accepted difference in float32


def run_in_torch(model: PreTrainedModel) -> Run:
    """Returns a function that runs a SnugBERT model."""

    @torch.inference_mode()
    def run(batch: Batch) -> dict[str, np.ndarray]:
        outputs = model(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return {name: tensor.float().numpy() for name, tensor in outputs.items()}

    return run


def find_difference(expected: Run, run: Run, batches: Iterable[Batch], head: str) -> tuple[float, float]:
    """Computes the largest difference between the outputs of two models, without padding.

    Args:
        expected: the original model.
        run: the exported model.
        batches: inputs.
        head: the head of the models.

    Returns:
        The largest absolute difference, and the largest one relative to the largest value of its output, if that
        exceeds 1. Both are infinite if an output is not finite.
    """
    differences: dict[str, float] = {}
    largest: dict[str, float] = {}
    for batch in batches:
        theirs, ours = run(batch), expected(batch)
        mask = batch["attention_mask"].astype(bool)
        for name in ours:
            pair = (ours[name], theirs[name])
            if name in TOKEN_OUTPUTS or head in TOKEN_HEADS:
                pair = (ours[name][mask], theirs[name][mask])
            distance = float(np.abs(pair[0] - pair[1]).max())
            differences[name] = max(differences.get(name, 0), distance if np.isfinite(distance) else np.inf)
            largest[name] = max(largest.get(name, 1), float(np.abs(pair[0]).max()))
    return max(differences.values()), max(differences[name] / largest[name] for name in differences)
