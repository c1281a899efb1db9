"""The output folder of a run: what is in it, where to resume, what may be replaced."""

import logging
import re
import shutil
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from snugbert.errors import InputError

# The names that a run writes next to its model. Everything else in an output folder belongs to the user.
WRITTEN_BY_A_RUN = re.compile(
    r"checkpoint-\d+|((train|all|(eval|predict)(_(mm|ax))?)_)?results\.json|results\.md|"
    r"(trainer_state|config|plan)\.json",
    re.ASCII,
)


def check_output_dir(training_args: TrainingArguments, overwrite: bool) -> str | None:
    """Makes sure that a run cannot overwrite another by accident, and says where to resume. Changes nothing.

    Args:
        training_args: `output_dir` is looked at; `resume_from_checkpoint` may be a folder or "true" for the newest
            whole checkpoint of `output_dir`, if any run was begun there: a job that may be stopped at any time, or not
            have begun yet, has one command.
        overwrite: the run that is there may be replaced, see [`clear_output_dir`].

    Returns:
        The checkpoint folder to resume from, or None to start from the beginning.

    Raises:
        InputError: the folder holds a run and neither resuming nor overwriting was asked for, or the checkpoint to
            resume from is missing or not whole.
    """
    output_dir = Path(training_args.output_dir or "")
    resume = str(training_args.resume_from_checkpoint or "false")
    checkpoint = None
    if resume.lower() == "true":
        checkpoint = newest_checkpoint(output_dir)
        if checkpoint is None and list_run_files(output_dir):
            raise InputError(f"--resume_from_checkpoint true: {output_dir} holds no whole checkpoint to resume from.")
    elif resume.lower() != "false":
        checkpoint = Path(resume)
        if not _is_whole(checkpoint):
            raise InputError(f"--resume_from_checkpoint: {resume} is not a whole checkpoint folder.")
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    resumes_here = checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()
    if list_run_files(output_dir) and not resumes_here and not overwrite:
        raise InputError(
            f"--output_dir: {output_dir} already holds a run; choose another folder, go on with it "
            "(--resume_from_checkpoint true), or replace it (--overwrite_output_dir)."
        )
    return None if checkpoint is None else str(checkpoint)


def clear_output_dir(training_args: TrainingArguments) -> None:
    """Removes the checkpoints and results of an earlier run. Call it after everything that can fail."""
    if training_args.should_save:
        remove_run(Path(training_args.output_dir or ""))


def remove_run(output_dir: Path) -> None:
    """Removes the checkpoints and results of a run. Its model stays until a new one replaces it."""
    for path in list_run_files(output_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()


def list_run_files(output_dir: Path) -> list[Path]:
    """The checkpoints, results and configuration of the run in `output_dir`. Empty if there is no run."""
    if not output_dir.is_dir():
        return []
    return sorted(path for path in output_dir.iterdir() if WRITTEN_BY_A_RUN.fullmatch(path.name))


def list_checkpoints(output_dir: Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run, in the order of their steps."""
    folders = [path for path in list_run_files(output_dir) if path.name.startswith("checkpoint-") and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def newest_checkpoint(output_dir: Path) -> Path | None:
    """The whole checkpoint of the highest step in `output_dir`; half-written ones are passed over with a warning."""
    for folder in reversed(list_checkpoints(output_dir)):
        if _is_whole(folder):
            return folder
        logging.getLogger(__name__).warning("%s is not a whole checkpoint and is passed over", folder)
    return None


def _is_whole(checkpoint: Path) -> bool:
    # Trainer writes trainer_state.json after everything else, so a checkpoint that has it was written to the end. One
    # without an optimizer (--save_only_model) is whole, but nothing to resume from.
    try:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        kinds = (int, list, dict)
        if not all(map(isinstance, (state.global_step, state.log_history, state.stateful_callbacks), kinds)):
            return False
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False  # not written to its end, or not by Trainer
    return any(True for pattern in ("optimizer*", "global_step*") for _ in checkpoint.glob(pattern))
