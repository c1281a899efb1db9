"""The command that fine-tunes: with a teacher, it distills it into a student.

teacher's logits (cached) -> student without the teacher, for comparison -> student -> one table of the three
"""

import copy
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from snugbert.card_snugbert import find_base_model
from snugbert.errors import InputError
from snugbert.json_files import read_json
from snugbert.students import hash_model
from snugbert.trainers.finetuning.arguments import ExampleLimits, FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.results import RESULTS
from snugbert.trainers.finetuning.run import make_trainer
from snugbert.trainers.finetuning.soft_targets import SoftTargets
from snugbert.trainers.finetuning.sweep import run_task
from snugbert.trainers.finetuning.task import FineTuningTask
from snugbert.trainers.finetuning.teacher import (
    compute_logits,
    count_items,
    count_parameters,
    select_items,
)
from snugbert.trainers.finetuning.trainer import FineTuningTrainer
from snugbert.trainers.output_folder import WITHOUT_TEACHER

TIMED_EXAMPLES = 1000  # of the validation set


class MakeTask(Protocol):
    """`make_task` of a command."""

    def __call__(
        self,
        model_args: FineTunedModelArguments,
        data_args: Any,
        training_args: FineTuningArguments,
        teacher: FineTuningTask | None = None,
    ) -> FineTuningTask:
        """Returns the task that the arguments describe."""


def run_command(
    make_task: MakeTask, model_args: FineTunedModelArguments, data_args: ExampleLimits, args: FineTuningArguments
) -> None:
    """Fine-tunes, and prints a summary. With `teacher_name_or_path`, distills.

    Raises:
        InputError: see [`run_task`]; or the arguments, the teacher and the data do not fit each other.
    """
    if model_args.teacher_name_or_path is None:
        if getattr(data_args, "unlabeled_file", None) is not None:
            raise InputError("--unlabeled_file needs a teacher that labels it. Give --teacher_name_or_path.")
        run_task(make_task(model_args, data_args, args), model_args, args)
        return
    if args.class_weights is not None or args.label_smoothing_factor:
        raise InputError("--teacher_name_or_path cannot be combined with --class_weights or --label_smoothing_factor.")
    teacher = make_task(model_args.as_teacher(), data_args, copy.copy(args))
    if teacher.train_features is None:
        raise InputError("--teacher_name_or_path needs training examples. Give --train_file or --unlabeled_file.")
    without = _train_without_teacher(make_task, model_args, data_args, args)
    task = make_task(model_args, data_args, args, teacher)
    trainer = _make_teacher_trainer(teacher, args)
    task.soft_targets = make_soft_targets(teacher, task, trainer, args, model_args.cache_dir)
    task.teacher_digest = hash_model(trainer.model)  # type: ignore[arg-type]
    task.settings |= {
        "teacher": find_base_model(model_args.teacher_name_or_path)[1],
        "distillation_temperature": args.distillation_temperature,
        "distillation_weight": args.distillation_weight,
    }
    task.compare = functools.partial(compare_models, teacher, task, trainer, without, model_args.cache_dir)
    _move(trainer, "cpu")  # the student needs the memory of the GPU
    run_task(task, model_args, args)


def _make_teacher_trainer(teacher: FineTuningTask, args: FineTuningArguments) -> FineTuningTrainer:
    args = copy.copy(args)
    args.push_to_hub = False
    args.freeze_embeddings, args.freeze_layers, args.unfreeze_after_steps = False, 0, None
    return make_trainer(teacher, args)


def _move(trainer: FineTuningTrainer, device: Any) -> None:
    model: Any = trainer.model
    model.to(device)


def _train_without_teacher(
    make_task: MakeTask, model_args: FineTunedModelArguments, data_args: Any, args: FineTuningArguments
) -> Path | None:
    """Trains the same student on the gold labels alone. Returns its folder, or None if there is no comparison."""
    if not args.compare_without_teacher:
        return None
    args = copy.copy(args)
    args.output_dir = str(Path(str(args.output_dir)) / WITHOUT_TEACHER)
    args.push_to_hub = False
    model_args = dataclasses.replace(model_args, teacher_name_or_path=None)
    task = make_task(model_args, dataclasses.replace(data_args, unlabeled_file=None), args)
    if task.train_features is None:  # all examples are unlabeled
        return None
    run_task(task, model_args, args)
    return Path(args.output_dir)


