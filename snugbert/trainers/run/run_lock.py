"""Allows only one run per output folder, and fetches and uploads the folder if it is in a store.

A run in a store writes into a local folder. At its start, the store's folder replaces the local folder, unless this
machine was the last to write to the store. The local folder may then be newer. Checkpoints are uploaded during
training, and all other files at the end.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.files import LOCK_NAME, LockTaken, holds_lock, lock_file
from snugbert.storage.uploads import RemoteOutput, find_output
from snugbert.trainers.run.checkpoint_copies import upload_run
from snugbert.trainers.run.processes import raise_together

SECONDS = 10  # to wait for a lock. A killed process holds its lock until its memory is freed


@contextmanager
def lock_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """Keeps other processes from running in `output_dir`, and creates the folder. Every process must call this.

    With `dry_run`, only checks that the folder can be written. A dry run in a store uploads nothing, and removes what
    it downloaded. Only processes that write take the lock, see [`lock_file`]. A process can take the lock again inside
    the block. A new folder that stays empty is removed.
    """
    output_dir = Path(training_args.output_dir or "")
    is_dry_run = getattr(training_args, "dry_run", False)
    output = find_output(output_dir)
    is_local = output is None or output.folder != output_dir
    takes_lock = training_args.should_save and not (is_dry_run and is_local) and not holds_lock(output_dir / LOCK_NAME)
    with ExitStack() as stack:
        if takes_lock and not output_dir.exists():
            stack.callback(_remove_if_empty, output_dir.resolve())

        def begin() -> None:
            if takes_lock:
                _lock(output_dir, stack)
                if output is None or is_local:
                    return
                if not is_dry_run:
                    stack.enter_context(run_in_store(output))
                elif _fetch(output):
                    stack.callback(output.clear)
            elif training_args.should_save and is_dry_run:
                _check_folder(output_dir)

        raise_together(begin)
        yield


def _lock(output_dir: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(lock_file(output_dir / LOCK_NAME, SECONDS))
    except LockTaken as holder:
        raise InputError(
            f"--output_dir: {holder} is running in {output_dir}. Wait until that process ends, or choose another "
            "folder."
        ) from holder
    except OSError as error:
        raise InputError(
            f"--output_dir: cannot write to {output_dir} ({error.strerror}). Choose another folder."
        ) from error


def _check_folder(output_dir: Path) -> None:
    nearest = next(folder for folder in (output_dir, *output_dir.absolute().parents) if folder.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise InputError(f"--output_dir: cannot write to {output_dir}. Choose another folder.")


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def run_in_store(output: RemoteOutput) -> Iterator[None]:
    """Locks the folder in the store, downloads its files, and uploads everything after the block.

    After an error in the block, only the checkpoints are in the store. All other files stay in the local folder, for
    the next start.
    """
    with output.lock():
        _fetch(output)
        yield
        upload_run(output)
    output.clear()


def _fetch(output: RemoteOutput) -> bool:
    """Replaces the local folder by the folder in the store unless the local folder may be newer. Whether it did."""
    if output.was_last_writer():
        return False
    output.download()
    return True
