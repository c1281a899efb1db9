"""One run per output folder."""

import errno
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.processes import raise_together

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

LOCK_NAME = "_lock"  # uploads skip names that begin with "_"
SECONDS = 10  # a killed process holds its lock until its memory is freed
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
_held: dict[Path, int] = {}  # the locked files and their descriptors


@contextmanager
def lock_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """Keeps other processes from running in `output_dir`, and creates the folder. Every process must call this.

    Only processes that write take the lock. A process can take it again inside the block. The operating system
    releases the lock when the process ends, even if it is killed and its data workers live on. The file is removed at
    the end of the block. After a kill it stays, and the next run uses it. A new folder that stays empty is removed. If
    the file system has no locks, the run continues with a warning.

    Raises:
        InputError: in all processes: another process runs in the folder, or the folder cannot be written.
    """
    output_dir = Path(training_args.output_dir or "")
    file = output_dir.resolve() / LOCK_NAME
    is_new = not output_dir.exists()
    takes_lock = training_args.should_save and file not in _held
    descriptor = raise_together(lambda: _lock(output_dir, file) if takes_lock else None)
    if descriptor is None:
        yield
        return
    _held[file] = descriptor
    try:
        yield
    finally:
        del _held[file]
        with suppress(OSError):
            if _is_at(file, descriptor):
                file.unlink()  # before the lock is released: afterwards, the file may be the lock of another run
            if is_new:
                output_dir.rmdir()  # fails unless the folder is empty
        os.close(descriptor)


def _close_in_child() -> None:
    """Closes the descriptors that a forked process, such as a data worker, shares with the run.

    PyTorch's workers notice after 5 seconds that the run was killed, and never if it was killed while they started.
    """
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(output_dir: Path, file: Path) -> int:
    """Waits for the lock, and returns the descriptor that holds it."""
    deadline = time.monotonic() + SECONDS
    try:
        while (descriptor := _try_lock(file)) is None:
            if time.monotonic() >= deadline:
                holder = _read_holder(file)
                raise InputError(
                    f"--output_dir: {holder} is running in {output_dir}. Wait until it ends, or choose another folder."
                )
            time.sleep(0.05)
    except OSError as error:
        raise InputError(
            f"--output_dir: cannot write to {output_dir} ({error.strerror}). Choose another folder."
        ) from error
    with suppress(OSError):  # only for the message
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
    return descriptor


def _read_holder(file: Path) -> str:
    with suppress(FileNotFoundError):  # it has just ended
        return file.read_text() or "another process"
    return "another process"


def _try_lock(file: Path) -> int | None:
    """Opens and locks the file. None: another process holds the lock, or has just removed the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A symbolic link could make this process overwrite another file.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except FileNotFoundError:  # the run that ended has also removed the folder
        return None
    try:
        if sys.platform == "win32":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            logger.warning(
                "%s: this file system has no locks. Make sure that no other run uses the folder.", file.parent
            )
            return descriptor
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    # A run that ends removes its file. A lock on it would not keep out a third run, which makes a new file.
    if _is_at(file, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _is_at(file: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.lstat())
    except FileNotFoundError:
        return False
