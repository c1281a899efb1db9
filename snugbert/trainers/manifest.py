"""The manifest of a checkpoint: the size and checksum of every file. They are verified on resume.

A checkpoint is written into a temporary folder. The manifest is its last file. Then everything is synced to the disk,
and the folder gets its final name. So a folder named `checkpoint-<step>` is complete unless it is damaged later.
"""

import errno
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME

from snugbert.errors import InputError
from snugbert.files import read_json
from snugbert.trainers.run_settings import SETTINGS_NAME, read_state

MANIFEST_NAME = "manifest.json"
OPTIMIZER_NAMES = ("optimizer", "global_step")  # the latter: DeepSpeed


def publish(folder: Path, checkpoint: Path) -> None:
    """Adds the manifest to `folder`, waits until all files are on the disk, and renames the folder to `checkpoint`.

    Replaces an old checkpoint of this name. [`restore_replaced`] undoes a replacement that was interrupted.
    """
    write_manifest(folder)
    for path in (*folder.rglob("*"), folder):
        _sync(path)
    if checkpoint.exists():
        checkpoint.rename(folder.with_name(f"replaced-{folder.name}"))
    folder.rename(checkpoint)
    _sync(checkpoint.parent)


def restore_replaced(unfinished: Path) -> None:
    """Moves an old checkpoint back if the process was killed before the new one had its name.

    Args:
        unfinished: the folder in the output folder in which checkpoints are written.
    """
    for old in unfinished.glob("replaced-*"):
        checkpoint = unfinished.parent / old.name.removeprefix("replaced-")
        if not checkpoint.exists():
            old.rename(checkpoint)


def write_manifest(folder: Path) -> None:
    """Writes the size and checksum of every file in `folder`, except for an earlier manifest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(MANIFEST_NAME, None)
    entries = {name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for name, path in files.items()}
    (folder / MANIFEST_NAME).write_text(json.dumps(entries, indent=1))


def check_checkpoint(checkpoint: Path, checksums: bool = True, needs_optimizer: bool = True) -> None:
    """Checks that a run can resume from a checkpoint. The content is verified only if there is a manifest.

    Args:
        checkpoint: the folder.
        checksums: whether to compare checksums, or only sizes.
        needs_optimizer: whether a checkpoint written with `save_only_model` is refused.

    Raises:
        InputError: a file is missing or damaged. The message names it.
    """
    try:
        if has_manifest(checkpoint):
            entries = read_json(checkpoint / MANIFEST_NAME)
            for name in dict.fromkeys((TRAINER_STATE_NAME, *entries)):
                _compare(checkpoint / name, entries.get(name), checksums)
        state = read_state(checkpoint)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename} is missing.") from error
    except OSError as error:
        raise InputError(f"{error.filename or checkpoint} cannot be read: {error.strerror}.") from error
    if SETTINGS_NAME in (state.stateful_callbacks or ()) and not has_manifest(checkpoint):  # Trainer writes neither
        raise InputError(f"{checkpoint / MANIFEST_NAME} is missing.")
    if needs_optimizer and not any(path.name.startswith(OPTIMIZER_NAMES) for path in checkpoint.iterdir()):
        raise InputError(f"{checkpoint / 'optimizer.pt'} is missing.")  # --save_only_model


def has_manifest(checkpoint: Path) -> bool:
    """Whether the content of the checkpoint can be verified."""
    return (checkpoint / MANIFEST_NAME).exists()


def has_undamaged_weights(checkpoint: Path) -> bool:
    """Whether the weights and the configuration match the manifest, even if other files do not."""
    try:
        entries = read_json(checkpoint / MANIFEST_NAME)
        weights = [name for name in entries if name.endswith(".safetensors")]
        for name in (*weights, CONFIG_NAME):
            _compare(checkpoint / name, entries.get(name), checksums=True)
    except (InputError, OSError):
        return False
    return bool(weights)


def lacks_optimizer(checkpoint: Path) -> bool:
    """Whether a checkpoint with a manifest was written without an optimizer (--save_only_model)."""
    return not any(name.startswith(OPTIMIZER_NAMES) for name in read_json(checkpoint / MANIFEST_NAME))


def _compare(file: Path, entry: Any, checksums: bool) -> None:
    """Compares a file with its entry in the manifest."""
    if not (isinstance(entry, dict) and entry.keys() >= {"bytes", "sha256"}):
        raise InputError(f"{file.parent / MANIFEST_NAME} is damaged: it does not describe {file.name}.")
    size = file.stat().st_size
    if size != entry["bytes"]:
        raise InputError(f"{file} is damaged: it has {size} bytes instead of {entry['bytes']}.")
    if checksums and _digest(file) != entry["sha256"]:
        raise InputError(f"{file} is damaged: its checksum does not match {MANIFEST_NAME}.")


def _digest(file: Path) -> str:
    """Returns the checksum. Reads an unchanged file once, although both the command and the trainer check it."""
    stat = file.stat()
    return _read_digest(file, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@functools.lru_cache(maxsize=1000)
def _read_digest(file: Path, version: tuple[int, ...]) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Waits until a file, or the list of files in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync folders.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)
