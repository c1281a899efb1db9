"""The losses of fine-tuning: weights of classes, and soft targets of a teacher."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.base import Problem
from snugbert.tasks.outputs import UNLABELED
from snugbert.trainers.finetuning.prepare_task import PreparedTask


def class_weights(given: str | Mapping[str, Any], prepared: PreparedTask) -> torch.Tensor:
    """Returns the weight of each class in the loss. *Shape:* (classes,)

    "balanced" gives labels / (classes * labels of the class), as in scikit-learn. The default weight is 1.
    """
    labels = prepared.task.labels
    if labels is None or not prepared.has_classes or prepared.train_features is None:
        raise InputError(f"--class_weights: {prepared.task.name} needs training examples with exactly one class each.")
    if given == "balanced":
        (column,) = prepared.task.output.label_columns
        ids = np.concatenate([np.atleast_1d(value) for value in prepared.train_features[column][:]])
        counts = np.bincount(ids[ids >= 0], minlength=len(labels))
        return torch.tensor(counts.sum() / (np.count_nonzero(counts) * counts.clip(1)), dtype=torch.float32)
    if isinstance(given, str):
        given = dict(part.rpartition("=")[::2] for part in given.split(","))
    try:
        weights = {label: float(weight) for label, weight in given.items()}
    except (AttributeError, TypeError, ValueError):
        weights = {}
    if not weights or not weights.keys() <= set(labels) or not all(0 < w < np.inf for w in weights.values()):
        raise InputError(
            f"--class_weights: expected LABEL=WEIGHT with a positive weight, not {given}. Labels: {', '.join(labels)}."
        )
    return torch.tensor([weights.get(label, 1.0) for label in labels])


def weighted_loss(weights: torch.Tensor) -> Callable[..., torch.Tensor]:
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
        logits, labels = logits.view(-1, logits.shape[-1]), labels.view(-1)
        return F.cross_entropy(logits, labels, weights, ignore_index=IGNORE_INDEX, reduction="sum") / count

    return loss


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    kind: Problem,
    temperature: float,
    weight: float,
) -> torch.Tensor:
    """Returns `weight` * soft + (1 - `weight`) * hard, summed over the items.

    Soft is KL(teacher, student), both at the temperature, times the temperature squared, so that gradients keep their
    size (Hinton et al., 2015, section 2). With several labels per example, each label is a distribution of two
    outcomes. For regression, soft is the squared difference. Hard is the usual loss, or 0 for an item without a label.

    `student` and `teacher` are logits, *Shape:* (I, C). `labels` are ids (I,). With several labels per item, they are
    0.0 or 1.0 (I, C), and in regression, they are numbers (I,). A missing label is `UNLABELED` or NaN.
    """
    student, teacher = student.float(), teacher.to(student.device).float()

    def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
        logits = logits / temperature
        if kind == "single_label_classification":
            return logits.log_softmax(-1)
        return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)])

    if kind == "regression":
        soft = F.mse_loss(student, teacher, reduction="sum")
    else:
        divergence = F.kl_div(log_probabilities(student), log_probabilities(teacher), reduction="sum", log_target=True)
        soft = divergence * temperature**2
    if kind == "single_label_classification":
        hard = F.cross_entropy(student, labels, ignore_index=UNLABELED, reduction="sum")
    else:
        labels = labels.view(student.shape)
        loss = F.mse_loss if kind == "regression" else F.binary_cross_entropy_with_logits
        hard = loss(student, labels.nan_to_num(), reduction="none").masked_fill(labels.isnan(), 0).sum()
    return weight * soft + (1 - weight) * hard
