"""Weights of classes in the loss."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.finetuning.prepare_task import PreparedTask

Loss = Callable[..., torch.Tensor]


def has_classes(prepared: PreparedTask) -> bool:
    """Whether each item has exactly one class."""
    return prepared.task.labels is not None and prepared.task.problem == "single_label_classification"


def class_weights(given: str | Mapping[str, Any], prepared: PreparedTask) -> torch.Tensor:
    """Returns the weight of each class in the loss.

    Args:
        given: "balanced": labels / (classes * labels of the class), as in scikit-learn. Or weights such as
            "positive=2,negative=0.5", or label -> weight. All other classes get 1.
        prepared: a task with classes, and its training examples.

    Returns:
        *Shape:* (classes,)

    Raises:
        InputError: the task has no classes, a label is unknown, or a weight is not a positive number.
    """
    labels = prepared.task.labels
    if labels is None or not has_classes(prepared) or prepared.train_features is None:
        raise InputError(f"--class_weights: {prepared.task.name} needs training examples with exactly one class each.")
    if given == "balanced":
        (column,) = prepared.task.output.label_columns
        ids = np.concatenate([np.atleast_1d(value) for value in prepared.train_features[column][:]])
        counts = np.bincount(ids[ids >= 0], minlength=len(labels))
        return torch.tensor(counts.sum() / (np.count_nonzero(counts) * counts.clip(1)), dtype=torch.float32)
    weights = dict.fromkeys(labels, 1.0)
    parts = str(given).split(",")
    pairs = given.items() if isinstance(given, Mapping) else [part.rpartition("=")[::2] for part in parts]
    for label, weight in pairs:
        try:
            value = float(weight)
        except (TypeError, ValueError):
            value = -1
        if label not in weights or not 0 < value < float("inf"):
            part = f"{label}={weight}".removeprefix("=")
            raise InputError(
                f"--class_weights: expected LABEL=WEIGHT with a positive weight, not {part!r}. Labels: "
                f"{', '.join(labels)}."
            )
        weights[label] = value
    return torch.tensor(list(weights.values()))


def weighted_loss(weights: torch.Tensor) -> Loss:
    """Returns a `compute_loss_func` for Trainer: cross entropy in which a label of class c counts `weights[c]` times.

    The sum is divided by the number of labels, not by the sum of their weights. So the loss is exact under gradient
    accumulation. `weights` are on the device of the model.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"].float()
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORE_INDEX).sum()
        # A batch may have no labels.
        count = torch.as_tensor(num_items_in_batch, device=logits.device).clamp(min=1)
        total = F.cross_entropy(
            logits.view(-1, logits.shape[-1]),
            labels.view(-1),
            weights,
            ignore_index=IGNORE_INDEX,
            reduction="sum",
        )
        return total / count

    return loss
