"""Tools for files: JSON that may be damaged, digests, atomic writes, and locks between processes."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from snugbert.errors import InputError

logger = logging.getLogger(__name__)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks
# Text of failed writes that raise a general error: tokenizers raises Exception, and torch RuntimeError.
FAILED_WRITE = re.compile(r"\(os error |inline_container\.cc|iostream error")


# --- JSON -------------------------------------------------------------------------------------------------------


def parse_json(text: str) -> Any:
    """Parses JSON. Also raises a `ValueError` for text that is nested too deeply or contains an unpaired surrogate."""
    try:
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # only such an escape can be an unpaired surrogate
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start]).strip("'")
        raise json.JSONDecodeError(f"remove {half}, an unpaired surrogate", text, text.lower().find(half)) from error


def dump_json(value: Any) -> str:
    """Returns JSON in one line. NaN and infinity become null, and other objects become their text."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # NaN or infinity
        parsed = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
        return json.dumps(parsed, ensure_ascii=False)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON file that contains an object. Any other content raises an [`InputError`]."""
    try:
        values = parse_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{file.parent} contains no {file.name}.") from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise InputError(f"{file} must contain a JSON object, not a {type(values).__name__}.")
    return values


def write_json(file: Path, values: object) -> None:
    """Writes a JSON file for people and programs, such as a config.json."""
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def hash_json(value: object) -> str:
    """Returns a digest of a JSON value, as 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


# --- writing ----------------------------------------------------------------------------------------------------


@contextmanager
def replacing(file: Path, unfinished: Path | None = None) -> Iterator[Path]:
    """Writes the whole file or nothing, even if the power fails. After an error, the old file is unchanged.

    The block writes to `unfinished`. The default is the file's name with "_" before it, which uploads skip. Processes
    that may write the same file at once need different `unfinished` paths in the file's folder.
    """
    unfinished = unfinished or file.with_name(f"_{file.name}")
    try:
        yield unfinished
        with unfinished.open("rb") as stream:
            os.fsync(stream.fileno())  # some file systems report only now that they are full
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Writes a text with [`replacing`]."""
    with replacing(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def check_new_results(folder: Path, results: Iterable[str], overwrite: bool) -> None:
    """Checks that a command may write into `--output_dir`."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir: {folder} is a file. Choose a folder.")
    existing = [name for name in results if (folder / name).exists()]
    if existing and not overwrite:
        raise InputError(
            f"--output_dir: {folder} already contains {existing[0]}. Choose another folder, or set "
            "--overwrite_output_dir to replace the files."
        )


@contextmanager
def explaining_failed_writes(folder: Path, then: str) -> Iterator[None]:
    """Turns an error while files are written into an [`InputError`]. `then`: what to do after fixing the cause."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not isinstance(error, OSError | SafetensorError) and not FAILED_WRITE.search(str(error)):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        # Other OSErrors have other causes, such as a tokenizer whose source file is missing.
        is_full = not isinstance(error, OSError) or error.errno in NO_SPACE
        remedy = "The disk is probably full. Free some space" if is_full else "Fix this"
        raise InputError(f"{folder} could not be written: {reason}. {remedy} and {then}.") from error


# --- runs -------------------------------------------------------------------------------------------------------

LOCK_NAME = "_lock"  # in an output folder. Uploads skip names that begin with "_"
MANIFEST_NAME = "manifest.json"  # of a checkpoint: sizes and checksums of its files
CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)", re.ASCII)


def step_of(checkpoint: str | Path) -> int:
    """Returns the step in the name of a folder `checkpoint-<step>`."""
    return int(str(checkpoint).rpartition("-")[2])


def split_checkpoint(name: str) -> tuple[str, str]:
    """Splits the name of a file into its checkpoint and the rest. Both are empty if the file is in no checkpoint.

    "seed-1/checkpoint-5/model.safetensors" -> "seed-1/checkpoint-5", "model.safetensors".
    """
    parts = name.split("/")
    for index, part in enumerate(parts[:-1], 1):
        if CHECKPOINT_NAME.fullmatch(part):
            return "/".join(parts[:index]), "/".join(parts[index:])
    return "", ""


# --- locks ------------------------------------------------------------------------------------------------------

_held: dict[Path, int] = {}  # the files that this process has locked, and their descriptors


@contextmanager
def lock_file(file: Path, seconds: float = float("inf")) -> Iterator[None]:
    """Locks a file during the block, so that only one process at a time runs a block with the same file.

    The operating system releases the lock when the process ends, even if it is killed while its forked workers run,
    which is why filelock is not used. The file is removed at the end of the block. A killed process leaves its file,
    and the next process locks that file. After `seconds` of waiting, an [`InputError`] names the other process.
    """
    file = file.parent.resolve() / file.name
    deadline = time.monotonic() + seconds
    while (descriptor := _try_lock(file)) is None:
        if time.monotonic() >= deadline:
            with suppress(FileNotFoundError):  # that process has just ended
                holder = file.read_text() or "another process"
                raise InputError(f"{holder} has locked {file}. Wait until it ends, or choose another output.")
        time.sleep(0.05)
    with suppress(OSError):  # the content is only for the message
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
    _held[file] = descriptor
    try:
        yield
    finally:
        del _held[file]
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file.lstat()):  # otherwise it is the lock of another process
                file.unlink()  # before the lock is released: afterwards, another process may lock it
        os.close(descriptor)


def holds_lock(file: Path) -> bool:
    """Whether this process is in a block of [`lock_file`] for the file."""
    return file.parent.resolve() / file.name in _held


def _close_in_child() -> None:
    """Closes the descriptors of locks in a forked process, such as a data worker.

    Otherwise, workers would keep a killed run's locks for 5 seconds, or forever if it was killed while they started.
    """
    for descriptor in _held.values():
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _try_lock(file: Path) -> int | None:
    """Opens and locks the file. None: another process holds the lock, or has just removed the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A symbolic link could make this process overwrite another file.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except FileNotFoundError:  # another process has just removed the folder
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            logger.warning("%s: this file system has no locks. Make sure that no other run uses it.", file.parent)
            return descriptor
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    # The last holder may have removed the file. Locking a removed file would not stop a process that makes a new file.
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), file.lstat()):
            return descriptor
    os.close(descriptor)
    return None
