"""The Trainer of distillation: a student learns from a teacher's logits and from the labels.

teacher's logits (cached) -> soft targets -> batches of the student

The cache is the folder `snugbert/teachers` in `HF_HOME` or `--cache_dir`. The name of a file is a digest of the
teacher's weights and configuration, the examples and the precision.
"""

import copy
import functools
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from safetensors.numpy import load_file, save_file
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from snugbert.card_snugbert import find_base_model
from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.families.engine_models import refuse_export
from snugbert.families.loading import load_tokenizer
from snugbert.families.students import hash_model
from snugbert.files import hash_json, replacing
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.storage.inputs import work_folder
from snugbert.tasks.base import Sources, Task
from snugbert.tasks.outputs import Output
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.losses import distillation_loss
from snugbert.trainers.finetuning.prepare_task import PreparedTask, SoftTargets, connect_data, name_model, prepare_task
from snugbert.trainers.finetuning.run_records import digest_features
from snugbert.trainers.finetuning.sweep_file import DISTILLATION_SETTINGS

logger = logging.getLogger(__name__)

ROW = "soft_target_row"  # column with the number of the example
TEACHER_LOGITS = "teacher_logits"


class DistillationTrainer(FineTuningTrainer):
    """Trains a student on a teacher's soft targets and on labels. A [`FineTuningTrainer`].

        DistillationTrainer("tiny", teacher="sst2", train_dataset="train.csv", eval_dataset="dev.csv").train()

    The teacher's logits are computed first, and cached. Evaluation is unchanged: its loss uses labels only.

    Args:
        model: the student, as in [`FineTuningTrainer`]. A size such as "tiny" uses the tokenizer of the teacher.
        args: the settings. `distillation_temperature` and `distillation_weight` apply to the teacher's soft targets.
        teacher: a Hub name or folder of a model that was fine-tuned for this task, or a SnugBERT model in memory with
            the tokenizer `processing_class`.
        unlabeled_dataset: more rows to train on. Only the teacher labels them.
        task, train_dataset, eval_dataset, processing_class, callbacks, compute_metrics, optimizers: as in
            [`FineTuningTrainer`].
    """

    compared_names = (*FineTuningTrainer.compared_names, *DISTILLATION_SETTINGS)

    def __init__(
        self,
        model: str | Path | PreTrainedModel | None = None,
        args: FineTuningArguments | None = None,
        task: Task[Any, Any, Any] | PreparedTask | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        teacher: str | Path | PreTrainedModel | None = None,
        unlabeled_dataset: Any = None,
        callbacks: Sequence[TrainerCallback] = (),
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
    ):
        if not isinstance(task, PreparedTask):
            args = FineTuningArguments() if args is None else FineTuningArguments.copy_of(args)
            first = next(iter(eval_dataset.values())) if isinstance(eval_dataset, Mapping) else eval_dataset
            data = {"train_dataset": train_dataset, "unlabeled_dataset": unlabeled_dataset, "eval_dataset": first}
            task, sources = connect_data(task, **data)
            in_memory = isinstance(teacher, PreTrainedModel)
            teacher_args = name_model(teacher, processing_class if in_memory else None, "teacher")
            is_new = isinstance(model, str) and model in SIZES and not Path(model).exists()
            if is_new and processing_class is None and not in_memory:
                processing_class = load_tokenizer(teacher_args)
            model_args = name_model(model, processing_class)
            model_args.teacher_name_or_path = None if in_memory else str(teacher)
            task = prepare_student(task, model_args, teacher_args, sources, args)
        assert task.soft_targets is not None
        self.targets = task.soft_targets
        others: Any = {"callbacks": callbacks, "compute_metrics": compute_metrics, "optimizers": optimizers}
        super().__init__(task=task, args=args, eval_dataset=eval_dataset, **others)
        features: Any = self.train_dataset
        self.train_dataset = features.add_column(ROW, np.arange(len(features)))
        self.data_collator = functools.partial(collate_soft_targets, self.data_collator, self.targets, self.output)
        self.keep_column(ROW)

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns the sum of [`distillation_loss`], divided by the items in all accumulated batches and processes."""
        if TEACHER_LOGITS not in inputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs = dict(inputs)
        teacher = inputs.pop(TEACHER_LOGITS)
        labels = self.output.pop_labels(inputs)
        outputs = model(**inputs)
        # `list_items` leaves out the padding of filled rows.
        parts = list(self.output.list_items(outputs, inputs, labels, teacher))
        kind = self.prepared.task.problem
        settings = self.args.distillation_temperature, self.args.distillation_weight
        losses = [distillation_loss(*items, kind, *settings) for items in parts]
        count = (parts[0].labels != IGNORE_INDEX).sum() if num_items_in_batch is None else num_items_in_batch
        total: Any = sum(losses) / len(losses)
        loss = total / torch.as_tensor(count, device=total.device).clamp(min=1)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss


def collate_soft_targets(
    collate: Callable[[Any], Any], targets: SoftTargets, output: Output, features: Sequence[Mapping[str, Any]]
) -> Any:
    """Returns the batch of another collator, with the teacher's logits. Evaluation has no such logits."""
    if ROW not in features[0]:
        return collate(features)
    batch = collate([{name: feature[name] for name in feature if name != ROW} for feature in features])
    first = targets.first_items
    rows = [feature[ROW] for feature in features]
    batch[TEACHER_LOGITS] = output.join_items(
        [torch.from_numpy(targets.logits[first[row] : first[row + 1]]) for row in rows]
    )
    return batch


