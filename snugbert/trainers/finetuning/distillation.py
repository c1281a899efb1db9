"""Runs a fine-tuning command. With a teacher, distills the teacher into a student.

teacher's logits (cached) -> student -> a table of both models
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from snugbert.data.sources import DataArguments
from snugbert.errors import InputError
from snugbert.tasks import find_task
from snugbert.tasks.base import Task
from snugbert.trainers.finetuning.distillation_trainer import make_soft_targets, move_model, prepare_distillation
from snugbert.trainers.finetuning.fine_tune import make_trainer
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.plan import check_plan
from snugbert.trainers.finetuning.prepare_task import PreparedTask, prepare_task
from snugbert.trainers.finetuning.sweep import plan_sweep, run_task
from snugbert.trainers.finetuning.teacher import compute_logits, count_parameters
from snugbert.trainers.run.processes import set_up
from snugbert.trainers.run.run_lock import lock_output_dir

DISTILLATION_FLAGS = ("distillation_temperature", "distillation_weight")
TIMED_EXAMPLES = 1000  # of the validation set
WARMUP_EXAMPLES, ROUNDS = 64, 3

logger = logging.getLogger(__name__)


def run_fine_tuning(
    model_args: FineTunedModelArguments, data_args: DataArguments, args: FineTuningArguments, head: str
) -> None:
    """Runs a fine-tuning command.

    Args:
        model_args, data_args, args: the arguments of the command.
        head: the head of the models, such as "ForTokenClassification". It determines the task.

    Raises:
        InputError: see [`fine_tune_or_distill`]; or the output folder is in use.
    """
    set_up(args)
    with lock_output_dir(args):
        fine_tune_or_distill(find_task(head)(data_args), model_args, args)


def fine_tune_or_distill(
    task: Task[Any, Any, Any], model_args: FineTunedModelArguments, args: FineTuningArguments
) -> None:
    """Fine-tunes, and prints a summary. With `teacher_name_or_path`, distills.

    Raises:
        InputError: see [`run_task`]; or arguments, teacher and data do not fit together.
    """
    if model_args.teacher_name_or_path is None:
        if task.args.unlabeled_file is not None:
            raise InputError("--unlabeled_file needs a teacher that labels the examples: --teacher_name_or_path.")
        refuse_distillation_flags(args)
        run_task(prepare_task(task, model_args, args), args)
        return
    teacher, student, trainer = prepare_distillation(task, model_args, model_args.as_teacher(), args)
    distillation = student.distillation
    assert distillation is not None
    if args.sweeps:  # a single run was checked by `prepare_task`
        _, plan = plan_sweep(student, args)
        check_plan(plan, args, [Path(str(args.output_dir))])
    distillation.soft_targets = make_soft_targets(teacher, student, trainer, model_args.cache_dir)
    move_model(trainer, "cpu")  # the student needs the memory of the GPU
    if teacher.validation_set is not None and teacher.validation_set.labeled:
        distillation.compare = functools.partial(measure_models, teacher, student, trainer, model_args.cache_dir)
    logger.info("training the student with the teacher")
    run_task(student, args)


def refuse_distillation_flags(args: FineTuningArguments) -> None:
    """Raises [`InputError`] if flags need a teacher."""
    for name in DISTILLATION_FLAGS:
        if getattr(args, name) != getattr(FineTuningArguments, name) or args.varies(name):
            raise InputError(f"--{name} needs --teacher_name_or_path.")


# --- comparison -------------------------------------------------------------------------------------------------


def measure_models(
    teacher: PreparedTask,
    student: PreparedTask,
    trainer: FineTuningTrainer,
    cache_dir: str | None,
) -> Callable[[Mapping[str, Any]], list[dict[str, Any]]]:
    """Scores the teacher, and measures the speed of the teacher and the student. Every process must call this.

    Args:
        teacher: the teacher's task.
        student: the student's task.
        trainer: a trainer with the teacher.
        cache_dir: see [`compute_logits`].

    Returns:
        A function for the main process. From the results of the student's run or sweep, the function makes a row for
        the teacher and one for the student. Rows have `model`; `metric`, `mean`, `std`, `interval` and `seeds` on the
        validation set; `parameters`; `bytes` of the weights; and `examples_per_second`, on the first `TIMED_EXAMPLES`
        windows of the validation examples.
    """
    validation, distillation = teacher.validation_set, student.distillation
    assert validation is not None and distillation is not None
    move_model(trainer, trainer.args.device)
    student_trainer = make_trainer(dataclasses.replace(student, distillation=None), trainer.args)  # type: ignore[arg-type]
    teacher_costs, student_costs = _measure_costs(validation.num_examples, trainer, student_trainer)
    metric = student.task.main_metric
    logits = compute_logits(trainer, validation.features.inputs, distillation.teacher, cache_dir)
    answers = validation.decode(logits)
    score = {
        "mean": validation.score(answers)[metric],
        "std": np.nan,
        "seeds": 1,
        "interval": validation.estimate_intervals(answers).get(metric),
    }

    # The teacher's thresholds may come from these examples, so its score may be too high. The student's score is
    # cross-fitted.
    teacher_name = "teacher with its thresholds" if teacher.task.thresholds else "teacher"

    def make_rows(results: Mapping[str, Any]) -> list[dict[str, Any]]:
        student_score = _read_score(results, validation.name, metric)
        return [
            {"model": teacher_name, "metric": metric, **score, **teacher_costs},
            {"model": "student", "metric": metric, **student_score, **student_costs},
        ]

    return make_rows


def _read_score(results: Mapping[str, Any], set_name: str, metric: str) -> dict[str, Any]:
    """Returns mean, standard deviation, interval and number of seeds of a run or of a sweep's best setting."""
    if "sweep" in results:
        best = results["sweep"]["best_setting"]["seeds"]
        return {**results["sweep"]["metrics"][set_name][metric], "seeds": best}
    interval = results.get("intervals", {}).get(set_name, {}).get(metric)
    return {"mean": results["metrics"][set_name][metric], "std": np.nan, "seeds": 1, "interval": interval}


def _measure_costs(num_examples: int, *trainers: FineTuningTrainer) -> list[dict[str, Any]]:
    """Counts parameters and bytes, and measures examples per second: the median of alternating rounds.

    The first round is a warmup with few examples. `num_examples` is the size of the validation set.
    """
    speeds: list[list[float]] = [[] for _ in trainers]
    for number in (WARMUP_EXAMPLES, *[TIMED_EXAMPLES] * ROUNDS):
        for trainer, measured in zip(trainers, speeds, strict=True):
            features: Any = trainer.eval_dataset
            output = trainer.predict(features.select(range(min(number, len(features)))))
            # Trainer counts features. A long example has several windows.
            measured.append((output.metrics or {})["test_samples_per_second"] * num_examples / len(features))
    costs = []
    for trainer, measured in zip(trainers, speeds, strict=True):
        parameters, size = count_parameters(trainer.model)  # type: ignore[arg-type]
        costs.append({"parameters": parameters, "bytes": size, "examples_per_second": median(measured[1:])})
    return costs
