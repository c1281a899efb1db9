"""Distillation: the teacher's logits as soft targets, their loss, and a Trainer that uses both.

Items are described in [`snugbert.tasks.outputs`]. Shapes: I items, C labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import nn

from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.base import Problem
from snugbert.tasks.outputs import UNLABELED, Output
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer

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


class DistillationTrainer(FineTuningTrainer):
    """Trains a student on soft targets and gold labels. Evaluation is unchanged: its loss uses gold labels only.

    Args:
        targets: the teacher's logits for `train_dataset`.
        output: the form of the logits.
        train_dataset: labels may be `UNLABELED`, or NaN for numbers and several labels.
        kwargs: as in [`FineTuningTrainer`].
    """

    compared_names = (*FineTuningTrainer.compared_names, "distillation_temperature", "distillation_weight")

    def __init__(
        self, *, targets: SoftTargets, output: Output, train_dataset: Dataset, data_collator: Any, **kwargs: Any
    ):
        self.targets = targets
        super().__init__(
            output=output,
            train_dataset=train_dataset.add_column(ROW, np.arange(len(train_dataset))),
            data_collator=SoftTargetCollator(data_collator, targets, output),
            **kwargs,
        )
        self.keep_column(ROW)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Returns the sum of [`distillation_loss`] divided by the items of all accumulated batches and processes."""
        if TEACHER_LOGITS not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        args: Any = self.args
        inputs = dict(inputs)
        teacher = inputs.pop(TEACHER_LOGITS)
        labels = self.output.pop_labels(inputs)
        outputs = model(**inputs)
        # Without the padding of filled rows.
        parts = list(self.output.list_items(outputs, inputs, labels, teacher))
        losses = [
            distillation_loss(*items, self.targets.kind, args.distillation_temperature, args.distillation_weight)
            for items in parts
        ]
        count: Any = num_items_in_batch
        if count is None:
            count = (parts[0].labels != IGNORE_INDEX).sum()
        total: Any = sum(losses) / len(losses)
        loss = total / torch.as_tensor(count, device=total.device).clamp(min=1)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss


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
    times its square, so that gradients keep their size (Hinton et al., 2015, section 2). With several labels per
    example, each is a distribution of two. For regression, soft is the squared difference of the two numbers. Hard is
    the usual loss of the gold labels. It is 0 for an item without one.

    Args:
        student, teacher: logits. *Shape:* (I, C)
        labels: ids, `UNLABELED` without one. *Shape:* (I,) Several labels: 0.0 or 1.0, NaN without labels.
            *Shape:* (I, C) Regression: numbers, NaN without one. *Shape:* (I,)
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