# --- the teacher --------------------------------------------------------------------------------------------------


def prepare_student(
    task: Task[Any, Any, Any],
    model_args: FineTunedModelArguments,
    teacher_args: FineTunedModelArguments,
    sources: Sources,
    args: FineTuningArguments,
) -> PreparedTask:
    """Prepares a run with the teacher's logits of the training examples. Every process must call this.

    Teacher and student may have different tokenizers if both score the same items, such as words.
    """
    if any(getattr(args, name) or args.varies(name) for name in ("class_weights", "label_smoothing_factor")):
        raise InputError("--teacher_name_or_path cannot be combined with --class_weights or --label_smoothing_factor.")
    if "train" not in sources and "unlabeled" not in sources:
        raise InputError(
            "--teacher_name_or_path needs training examples: --train_file or --unlabeled_file. With --do_eval or "
            "--do_predict, also pass --do_train."
        )
    refuse_export(teacher_args.model_name_or_path)
    teacher = prepare_task(task, teacher_args, sources, is_teacher=True)
    student = prepare_task(task, model_args, sources, teacher)
    student.settings["teacher"] = find_base_model(teacher_args.model_name_or_path)[1]
    output = student.task.output
    counts, teacher_counts = (output.count_items(each.train_features) for each in (student, teacher))
    if not output.match(counts, teacher_counts):
        raise InputError(
            "--teacher_name_or_path: teacher and student split the text differently. Choose a student with the "
            "teacher's tokenizer."
        )
    trainer = _make_teacher_trainer(teacher, args)
    digest = hash_model(trainer.model)
    logits = compute_items(trainer, teacher.train_features, digest, model_args.cache_dir)
    student.soft_targets = SoftTargets(digest, logits, np.concatenate([[0], np.cumsum(counts)]))
    trainer.model.to("cpu")  # the student needs the memory of the GPU
    return student


def _make_teacher_trainer(teacher: PreparedTask, args: FineTuningArguments) -> FineTuningTrainer:
    """Returns a trainer that only predicts. It leaves the teacher's weights as they are."""
    args = copy.copy(args)
    args.push_to_hub, args.report_to = False, []
    args.output_dir = tempfile.gettempdir()  # Trainer creates the folder, even in a dry run
    args.fp16_full_eval = args.bf16_full_eval = False  # Trainer would change the weights in place
    args.sweep, args.seeds = None, 1
    return FineTuningTrainer(task=teacher, args=args)


def compute_items(trainer: FineTuningTrainer, features: Any, teacher: str, cache_dir: str | None) -> np.ndarray:
    """Returns the teacher's logits of all items of the training examples, computed or from the cache.

    Every process must call this. `teacher` is the digest of the teacher. *Shape:* (items, C), see [`SoftTargets`]
    """
    labels = [name for name in features.column_names if name in trainer.output.label_columns]
    keyed = [] if trainer.output.labels_mark_items else labels  # labels matter only if they mark the items
    key = [teacher, digest_features(features.remove_columns(keyed)), trainer.accelerator.mixed_precision]
    file = work_folder(cache_dir) / "teachers" / f"{hash_json(key)}.safetensors"
    logger.info("teacher: logits of %d examples, cached in %s", len(features), file.parent)
    file.parent.mkdir(parents=True, exist_ok=True)
    is_main = trainer.is_world_process_zero()
    (items,) = broadcast_object_list([load_file(file)["logits"] if is_main and file.exists() else None])
    if items is None:
        logits: Any = trainer.predict(features.remove_columns(labels)).predictions
        items = trainer.output.select_items(logits, features).astype(np.float32)
        if is_main:
            with replacing(file, file.with_name(f"_{os.getpid()}_{file.name}")) as unfinished:
                save_file({"logits": np.ascontiguousarray(items)}, unfinished)
    return items
