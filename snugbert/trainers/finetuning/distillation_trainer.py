"""The Trainer of distillation: a student learns from a teacher's logits and from the labels.

teacher's logits (cached) -> soft targets -> batches of the student
"""

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from snugbert.card_snugbert import find_base_model
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.families.students import hash_model
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.base import Sources, Task
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.prepare_task import (
    Distillation,
    PreparedTask,
    name_model,
    name_sources,
    prepare_task,
)
from snugbert.trainers.finetuning.soft_targets import (
    ROW,
    TEACHER_LOGITS,
    SoftTargetCollator,
    SoftTargets,
    distillation_loss,
)
from snugbert.trainers.finetuning.teacher import compute_items


class DistillationTrainer(FineTuningTrainer):
    """Trains a student on a teacher's soft targets and on labels. A [`FineTuningTrainer`].

        DistillationTrainer("tiny", args, task, train_dataset, eval_dataset, teacher="sst2").train()

    The teacher's logits are computed first, and cached. Evaluation is unchanged: its loss uses labels only.

    Args:
        model: the student, as in [`FineTuningTrainer`]. A size such as "tiny" gets the tokenizer of the teacher.
        args: the settings. `distillation_temperature` and `distillation_weight` apply to the teacher's soft targets.
        task: as in [`FineTuningTrainer`]. A [`PreparedTask`] has soft targets.
        train_dataset: labeled rows.
        teacher: a Hub name or folder of a model that was fine-tuned for this task, or a SnugBERT model in memory with
            the tokenizer `processing_class`.
        unlabeled_dataset: more rows to train on. Only the teacher labels them.
        kwargs: as in [`FineTuningTrainer`].

    Raises:
        InputError: as in [`FineTuningTrainer`]; or teacher and data have different labels or tokens.
    """

    compared_names = (*FineTuningTrainer.compared_names, "distillation_temperature", "distillation_weight")

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        args: TrainingArguments | None = None,
        task: Task[Any, Any, Any] | PreparedTask | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        teacher: str | Path | PreTrainedModel | None = None,
        unlabeled_dataset: Any = None,
        **kwargs: Any,
    ):
        if not isinstance(task, PreparedTask):
            if teacher is None or model is None or task is None:
                raise InputError("model, teacher or task is missing.")
            args = FineTuningArguments() if args is None else FineTuningArguments.adopt(args)
            first = next(iter(eval_dataset.values())) if isinstance(eval_dataset, Mapping) else eval_dataset
            sources = name_sources(
                train_dataset=train_dataset, unlabeled_dataset=unlabeled_dataset, eval_dataset=first
            )
            is_new = isinstance(model, str) and model in SIZES and not Path(model).exists()
            if is_new and processing_class is None and not isinstance(teacher, PreTrainedModel):
                processing_class = load_tokenizer(TokenizerArguments(tokenizer_name=str(teacher)))
            model_args = name_model(model, processing_class)
            model_args.teacher_name_or_path = str(teacher) if isinstance(teacher, str | Path) else None
            in_memory = isinstance(teacher, PreTrainedModel)
            teacher_args = name_model(teacher, processing_class if in_memory else None)
            teacher_args.is_teacher = True
            prepared, task, trainer = prepare_distillation(task, model_args, teacher_args, args, sources)
            assert task.distillation is not None
            task.distillation.soft_targets = make_soft_targets(prepared, task, trainer, None)
            move_model(trainer, "cpu")  # the student needs the memory of the GPU
        assert task.distillation is not None and task.distillation.soft_targets is not None
        self.targets = task.distillation.soft_targets
        super().__init__(task=task, args=args, eval_dataset=eval_dataset, **kwargs)
        self.keep_column(ROW)

    def _prepare_batches(self, features: Dataset | None, collate: Any) -> tuple[Any, Any]:
        assert features is not None
        features = features.add_column(ROW, np.arange(len(features)))  # type: ignore[arg-type]
        return features, SoftTargetCollator(collate, self.targets, self.output)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Returns the sum of [`distillation_loss`], divided by the items in all accumulated batches and processes."""
        if TEACHER_LOGITS not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        args: Any = self.args
        inputs = dict(inputs)
        teacher = inputs.pop(TEACHER_LOGITS)
        labels = self.output.pop_labels(inputs)
        outputs = model(**inputs)
        # `list_items` leaves out the padding of filled rows.
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


def prepare_distillation(
    task: Task[Any, Any, Any],
    model_args: FineTunedModelArguments,
    teacher_args: FineTunedModelArguments,
    args: FineTuningArguments,
    sources: Sources | None = None,
) -> tuple[PreparedTask, PreparedTask, FineTuningTrainer]:
    """Prepares a task for a teacher and for its student.

    Args:
        task: the task. It does not change.
        model_args: the student.
        teacher_args: the teacher.
        args: the settings. Sets `learning_rate` unless the user chose one.
        sources: datasets in memory. None: the arguments of the task select the data, and the output folder is checked.

    Returns:
        The prepared tasks of teacher and student, and a trainer with the teacher. The student has no soft targets yet.

    Raises:
        InputError: see [`prepare_task`]; settings cannot be combined; or there are no training examples.
    """
    if any(getattr(args, name) or args.varies(name) for name in ("class_weights", "label_smoothing_factor")):
        raise InputError("--teacher_name_or_path cannot be combined with --class_weights or --label_smoothing_factor.")
    teacher = prepare_task(task, teacher_args, copy.copy(args), sources=sources)
    if teacher.train_features is None:
        raise InputError(
            "--teacher_name_or_path needs training examples: --train_file or --unlabeled_file. With --do_eval or "
            "--do_predict, also pass --do_train."
        )
    student = prepare_task(task, model_args, args, teacher, sources, checks_output_dir=sources is None)
    trainer = make_teacher_trainer(teacher, args)
    student.distillation = Distillation(hash_model(trainer.model))
    student.settings |= {
        "teacher": find_base_model(teacher_args.model_name_or_path)[1],
        "distillation_temperature": args.distillation_temperature,
        "distillation_weight": args.distillation_weight,
    }
    return teacher, student, trainer


def make_teacher_trainer(teacher: PreparedTask, args: FineTuningArguments) -> FineTuningTrainer:
    """Returns a trainer that only predicts. Training arguments do not change the teacher."""
    args = copy.copy(args)
    args.push_to_hub, args.report_to = False, []
    args.output_dir = tempfile.gettempdir()  # Trainer creates the folder, even in a dry run
    args.freeze_embeddings, args.freeze_layers, args.unfreeze_after_steps, args.reinit_layers = False, 0, None, 0
    args.fp16_full_eval = args.bf16_full_eval = False  # Trainer would change the weights in place
    args.sweep, args.seeds = None, 1
    return FineTuningTrainer(task=teacher, args=args)


def move_model(trainer: FineTuningTrainer, device: Any) -> None:
    """Moves the model of a trainer to a device."""
    model: Any = trainer.model
    model.to(device)


def make_soft_targets(
    teacher: PreparedTask,
    student: PreparedTask,
    trainer: FineTuningTrainer,
    cache_dir: str | None,
) -> SoftTargets:
    """Computes the teacher's logits for the training examples of the student.

    Teacher and student may have different tokenizers if their items are the same, such as words.

    Args:
        teacher: the teacher's task, with its own tokens.
        student: the student's task.
        trainer: a trainer with the teacher.
        cache_dir: see [`compute_logits`].

    Raises:
        InputError: the tokenizers of teacher and student split the text differently, and the items are tokens.
    """
    assert teacher.train_features is not None and student.train_features is not None
    assert student.distillation is not None
    output = student.task.output
    counts, teacher_counts = (output.count_items(each.train_features) for each in (student, teacher))
    if not output.match(counts, teacher_counts):
        raise InputError(
            "--teacher_name_or_path: teacher and student split the text differently. Choose a student with the "
            "teacher's tokenizer."
        )
    return SoftTargets(
        logits=compute_items(trainer, teacher.train_features, student.distillation.teacher, cache_dir),
        first_items=np.concatenate([[0], np.cumsum(counts)]),
        kind=student.task.problem,
    )
