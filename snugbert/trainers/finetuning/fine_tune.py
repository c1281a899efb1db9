"""Runs a fine-tuning command: reads its data, checks its output folder, and starts one run or a sweep."""

from typing import Any

from snugbert.data.sources import DataArguments
from snugbert.errors import InputError
from snugbert.tasks import find_task
from snugbert.tasks.base import Task
from snugbert.trainers.finetuning.distillation_trainer import prepare_distillation
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import prepare_task
from snugbert.trainers.finetuning.single_run import find_start
from snugbert.trainers.finetuning.sweep import run_task
from snugbert.trainers.run.folder import lock_output_dir
from snugbert.trainers.run.processes import set_up

DISTILLATION_FLAGS = ("distillation_temperature", "distillation_weight")


def run_fine_tuning(
    model_args: FineTunedModelArguments, data_args: DataArguments, args: FineTuningArguments, head: str
) -> None:
    """Runs a fine-tuning command. The `head`, such as "ForTokenClassification", determines the task."""
    set_up(args)
    with lock_output_dir(args):
        fine_tune_or_distill(find_task(head)(data_args), model_args, args)


def fine_tune_or_distill(
    task: Task[Any, Any, Any], model_args: FineTunedModelArguments, args: FineTuningArguments
) -> None:
    """Fine-tunes, and prints a summary. With `teacher_name_or_path`, distills."""
    sources = task.find_sources(args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token)
    trains = "train" in sources or "unlabeled" in sources
    # A sweep compares its plan instead.
    start = find_start(args) if trains and not args.sweeps else None
    if model_args.teacher_name_or_path is not None:
        prepared = prepare_distillation(task, model_args, model_args.as_teacher(), args, sources)
    else:
        if task.args.unlabeled_file is not None:
            raise InputError("--unlabeled_file needs a teacher that labels the examples: --teacher_name_or_path.")
        refuse_distillation_flags(args)
        prepared = prepare_task(task, model_args, args, sources)
    run_task(prepared, args, start)


def refuse_distillation_flags(args: FineTuningArguments) -> None:
    """Refuses flags that need a teacher."""
    for name in DISTILLATION_FLAGS:
        if getattr(args, name) != getattr(FineTuningArguments, name) or args.varies(name):
            raise InputError(f"--{name} needs --teacher_name_or_path.")
