"""The output folder of a run: the files in it, the checkpoint to resume from, and removing an earlier run."""

import logging
import re
import shutil
from pathlib import Path

from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from snugbert.errors import InputError

# The files that a run writes next to its model. All other files in an output folder belong to the user.
WRITTEN_BY_A_RUN = re.compile(
    r"checkpoint-\d+|((train|all|(eval|predict)(_(mm|ax))?)_)?results\.json|results\.md|"
    r"(trainer_state|config|plan)\.json",
    re.ASCII,
)


def check_output_dir(training_args: TrainingArguments, overwrite: bool) -> str | None:
    """Checks that a run does not overwrite another one by accident, and finds the checkpoint to resume from.

    Changes no files.

    Args:
        training_args: `resume_from_checkpoint` is a folder, or "true" for the newest complete checkpoint of
            `output_dir`. With "true" and no run in `output_dir`, the run starts from the beginning. So a job that may
            be stopped at any time can always use the same command.
        overwrite: allow replacing a run in `output_dir`, see [`clear_output_dir`].

    Returns:
        The checkpoint folder to resume from. None: start from the beginning.

    Raises:
        InputError: `output_dir` contains a run that is neither resumed nor overwritten, or the checkpoint to resume
            from is missing or incomplete.
    """
    output_dir = Path(training_args.output_dir or "")
    resume = str(training_args.resume_from_checkpoint or "false")
    checkpoint = None
    if resume.lower() == "true":
        checkpoint = find_newest_checkpoint(output_dir)
        if checkpoint is None and list_run_files(output_dir):
            raise InputError(
                f"--resume_from_checkpoint true: {output_dir} contains no complete checkpoint. Train again with "
                "--overwrite_output_dir."
            )
    elif resume.lower() != "false":
        checkpoint = Path(resume)
        if not _is_complete(checkpoint):
            raise InputError(f"--resume_from_checkpoint: {resume} is not a complete checkpoint.")
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    resumes_here = checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()
    if list_run_files(output_dir) and not resumes_here and not overwrite:
        raise InputError(
            f"--output_dir: {output_dir} already contains a run. Choose another folder, resume the run "
            "(--resume_from_checkpoint true), or replace it (--overwrite_output_dir)."
        )
    return None if checkpoint is None else str(checkpoint)


def clear_output_dir(training_args: TrainingArguments) -> None:
    """Removes the checkpoints and results of an earlier run. Call it after all steps that can fail."""
    if training_args.should_save:
        remove_run(Path(training_args.output_dir or ""))


def remove_run(output_dir: Path) -> None:
    """Removes the checkpoints and results of a run. Its model stays until a new model replaces it."""
    for path in list_run_files(output_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()


def list_run_files(output_dir: Path) -> list[Path]:
    """Lists the checkpoints, results and configuration of the run in `output_dir`. Empty if there is no run."""
    if not output_dir.is_dir():
        return []
    return sorted(path for path in output_dir.iterdir() if WRITTEN_BY_A_RUN.fullmatch(path.name))


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Lists the folders `checkpoint-<step>` of a run, ordered by step."""
    folders = [path for path in list_run_files(output_dir) if path.name.startswith("checkpoint-") and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def find_newest_checkpoint(output_dir: Path) -> Path | None:
    """Finds the complete checkpoint with the highest step. Skips incomplete ones with a warning."""
    for folder in reversed(list_checkpoints(output_dir)):
        if _is_complete(folder):
            return folder
        logging.getLogger(__name__).warning("skipping %s, which is not a complete checkpoint", folder)
    return None


def _is_complete(checkpoint: Path) -> bool:
    # Trainer writes trainer_state.json last, so a checkpoint with this file is complete. A checkpoint without an
    # optimizer (--save_only_model) cannot be resumed.
    try:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        kinds = (int, list, dict)
        if not all(map(isinstance, (state.global_step, state.log_history, state.stateful_callbacks), kinds)):
            return False
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False  # incomplete, or not written by Trainer
    return any(True for pattern in ("optimizer*", "global_step*") for _ in checkpoint.glob(pattern))
