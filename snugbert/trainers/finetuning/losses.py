"""The losses of fine-tuning: weights of classes, and soft targets of a teacher.

Items are described in [`snugbert.tasks.outputs`]. Shapes: I items, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.base import Problem
from snugbert.tasks.outputs import UNLABELED, Output
from snugbert.trainers.finetuning.prepare_task import PreparedTask, SoftTargets

Loss = Callable[..., torch.Tensor]
ROW = "soft_target_row"  # column with the number of the example
TEACHER_LOGITS = "teacher_logits"


def class_weights(given: str | Mapping[str, Any], prepared: PreparedTask) -> torch.Tensor:
    """Returns the weight of each class in the loss. *Shape:* (classes,)

    "balanced" gives labels / (classes * labels of the class), as in scikit-learn. Classes without a weight get 1.
    """
    labels = prepared.task.labels
    if labels is None or not prepared.has_classes or prepared.train_features is None:
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


# --- a teacher -----------------------------------------------------------------------------------------------------


class SoftTargetCollator:
    """Adds the teacher's logits of the examples to the batches of another collator."""

    def __init__(self, collate: Callable[[Any], Any], targets: SoftTargets, output: Output):
        self.collate, self.targets, self.output = collate, targets, output

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Returns the batch. Features of an evaluation have no column `ROW` and get no logits."""
        if ROW not in features[0]:
            return self.collate(features)
        batch = self.collate([{name: feature[name] for name in feature if name != ROW} for feature in features])
        first, logits = self.targets.first_items, self.targets.logits
        rows = [feature[ROW] for feature in features]
        parts = [torch.from_numpy(logits[first[row] : first[row + 1]]) for row in rows]
        batch[TEACHER_LOGITS] = self.output.join_items(parts)
        return batch


def distillation_loss(
    student: torch.Tensor,
    teacher: torch.Tensor,
    labels: torch.Tensor,
    kind: Problem,
    temperature: float,
    weight: float,
) -> torch.Tensor:
    """Returns `weight` * soft + (1 - `weight`) * hard, summed over the items.

    Soft is the Kullback-Leibler divergence of the student's distribution from the teacher's, both at the temperature,
    times the temperature squared, so that gradients keep their size (Hinton et al., 2015, section 2). With several
    labels per example, each label is a distribution of two outcomes. For regression, soft is the squared difference of
    the two numbers. Hard is the usual loss of the gold labels, which is 0 for an item without a label.

    `student` and `teacher` are logits, *Shape:* (I, C). `labels` are ids, `UNLABELED` without a label, *Shape:* (I,).
    For several labels per item they are 0.0 or 1.0, *Shape:* (I, C), and for regression numbers, *Shape:* (I,). Both
    are NaN without a label.
    """
    student, teacher = student.float(), teacher.to(student.device).float()
    if kind == "single_label_classification":
        log_student, log_teacher = ((logits / temperature).log_softmax(-1) for logits in (student, teacher))
        soft = F.kl_div(log_student, log_teacher, reduction="sum", log_target=True) * temperature**2
        hard = F.cross_entropy(student, labels, ignore_index=UNLABELED, reduction="sum")
        return weight * soft + (1 - weight) * hard
    labels = labels.view(student.shape)
    known = ~labels.isnan()
    if kind == "regression":
        soft = F.mse_loss(student, teacher, reduction="sum")
        hard = F.mse_loss(student, labels.nan_to_num(), reduction="none")
    else:
        scaled = teacher / temperature
        probabilities = scaled.sigmoid()
        cross_entropy = F.binary_cross_entropy_with_logits(student / temperature, probabilities, reduction="sum")
        soft = (
            cross_entropy - F.binary_cross_entropy_with_logits(scaled, probabilities, reduction="sum")
        ) * temperature**2
        hard = F.binary_cross_entropy_with_logits(student, labels.nan_to_num(), reduction="none")
    return weight * soft + (1 - weight) * hard.masked_fill(~known, 0).sum()
