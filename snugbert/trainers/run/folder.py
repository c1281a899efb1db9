"""The output folder of a run: its lock, its files, the checkpoint to resume from, and free space.

A run in a store writes into a local folder. At its start, the store's folder replaces the local folder, unless this
machine was the last to write to the store. The local folder may then be newer. Checkpoints are uploaded during
training, and all other files at the end.
"""

import logging
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from snugbert.errors import InputError
from snugbert.families.loading import GENERATOR_FOLDER
from snugbert.files import LOCK_NAME, MANIFEST_NAME, holds_lock, lock_file
from snugbert.progress import format_bytes
from snugbert.reports.plots import list_plots
from snugbert.storage.uploads import RemoteOutput, download_checkpoint, find_output
from snugbert.trainers.run.checkpoints import (
    UNFINISHED_CHECKPOINT,
    check_checkpoint,
    find_newest_checkpoint,
    list_checkpoints,
    remove_checkpoints,
)
from snugbert.trainers.run.processes import ask_first_process, raise_together, wait_for_all

logger = logging.getLogger(__name__)

# The files that a run writes next to its model. All other files in an output folder belong to the user.
WRITTEN_BY_A_RUN = re.compile(
    r"checkpoint-\d+|((train|all|(eval|predict)(_(mm|ax))?)_)?results\.json|results\.md|"
    r"(trainer_state|config|plan)\.json",
    re.ASCII,
)
TWO_MOMENTS = ("adamw_torch", "lamb")  # optimizers that store two float32 numbers per parameter
LOCK_SECONDS = 10  # to wait for a lock. A killed process holds its lock until its memory is freed


# --- the lock ------------------------------------------------------------------------------------------------------


@contextmanager
def lock_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """Keeps other processes from running in `output_dir`, and creates the folder. Every process must call this.

    Only processes that write take the lock, see [`lock_file`]. A process can take the lock again inside the block. A
    dry run changes nothing. With a store, it uploads nothing, and removes what it downloaded.
    """
    output_dir = Path(training_args.output_dir or "")
    is_dry_run = getattr(training_args, "dry_run", False)
    output = find_output(output_dir)
    if output is not None and output.folder != output_dir:  # one of several runs, whose command has locked the store
        output = None
    with ExitStack() as stack:
        with raise_together():
            changes_nothing = is_dry_run and output is None
            if training_args.should_save and not changes_nothing and not holds_lock(output_dir / LOCK_NAME):
                if not output_dir.exists():
                    stack.callback(_remove_if_empty, output_dir)  # after a failed start
                stack.enter_context(lock_file(output_dir / LOCK_NAME, LOCK_SECONDS))
                if output is not None and not is_dry_run:
                    stack.enter_context(run_in_store(output))
                elif output is not None and output.download():
                    stack.callback(output.clear)
        yield


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def run_in_store(output: RemoteOutput) -> Iterator[None]:
    """Locks the folder in the store, downloads its files, and uploads everything after the block.

    After an error, only the checkpoints are in the store. All other files stay in the local folder.
    """
    with output.lock():
        output.download()
        yield
        output.upload_run()
    output.clear()


# --- the files -----------------------------------------------------------------------------------------------------


def check_output_dir(args: TrainingArguments) -> str | None:
    """Checks that a run does not overwrite another run by accident, and finds the checkpoint to resume from.

    Changes no files, except that it undoes an interrupted replacement of a checkpoint, and downloads a checkpoint from
    a bucket. Every process must call this.

    With `resume_from_checkpoint` "true" and no checkpoint, returns None: the run starts at step 0. So a job can always
    use the same command.
    """
    checkpoint = find_checkpoint(args, args.resume_from_checkpoint)
    output_dir = Path(args.output_dir or "")
    resumes_here = checkpoint is not None and Path(checkpoint).resolve().parent == output_dir.resolve()
    may_write = resumes_here or args.overwrite_output_dir  # type: ignore[attr-defined]
    with raise_together():
        if args.process_index == 0 and not may_write and list_run_files(output_dir):
            remedy = "Choose another folder, or replace the run (--overwrite_output_dir)."
            if str(args.resume_from_checkpoint).lower() == "true":
                raise InputError(
                    f"--resume_from_checkpoint true: {output_dir} contains a run, but no complete checkpoint. "
                    f"{remedy} If the run used --save_only_model, train from its weights with --model_name_or_path."
                )
            raise InputError(
                f"--output_dir: {output_dir} already contains a run. To resume it, add --resume_from_checkpoint true. "
                f"{remedy}"
            )
    return checkpoint


