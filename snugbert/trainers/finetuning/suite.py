"""All tasks of GLUE in one command: one folder per task, a table of scores, and the files of a submission."""

import copy
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

from snugbert.data.glue import TASKS, missing_files
from snugbert.errors import InputError
from snugbert.files import write_atomically
from snugbert.progress import format_duration
from snugbert.reports.intervals import METHOD_FOR_MEANS
from snugbert.reports.results import RESULTS, read_results
from snugbert.reports.score_tables import select_suite, suite_table
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.task_arguments import GlueDataArguments
from snugbert.trainers.finetuning.fine_tune import run_fine_tuning, run_task
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.run.folder import lock_output_dir
from snugbert.trainers.run.processes import set_up

logger = logging.getLogger(__name__)


def run_glue(
    model_args: FineTunedModelArguments, data_args: GlueDataArguments, training_args: FineTuningArguments
) -> None:
    """Runs `snugbert glue`: one task, or all tasks with data.

    With all tasks, finished tasks are not trained again, and an interrupted task continues.
    """
    if data_args.task_name != "all":
        run_fine_tuning(model_args, data_args, training_args, TextClassification.head)
        return
    has_weights = training_args.class_weights is not None or training_args.varies("class_weights")
    if model_args.teacher_name_or_path is not None or has_weights or training_args.folds:
        raise InputError("--teacher_name_or_path, --class_weights and --folds need one task. Pass one --task_name.")
    set_up(training_args)
    output_dir = Path(str(training_args.output_dir))
    wanted = training_args.wanted_splits or ("train", "validation")
    names = tasks_with_data(data_args, wanted)
    seconds = 0.0
    with lock_output_dir(training_args):
        for index, name in enumerate(names, start=1):
            logger.info("task %d of %d: %s", index, len(names), TASKS[name].folder)
            task = TextClassification(replace(data_args, task_name=name))
            seconds += run_task(task, model_args, make_task_arguments(training_args, name))
        if training_args.dry_run:
            logger.info("all tasks: about %s", format_duration(seconds))
        elif training_args.should_save:
            if "validation" in wanted:
                write_table(output_dir, names)
            if "test" in wanted:
                gather_predictions(output_dir, names)


def tasks_with_data(data_args: GlueDataArguments, wanted: tuple[str, ...]) -> list[str]:
    """Returns the tasks with all `wanted` splits, and logs which files other tasks lack."""
    if data_args.data_dir is None:
        return list(TASKS)
    names = []
    for name, task in TASKS.items():
        if files := missing_files(data_args.data_dir, task, wanted):
            logger.warning("skipping %s. Missing files: %s", task.folder, ", ".join(map(str, files)))
        else:
            names.append(name)
    if not names:
        raise InputError(f"--data_dir: {data_args.data_dir} contains no GLUE files such as {files[0]}.")
    return names


def make_task_arguments(args: FineTuningArguments, name: str) -> FineTuningArguments:
    """Returns the arguments for one task of the suite."""
    folder = Path(str(args.output_dir)) / name
    task_args = copy.copy(args)
    task_args.output_dir = str(folder)
    task_args.run_name = f"{args.run_name or folder.resolve().parent.name}-{name}"
    task_args.hub_model_id = f"{args.hub_model_id or folder.resolve().parent.name}-{name}"
    task_args.resume_from_checkpoint = None if args.overwrite_output_dir else "true"
    return task_args


def write_table(output_dir: Path, names: list[str]) -> None:
    """Prints the scores of all tasks with their average, and writes them to results.md and results.json."""
    results = {name: read_results(output_dir / name / RESULTS) for name in names}
    metrics = {name: each["metrics"] for name, each in results.items()}
    intervals = {name: each.get("intervals", {}) for name, each in results.items()}
    table = suite_table(select_suite(metrics), select_suite(intervals))
    if any("sweep" in each for each in results.values()):
        summaries = select_suite({name: each["sweep"]["metrics"] for name, each in results.items()})
        means, ends = (
            {column: summary[key] for column, summary in summaries.items() if summary[key] is not None}
            for key in ("mean", "interval")
        )
        table = (
            f"The best run of each task on the validation examples:\n\n{table}\n\n"
            f"Means over the seeds of each task's best setting:\n\n{suite_table(means, ends, METHOD_FOR_MEANS)}"
        )
    write_atomically(output_dir / "results.md", f"{table}\n")
    write_atomically(output_dir / RESULTS, json.dumps(metrics, indent=1))
    print(f"\n{table}\n\nall results: {output_dir / 'results.md'}", flush=True)


def gather_predictions(output_dir: Path, names: list[str]) -> None:
    """Copies the test predictions of the tasks `names` to the folder `submission`, for gluebenchmark.com."""
    folder = output_dir / "submission"
    folder.mkdir(exist_ok=True)
    for file in (file for name in names for file in (output_dir / name).glob("*.tsv")):
        shutil.copy2(file, folder)
    print(f"submission: {folder}", flush=True)
