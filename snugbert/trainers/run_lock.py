"""One run per output folder."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from transformers import TrainingArguments

from snugbert.errors import InputError

LOCK_NAME = "_lock"  # uploads skip names that begin with "_"
SECONDS = 10  # the data workers of a killed run may hold its lock for up to 5 seconds


@contextmanager
def lock_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """Keeps other processes from running in `output_dir`, and creates the folder.

    Only processes that write take the lock. A process can take it again inside the block. The operating system
    releases the lock when the process ends, even if it is killed. A new folder that stays empty is removed.

    Raises:
        InputError: another process runs in the folder, or the folder cannot be written.
    """
    if not training_args.should_save:
        yield
        return
    output_dir = Path(training_args.output_dir or "")
    is_new = not output_dir.exists()
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        file = output_dir.resolve() / LOCK_NAME
        lock = FileLock(file, timeout=SECONDS, is_singleton=True)
        lock.acquire()
    except Timeout as error:
        holder = file.read_text() or "another process"
        raise InputError(
            f"--output_dir: {holder} is running in {output_dir}. Wait until it ends, or choose another folder."
        ) from error
    except OSError as error:
        raise InputError(
            f"--output_dir: cannot write to {output_dir} ({error.strerror}). Choose another folder."
        ) from error
    try:
        with suppress(OSError):  # only for the message
            file.write_text(f"process {os.getpid()} on {platform.node()}")
        yield
    finally:
        with suppress(OSError):
            if is_new and os.listdir(output_dir) == [LOCK_NAME]:  # the run failed before it wrote anything
                file.unlink()
                output_dir.rmdir()
        lock.release()