def make_soft_targets(
    teacher: FineTuningTask,
    task: FineTuningTask,
    trainer: FineTuningTrainer,
    args: FineTuningArguments,
    cache_dir: str | None,
) -> SoftTargets:
    """Computes the teacher's logits for the training examples of the student's task.

    Teacher and student may have different tokenizers, except for question answering, which predicts tokens.

    Args:
        teacher: the teacher's task, with its own tokens.
        task: the student's task.
        trainer: a trainer with the teacher.
        args: temperature and weight.
        cache_dir: see [`compute_logits`].

    Raises:
        InputError: teacher and student have different tokens where it matters.
    """
    assert teacher.train_features is not None and task.train_features is not None
    tag = task.pipeline_tag
    logits = compute_logits(trainer, teacher.train_features, cache_dir)
    counts = count_items(task.train_features, tag)
    teacher_counts = count_items(teacher.train_features, tag)
    # The words of a sentence are the same for all tokenizers. Their windows are not.
    same = (
        np.array_equal(counts, teacher_counts) if tag == "question-answering" else sum(counts) == sum(teacher_counts)
    )
    if not same:
        raise InputError(
            "--teacher_name_or_path: its tokenizer splits the text differently. Choose a student with its tokenizer."
        )
    kind: Any = "regression" if task.labels is None and tag == "text-classification" else "single_label_classification"
    return SoftTargets(
        logits=select_items(logits, teacher.train_features, tag).astype(np.float32),
        first_items=np.concatenate([[0], np.cumsum(counts)]),
        kind="multi_label_classification" if task.multi_label else kind,
        temperature=args.distillation_temperature,
        weight=args.distillation_weight,
    )


# --- comparison -------------------------------------------------------------------------------------------------


def compare_models(
    teacher: FineTuningTask,
    task: FineTuningTask,
    trainer: FineTuningTrainer,
    without: Path | None,
    cache_dir: str | None,
    results: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Returns a row for the teacher, the student, and the student without the teacher.

    Args:
        teacher: the teacher's task.
        task: the student's task.
        trainer: a trainer with the teacher.
        without: the folder of the student without the teacher. None: no such row.
        cache_dir: see [`compute_logits`].
        results: the results of the student's run or sweep.

    Returns:
        Rows with `model`; `metric`, `mean`, `std`, `interval` and `seeds` on the validation set; `parameters`; `bytes`
        of the weights; and `examples_per_second`, of the first `TIMED_EXAMPLES` validation examples.
    """
    validation = teacher.validation_set
    if validation is None or validation.score is None:
        return []
    _move(trainer, trainer.args.device)
    student_trainer = make_trainer(dataclasses.replace(task, soft_targets=None), trainer.args)  # type: ignore[arg-type]
    costs = [_measure_costs(each) for each in (trainer, student_trainer)]
    metric = task.main_metric
    logits = compute_logits(trainer, validation.features, cache_dir)
    predictions = validation.decode(logits)
    score: dict[str, Any] = {
        "mean": validation.score(predictions)[metric],
        "std": np.nan,
        "seeds": 1,
        "interval": None,
    }
    if validation.estimate_intervals is not None:
        score["interval"] = validation.estimate_intervals(predictions).get(metric)
    rows = [{"model": "teacher", "metric": metric, **score, **costs[0]}]
    students = {"student": results, "student without teacher": without and read_json(without / RESULTS)}
    for name, found in students.items():
        if found:
            rows.append({"model": name, "metric": metric, **_read_score(found, validation.name, metric), **costs[1]})
    return rows


def _read_score(results: Mapping[str, Any], set_name: str, metric: str) -> dict[str, Any]:
    """Returns mean, standard deviation, interval and number of seeds of a run or of a sweep's best setting."""
    if "sweep" in results:
        best = results["sweep"]["best_setting"]["seeds"]
        return {**results["sweep"]["metrics"][set_name][metric], "seeds": best}
    interval = results.get("intervals", {}).get(set_name, {}).get(metric)
    return {"mean": results["metrics"][set_name][metric], "std": np.nan, "seeds": 1, "interval": interval}


def _measure_costs(trainer: FineTuningTrainer) -> dict[str, Any]:
    """Measures examples per second, after a short warmup, and counts parameters and bytes."""
    features: Any = trainer.eval_dataset
    features = features.select(range(min(TIMED_EXAMPLES, len(features))))
    trainer.predict(features.select(range(min(64, len(features)))))
    speed = (trainer.predict(features).metrics or {})["test_samples_per_second"]
    parameters, size = count_parameters(trainer.model)  # type: ignore[arg-type]
    return {"parameters": parameters, "bytes": size, "examples_per_second": speed}