def find_checkpoint(args: TrainingArguments, resume: str | bool | None) -> str | None:
    """Finds and checks the checkpoint to resume from: a folder, or the newest. Every process must call this.

    The first process finds it. Other machines get its files from a shared disk or a bucket.
    """
    if not resume or str(resume).lower() == "false":
        return None
    newest, output_dir = str(resume).lower() == "true", Path(args.output_dir or "")
    has_other_machines = sum(gather_object([args.local_process_index == 0])) > 1

    def find() -> tuple[str, bytes] | None:
        checkpoint = find_newest_checkpoint(output_dir) if newest else _check_named(str(resume))
        if checkpoint is None:
            return None
        output = find_output(checkpoint)
        if output is not None and has_other_machines:  # an earlier upload may have failed
            output.upload_checkpoints()
        return checkpoint.name, (checkpoint / MANIFEST_NAME).read_bytes()

    found = ask_first_process(find)
    if found is None:
        return None
    name, manifest = found
    checkpoint = output_dir / name if newest else Path(str(resume))
    with raise_together():
        if args.process_index > 0 and args.local_process_index == 0:  # the first process of another machine
            if find_output(checkpoint) is not None and _read_manifest(checkpoint) != manifest:
                remove_checkpoints(list_checkpoints(checkpoint.parent))  # of an earlier start, or of another run
                download_checkpoint(checkpoint)
            if _read_manifest(checkpoint) != manifest:
                raise InputError(
                    f"{checkpoint} of the first machine is missing on {platform.node()}. Use an --output_dir that all "
                    "machines share, or a bucket."
                )
    return str(checkpoint)


def _check_named(name: str) -> Path:
    checkpoint = Path(name)
    try:
        download_checkpoint(checkpoint)
        check_checkpoint(checkpoint)
    except InputError as error:
        raise InputError(f"--resume_from_checkpoint: {error} Resume from another checkpoint.") from error
    return checkpoint


def _read_manifest(checkpoint: Path) -> bytes | None:
    file = checkpoint / MANIFEST_NAME
    return file.read_bytes() if file.exists() else None


class ClearOutputDir(TrainerCallback):
    """Removes the earlier run in the output folder as late as possible, after optimizer and schedule are created."""

    def on_train_begin(self, args: Any, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        if args.overwrite_output_dir and state.global_step == 0:
            if args.should_save:
                remove_run(Path(args.output_dir))
            wait_for_all()


def remove_generator(output_dir: Path) -> None:
    """Removes ELECTRA's generator. Without a model next to it, the folder `generator` is the user's, and is kept."""
    if all((output_dir / folder / "config.json").exists() for folder in ("", GENERATOR_FOLDER)):
        shutil.rmtree(output_dir / GENERATOR_FOLDER, ignore_errors=True)


def remove_run(output_dir: Path) -> None:
    """Removes the checkpoints, results and generator of a run. Its model is kept until a new model replaces it."""
    for plot in list_plots(output_dir):
        plot.unlink()  # otherwise, the next model card would show it
    shutil.rmtree(output_dir / UNFINISHED_CHECKPOINT, ignore_errors=True)
    remove_generator(output_dir)
    for path in list_run_files(output_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()


def list_run_files(output_dir: Path) -> list[Path]:
    """Lists the checkpoints, results and configuration of the run in `output_dir`. Empty if there is no run."""
    return sorted(path for path in output_dir.glob("*") if WRITTEN_BY_A_RUN.fullmatch(path.name))


def check_disk_space(args: TrainingArguments, parameters: Iterable[nn.Parameter]) -> None:
    """Checks that the disk of the output folder has space for a checkpoint. Every process must call this.

    A run that continues or replaces another is not checked.
    """
    output_dir, parameters = Path(args.output_dir or "").absolute(), list(parameters)
    folder = next(parent for parent in (output_dir, *output_dir.parents) if parent.is_dir())
    what, needed = "the model", sum(parameter.nbytes for parameter in parameters)
    if args.save_strategy != "no" and args.optim.startswith(TWO_MOMENTS) and not args.save_only_model:
        what = "a checkpoint"
        needed += 2 * sum(parameter.nbytes for parameter in set(parameters) if parameter.requires_grad)
    with raise_together():
        disk = shutil.disk_usage(folder)
        is_small = 0 < disk.total and disk.free < needed  # some network file systems report no sizes
        if args.should_save and is_small and not list_run_files(output_dir):
            raise InputError(
                f"--output_dir: {folder} has {format_bytes(disk.free)} free, but {what} takes {format_bytes(needed)}. "
                "Free some space, or choose another folder."
            )
