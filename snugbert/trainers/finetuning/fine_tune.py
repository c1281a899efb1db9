"""Runs a fine-tuning command: reads its data, checks its output folder, and starts one run or a sweep."""

from pathlib import Path
from typing import Any

from snugbert.data.sources import DataArguments
from snugbert.errors import InputError
from snugbert.reports.results import format_summary
from snugbert.tasks import list_tasks
from snugbert.tasks.base import Task
from snugbert.trainers.finetuning.distillation_trainer import prepare_student
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.folds import run_folds
from snugbert.trainers.finetuning.prepare_task import prepare_task
from snugbert.trainers.finetuning.single_run import Start, find_start, fine_tune, run_dry_fine_tuning
from snugbert.trainers.finetuning.sweep import run_sweep
from snugbert.trainers.finetuning.sweep_file import DISTILLATION_SETTINGS
from snugbert.trainers.run.folder import lock_output_dir
from snugbert.trainers.run.processes import keep_freed_memory, set_up


def run_fine_tuning(
    model_args: FineTunedModelArguments, data_args: DataArguments, args: FineTuningArguments, head: str
) -> None:
    """Runs a fine-tuning command. The `head`, such as "ForTokenClassification", determines the task."""
    set_up(args)
    with lock_output_dir(args):
        run_task(list_tasks()[head](data_args), model_args, args)


def run_task(task: Task[Any, Any, Any], model_args: FineTunedModelArguments, args: FineTuningArguments) -> float:
    """Fine-tunes once, or runs the sweep that `sweep` and `seeds` define, and prints a summary.

    With `teacher_name_or_path`, distills. In a dry run, returns the expected seconds. Otherwise, returns 0.
    """
    keep_freed_memory()
    distills = model_args.teacher_name_or_path is not None
    if not distills:
        if task.args.unlabeled_file is not None:
            raise InputError("--unlabeled_file needs a teacher that labels the examples: --teacher_name_or_path.")
        for name in DISTILLATION_SETTINGS:
            if getattr(args, name) != getattr(FineTuningArguments, name) or args.varies(name):
                raise InputError(f"--{name} needs --teacher_name_or_path.")
    sources = task.find_sources(args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token)
    if args.folds and (distills or args.sweeps or args.push_to_hub or "train" not in sources):
        raise InputError(
            "--folds needs --train_file, without --teacher_name_or_path, --sweep, --seeds or --push_to_hub."
        )
    trains = "train" in sources or "unlabeled" in sources
    # The output folder is checked before the data are read. A sweep compares its plan instead.
    start = find_start(args) if trains and not args.sweeps else Start(None, None)
    if distills:
        prepared = prepare_student(task, model_args, model_args.as_teacher(), sources, args)
    else:
        prepared = prepare_task(task, model_args, sources)
    if args.folds and not args.dry_run:
        run_folds(prepared, args)
        return 0.0
    if args.sweeps:
        return run_sweep(prepared, args)
    if args.dry_run:
        number = args.folds or (0 if start.finished else 1)
        return run_dry_fine_tuning(prepared, args, start.checkpoint, number)
    results = fine_tune(prepared, args, start=start)
    if args.should_save:
        print(f"\n{format_summary(prepared.facts, results, Path(str(args.output_dir)))}", flush=True)
    return 0.0
