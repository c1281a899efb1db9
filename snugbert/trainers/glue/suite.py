"""All tasks of GLUE in one command, each in a folder of its own, and the table of their scores."""

import copy
import json
import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path

from snugbert.errors import InputError
from snugbert.json_files import read_json
from snugbert.trainers.finetuning import sweep
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.results import write_atomically
from snugbert.trainers.finetuning.tables import suite_table
from snugbert.trainers.glue.arguments import GlueDataArguments
from snugbert.trainers.glue.benchmark import TASKS
from snugbert.trainers.glue.data import missing_files
from snugbert.trainers.glue.task import make_task
from snugbert.trainers.output_folder import newest_checkpoint

logger = logging.getLogger(__name__)

DONE = "results.json"  # in a task's folder, written last


def run_suite(
    model_args: FineTunedModelArguments, data_args: GlueDataArguments, training_args: FineTuningArguments
) -> None:
    """Fine-tunes on every task of GLUE whose data there are, each in a folder of its own, and makes the table.

    A task that was done to its end is not done again, and the one that was interrupted goes on with its newest
    checkpoint or its sweep. With seeds or a sweep, the table has the run that is best by the validation examples, as
    the paper has it. Test predictions are gathered in the folder submission.

    Raises:
        InputError: something that the user gave cannot be used, or the output folder holds something else.
    """
    output_dir = Path(str(training_args.output_dir))
    wanted = training_args.wanted_splits or ("train", "validation")
    names = tasks_with_data(data_args, wanted)
    if training_args.class_weights is not None:
        raise InputError("--class_weights: not all tasks of GLUE have classes; give it with one --task_name.")
    plan = sweep.make_plan(model_args, training_args, asdict(data_args))
    sweep.claim(plan, training_args, [output_dir, *(output_dir / name for name in TASKS)])
    for number, name in enumerate(names, start=1):
        logger.info("task %d of %d: %s", number, len(names), TASKS[name].folder)
        if training_args.sweeps or not (output_dir / name / DONE).exists():  # a sweep knows what it has done
            args = make_task_arguments(training_args, name)
            sweep.run(make_task(model_args, replace(data_args, task_name=name), args), model_args, args)
    if training_args.should_save and "validation" in wanted:
        write_table(output_dir, names)
    if training_args.should_save and "test" in wanted:
        gather_predictions(output_dir, names)


def tasks_with_data(data_args: GlueDataArguments, wanted: tuple[str, ...]) -> list[str]:
    """The tasks of which there is everything `wanted`; what the others lack is logged.

    Raises:
        InputError: there is no such task.
    """
    if data_args.data_dir is None:
        return list(TASKS)
    missing = {name: missing_files(data_args.data_dir, task, wanted) for name, task in TASKS.items()}
    for name, files in missing.items():
        if files:
            logger.warning("%s is left out: there is no %s", TASKS[name].folder, " and no ".join(map(str, files)))
    names = [name for name in TASKS if not missing[name]]
    if not names:
        raise InputError(f"--data_dir: {data_args.data_dir} holds no task of GLUE, such as {missing['cola'][0]}.")
    return names


def make_task_arguments(args: FineTuningArguments, name: str) -> FineTuningArguments:
    """The arguments of one task of the suite."""
    folder = Path(str(args.output_dir)) / name
    job = copy.copy(args)
    job.output_dir = str(folder)
    job.hub_model_id = f"{args.hub_model_id or folder.resolve().parent.name}-{name}"
    # What is there belongs to this suite: a run that was interrupted, or a sweep, which knows itself how to go on.
    job.overwrite_output_dir = not args.sweeps
    job.resume_from_checkpoint = "true" if newest_checkpoint(folder) is not None else None
    return job


def write_table(output_dir: Path, names: list[str]) -> None:
    """Prints the figures of all tasks with their average, and writes them to results.md and results.json."""
    results = {name: read_json(output_dir / name / DONE) for name in names}
    figures = {name: of_task["figures"] for name, of_task in results.items()}
    table = suite_table(figures)
    if any("sweep" in of_task for of_task in results.values()):
        means = {
            name: {
                s: {m: value["mean"] for m, value in of_set.items()}
                for s, of_set in of_task["sweep"]["figures"].items()
            }
            for name, of_task in results.items()
        }
        table = (
            f"The best run of each task by the validation examples:\n\n{table}\n\n"
            f"Means over the seeds of its best setting:\n\n{suite_table(means)}"
        )
    write_atomically(output_dir / "results.md", f"{table}\n")
    write_atomically(output_dir / DONE, json.dumps(figures, indent=1))
    print(f"\n{table}", flush=True)


def gather_predictions(output_dir: Path, names: list[str]) -> None:
    """Copies the test predictions of the tasks `names` to the folder `submission`, for the leaderboard."""
    folder = output_dir / "submission"
    folder.mkdir(exist_ok=True)
    missing = []
    for name, task in TASKS.items():
        for stem in task.leaderboard.values() or (task.folder,):
            file = output_dir / name / f"{stem}.tsv"
            if name in names and file.exists():
                shutil.copy2(file, folder)
            else:
                missing.append(file.name)
    print(f"submission: {folder}{'; missing: ' if missing else ''}{', '.join(missing)}", flush=True)
