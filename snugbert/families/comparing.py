"""Compares the outputs of two models: a checkpoint before and after conversion, or a model and its export.

Shapes: B texts of at most L tokens.
"""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from transformers import PreTrainedModel

# Padded inputs of a model, int64: input_ids, attention_mask and others, such as token_type_ids.
# *Shape:* (B, L) each; multiple choice: (B, choices, L)
Batch = dict[str, np.ndarray]
Outputs = dict[str, np.ndarray]
# Runs a model. Returns its outputs by name, with the shapes of the SnugBERT model.
Run = Callable[[Batch], Outputs]

# Outputs with a value or row per token. They are undefined at padding.
TOKEN_OUTPUTS = ("last_hidden_state", "prediction_logits", "start_logits", "end_logits")
TOKEN_HEADS = ("ForMaskedLM", "ForTokenClassification", "ForReplacedTokenDetection")  # their `logits` are per token
# Largest accepted differences. Rounding errors in float64 are near 1e-15 for outputs of 1 to 10.
FLOAT32_TOLERANCE, FLOAT64_TOLERANCE = 1e-4, 1e-6


def run_in_torch(model: PreTrainedModel) -> Run:
    """Returns a function that runs a model of transformers. Outputs in 16 bits become float32."""

    @torch.inference_mode()
    def run(batch: Batch) -> Outputs:
        outputs = model(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return {name: (x if x.dtype == torch.float64 else x.float()).numpy() for name, x in outputs.items()}

    return run


def find_difference(outputs: Iterable[tuple[Batch, Outputs, Outputs]], head: str) -> tuple[float, float]:
    """Computes the largest difference between the outputs of two models, without padding.

    `outputs`: for each batch, its inputs, the outputs of the original model, and the outputs of the other model.
    Returns the absolute difference, and the relative difference: divided by the largest value of the output, or by 1
    if no value is larger. Both are infinite if an output is not finite.
    """
    differences: dict[str, float] = {}
    largest: dict[str, float] = {}
    for inputs, expected, others in outputs:
        mask = inputs["attention_mask"].astype(bool)
        for name in expected:
            ours, theirs = expected[name], others[name]
            if name in TOKEN_OUTPUTS or head in TOKEN_HEADS:
                ours, theirs = ours[mask], theirs[mask]
            distance = float(np.abs(ours - theirs).max())
            differences[name] = max(differences.get(name, 0), distance if np.isfinite(distance) else np.inf)
            largest[name] = max(largest.get(name, 1), float(np.abs(ours).max()))
    return max(differences.values()), max(differences[name] / largest[name] for name in differences)
