"""Allows only one run per output folder. A folder in a store has its own lock, see `snugbert/storage/owner.py`."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.files import LOCK_NAME, LockTaken, holds_lock, lock_file
from snugbert.storage.uploads import find_output
from snugbert.trainers.run.processes import raise_together
from snugbert.trainers.run.store_runs import fetch_run, run_in_store

SECONDS = 10  # to wait for a lock. A killed process holds its lock until its memory is freed


@contextmanager
def lock_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """Keeps other processes from running in `output_dir`, and creates the folder. Every process must call this.

    With `dry_run`, only checks that the folder can be written. If the folder belongs to a store, downloads the store's
    folder before the block, unless the local folder may be newer, and uploads the local folder after the block. A dry
    run uploads nothing, and removes what it downloaded.

    Only processes that write take the lock, see [`lock_file`]. A process can take the lock again inside the block. A
    new folder that stays empty is removed.

    Raises:
        InputError: in all processes: another process runs in the folder, or the folder cannot be written; or the store
            does not answer.
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
                elif fetch_run(output):
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
