"""Soft targets: the teacher's logits in batches, and their loss.

Items are described in [`snugbert.tasks.outputs`]. Shapes: I items, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from snugbert.tasks.base import Problem
from snugbert.tasks.outputs import UNLABELED, Output

ROW = "soft_target_row"  # column with the number of the example
TEACHER_LOGITS = "teacher_logits"


@dataclass
class SoftTargets:
    """The teacher's logits for the training examples.

    Attributes:
        logits: the logits of all items; for question answering the start and the end score. *Shape:* (items, C)
        first_items: the first item of each example, and the end. *Shape:* (examples + 1,)
        kind: the kind of problem, in transformers' names.
    """

    logits: np.ndarray
    first_items: np.ndarray
    kind: Problem


class SoftTargetCollator:
    """Adds the teacher's logits of the examples to the batches of another collator.

    Args:
        collate: the data collator.
        targets: the soft targets.
        output: the form of the logits.
    """

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

    Args:
        student, teacher: logits. *Shape:* (I, C)
        labels: ids, `UNLABELED` without a label. *Shape:* (I,) Several labels: 0.0 or 1.0, NaN without labels.
            *Shape:* (I, C) Regression: numbers, NaN without a label. *Shape:* (I,)
        kind: the kind of problem.
        temperature: above 0. Not used for regression.
        weight: from 0 to 1.

    Returns:
        *Shape:* ()
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
