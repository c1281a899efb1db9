"""Collects the facts of a run: its settings, its results, and the settings that must not change when it resumes."""

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from snugbert.card_snugbert import find_base_model
from snugbert.reports.cards import package_versions
from snugbert.reports.results import RunResults
from snugbert.trainers.finetuning.finetuning_arguments import COMPARED_SETTINGS, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask, describe_initial_weights, list_student_settings
from snugbert.trainers.run.run_settings import BEST_MODEL_SETTINGS, TRAINING_SETTINGS

# The training settings in results.json and in the model card.
SETTINGS = (
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    "reinit_layers",
    "layerwise_lr_decay",
    "freeze_embeddings",
    "freeze_layers",
    "unfreeze_after_steps",
    "class_weights",
    "early_stopping_patience",
    "label_smoothing_factor",
    "optim",
    "precision",
    "seed",
)
# All settings that affect the outcome. They must not change when a sweep continues.
OUTCOME_SETTINGS = (
    *SETTINGS,
    *TRAINING_SETTINGS,
    *BEST_MODEL_SETTINGS,
    *COMPARED_SETTINGS,
    "do_train",
    "do_eval",
    "do_predict",
    "sweep",
    "pad_to_max_length",
)


def collect_settings(args: FineTuningArguments, names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """Returns the settings `names` and the number of processes, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    del values["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # max_steps overrides the epochs
    return {**values, "processes": args.world_size}


def collect_results(
    prepared: PreparedTask,
    args: FineTuningArguments,
    training: dict[str, float],
    metrics: dict[str, dict[str, float]],
    changes: Sequence[str] = (),
) -> RunResults:
    """Returns the content of `results.json`. `training` is empty if the run did not train.

    `changes` lists what changed when the run resumed.
    """
    config_name = prepared.model_args.config_name
    baselines = {s.name: s.baseline for s in prepared.evaluation_sets if s.baseline is not None}
    return {
        "task": prepared.task.name,
        "model": find_base_model(prepared.model_args.model_name_or_path)[1],
        "config": find_base_model(config_name)[1] if config_name else None,
        "metrics": metrics,
        "perfect_score": prepared.task.perfect_score,
        "baselines": {name: {"answer": answer, **scores} for name, (answer, scores) in baselines.items()},
        "examples": {s.name: s.num_examples for s in prepared.evaluation_sets},
        "data": {name: [source._asdict() for source in sources] for name, sources in prepared.data.items()},
        "copies": prepared.copies.sentences,
        "training": training,
        "settings": {
            **list_student_settings(prepared.model_args),
            **prepared.settings,
            **(collect_settings(args) if training else {}),
            **({"changed_on_resume": "; ".join(changes)} if changes else {}),
        },
        "versions": package_versions(),
    }


def compared_settings(prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns further settings that must not change on resume."""
    data = {"the training data": prepared.train_features}
    if args.load_best_model_at_end and prepared.validation_set is not None:
        data["the validation data"] = prepared.validation_set.features.inputs
    return {
        **describe_initial_weights(prepared.model_args),
        "batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "data": {
            **{name: digest_features(features) for name, features in data.items() if features is not None},
            **({} if prepared.distillation is None else {"the teacher": prepared.distillation.teacher}),
        },
    }


def digest_features(dataset: Dataset) -> str:
    """Returns a digest of the numeric columns, which changes if an example changes."""
    table = dataset.with_format("arrow")[:]
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table[name].combine_chunks()
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            digest.update(pc.list_value_length(column).to_numpy(zero_copy_only=False).tobytes())
            column = pc.list_flatten(column)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            digest.update(name.encode() + column.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:16]
