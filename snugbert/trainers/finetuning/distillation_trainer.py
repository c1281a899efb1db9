"""The Trainer of distillation: a student learns from a teacher's logits and from the labels.

teacher's logits (cached) -> soft targets -> batches of the student

The cache is the folder `snugbert/teachers` in `HF_HOME` or `--cache_dir`. Each file contains the logits for `PART`
examples. Its name is a digest of the teacher's weights and configuration, the examples and the precision. So a changed
teacher or example gets a new file. After a kill, only the missing files are computed.
"""

import copy
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from snugbert.card_snugbert import find_base_model
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.families.students import hash_model
from snugbert.files import hash_json, replacing
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.storage.inputs import work_folder
from snugbert.tasks.base import Sources, Task
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.losses import ROW, TEACHER_LOGITS, SoftTargetCollator, distillation_loss
from snugbert.trainers.finetuning.prepare_task import PreparedTask, SoftTargets, name_model, name_sources, prepare_task
from snugbert.trainers.finetuning.run_records import digest_features
from snugbert.trainers.run.processes import raise_together, wait_for_all

PART = 16384  # examples in a file of cached logits: some minutes of work on a CPU

logger = logging.getLogger(__name__)

TEACHERS = "teachers"  # folder in the cache


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
            check_distillation(args, sources)
            is_new = isinstance(model, str) and model in SIZES and not Path(model).exists()
            if is_new and processing_class is None and not isinstance(teacher, PreTrainedModel):
                processing_class = load_tokenizer(TokenizerArguments(tokenizer_name=str(teacher)))
            model_args = name_model(model, processing_class)
            model_args.teacher_name_or_path = str(teacher) if isinstance(teacher, str | Path) else None
            in_memory = isinstance(teacher, PreTrainedModel)
            teacher_args = name_model(teacher, processing_class if in_memory else None)
            prepared_teacher = prepare_task(task, teacher_args, sources, is_teacher=True)
            task = prepare_task(task, model_args, sources, prepared_teacher)
            add_soft_targets(task, prepared_teacher, args)
        assert task.soft_targets is not None
        self.targets = task.soft_targets
        super().__init__(task=task, args=args, eval_dataset=eval_dataset, **kwargs)
        features: Any = self.train_dataset
        self.train_dataset = features.add_column(ROW, np.arange(len(features)))
        self.data_collator = SoftTargetCollator(self.data_collator, self.targets, self.output)
        self.keep_column(ROW)

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
        args = self.args
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


def check_distillation(args: FineTuningArguments, sources: Sources) -> None:
    """Refuses what cannot be distilled, before data are read."""
    if any(getattr(args, name) or args.varies(name) for name in ("class_weights", "label_smoothing_factor")):
        raise InputError("--teacher_name_or_path cannot be combined with --class_weights or --label_smoothing_factor.")
    if "train" not in sources and "unlabeled" not in sources:
        raise InputError(
            "--teacher_name_or_path needs training examples: --train_file or --unlabeled_file. With --do_eval or "
            "--do_predict, also pass --do_train."
        )


def add_soft_targets(student: PreparedTask, teacher: PreparedTask, args: FineTuningArguments) -> None:
    """Computes the teacher's logits of the training examples. Every process must call this.

    Teacher and student may have different tokenizers if their items are the same, such as words.
    """
    student.settings |= {
        "teacher": find_base_model(teacher.model_args.model_name_or_path)[1],
        "distillation_temperature": args.distillation_temperature,
        "distillation_weight": args.distillation_weight,
    }
    output = student.task.output
    counts, teacher_counts = (output.count_items(each.train_features) for each in (student, teacher))
    if not output.match(counts, teacher_counts):
        raise InputError(
            "--teacher_name_or_path: teacher and student split the text differently. Choose a student with the "
            "teacher's tokenizer."
        )
    trainer = _make_teacher_trainer(teacher, args)
    digest = hash_model(trainer.model)
    student.soft_targets = SoftTargets(
        teacher=digest,
        logits=compute_items(trainer, teacher.train_features, digest, student.model_args.cache_dir),
        first_items=np.concatenate([[0], np.cumsum(counts)]),
        kind=student.task.problem,
    )
    trainer.model.to("cpu")  # the student needs the memory of the GPU


def _make_teacher_trainer(teacher: PreparedTask, args: FineTuningArguments) -> FineTuningTrainer:
    """Returns a trainer that only predicts. Training arguments do not change the teacher."""
    args = copy.copy(args)
    args.push_to_hub, args.report_to = False, []
    args.output_dir = tempfile.gettempdir()  # Trainer creates the folder, even in a dry run
    args.fp16_full_eval = args.bf16_full_eval = False  # Trainer would change the weights in place
    args.sweep, args.seeds = None, 1
    return FineTuningTrainer(task=teacher, args=args)


# --- the teacher's logits -----------------------------------------------------------------------------------------


def compute_items(
    trainer: FineTuningTrainer, features: Dataset | None, teacher: str, cache_dir: str | None
) -> np.ndarray:
    """Returns the teacher's logits of all items of the training examples, computed or from the cache.

    Every process must call this. The first process reads and writes the cache. `teacher` is the digest of the teacher.
    *Shape:* (items, C), see [`SoftTargets`]
    """
    assert features is not None
    labels = [name for name in features.column_names if name in trainer.output.label_columns]
    keyed = [] if trainer.output.labels_mark_items else labels  # labels matter only if they mark the items
    folder = work_folder(cache_dir) / TEACHERS
    computed, parts = 0, []
    for start in range(0, len(features), PART):
        part = features.select(range(start, min(start + PART, len(features))))
        key = [teacher, "items", digest_features(part.remove_columns(keyed)), trainer.accelerator.mixed_precision]
        file = folder / f"{hash_json(key)}.safetensors"
        with raise_together():
            cached_items = _read(file, trainer.is_world_process_zero())
        (items,) = broadcast_object_list([cached_items])
        if items is None:
            logits: Any = trainer.predict(part.remove_columns(labels)).predictions
            items = trainer.output.select_items(logits, part).astype(np.float32)
            computed += len(part)
            if trainer.is_world_process_zero():
                _write(file, items)
        parts.append(items)
    wait_for_all()
    cached = len(features) - computed
    logger.info("teacher: logits of %d examples, %d from the cache (%s)", len(features), cached, folder)
    return np.concatenate(parts)


def _read(file: Path, is_main: bool) -> np.ndarray | None:
    """Reads cached logits in the main process. None: they are not cached."""
    if not is_main or not file.exists():
        return None
    try:
        return load_file(file)["0"]
    except SafetensorError as error:
        raise InputError(f"{file} is damaged ({error}). Remove this file. The next run computes it again.") from error


def _write(file: Path, items: np.ndarray) -> None:
    """Writes a whole file or nothing. If the disk is full, the logits are not cached."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, file.with_name(f"_{os.getpid()}_{file.name}")) as unfinished:
            save_file({"0": np.ascontiguousarray(items)}, unfinished)
    except (OSError, SafetensorError) as error:
        logger.warning("the teacher's logits are not cached: %s", error)
