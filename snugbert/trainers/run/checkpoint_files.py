"""The checkpoints in the output folder of a run: listing, removing, publishing and checking them.

A checkpoint is written into a temporary folder. Its last file is the manifest, with the size and checksum of every
file. Then everything is synced to the disk, and the folder gets its final name. So a folder named `checkpoint-<step>`
is complete unless it is damaged later. The manifest is verified on resume.
"""

import errno
import functools
import json
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME

from snugbert.errors import InputError
from snugbert.files import CHECKPOINT_NAME, MANIFEST_NAME, hash_file, read_json
from snugbert.storage.inputs import check_names
from snugbert.trainers.run.checkpoint_copies import download_checkpoint
from snugbert.trainers.run.run_settings import SETTINGS_NAME, read_state

# A checkpoint stays here until all its files are on the disk. Uploads skip names that begin with "_".
UNFINISHED = "_unfinished_checkpoint"
OPTIMIZER_NAMES = ("optimizer", "global_step")  # DeepSpeed uses the second name
RESUME = "resume with --resume_from_checkpoint true"

logger = logging.getLogger(__name__)


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Lists the folders `checkpoint-<step>` of a run, ordered by step."""
    if not output_dir.is_dir():
        return []
    named = (path for path in output_dir.iterdir() if CHECKPOINT_NAME.fullmatch(path.name))
    return sorted(filter(Path.is_dir, named), key=step_of)


def step_of(checkpoint: Path) -> int:
    """Returns the step in the name of a folder `checkpoint-<step>`."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def remove_checkpoints(checkpoints: list[Path]) -> None:
    """Removes checkpoints in this order. Each is moved away first, so a killed run leaves no incomplete checkpoint."""
    for checkpoint in checkpoints:
        unfinished = checkpoint.parent / UNFINISHED
        unfinished.mkdir(exist_ok=True)
        checkpoint.rename(unfinished / checkpoint.name)
        shutil.rmtree(unfinished, ignore_errors=True)


def find_newest_checkpoint(output_dir: Path) -> Path | None:
    """Finds the complete checkpoint with the highest step. A warning names the damaged file of a skipped checkpoint.

    If the output folder belongs to a store, downloads files of the checkpoint that are missing on this machine.
    """
    restore_replaced(output_dir / UNFINISHED)
    for folder in reversed(list_checkpoints(output_dir)):
        download_checkpoint(folder)
        try:
            check_checkpoint(folder)
        except InputError as error:
            logger.warning("skipping %s: %s", folder.name, error)
            continue
        return folder
    return None


# --- writing and verifying ----------------------------------------------------------------------------------------


def publish(folder: Path, checkpoint: Path) -> None:
    """Writes the manifest of `folder`, see [`write_manifest`], and renames the folder, see [`rename_checkpoint`]."""
    write_manifest(folder)
    rename_checkpoint(folder, checkpoint)


def rename_checkpoint(folder: Path, checkpoint: Path) -> None:
    """Waits until all files in `folder` are on the disk, and renames it to `checkpoint`.

    Replaces an old checkpoint of this name. [`restore_replaced`] undoes a replacement that was interrupted.
    """
    for path in (*folder.rglob("*"), folder):
        _sync(path)
    if checkpoint.exists():
        checkpoint.rename(folder.with_name(f"replaced-{folder.name}"))
    folder.rename(checkpoint)
    _sync(checkpoint.parent)


def restore_replaced(unfinished: Path) -> None:
    """Moves an old checkpoint back from `unfinished` if the run was killed before the new checkpoint was renamed."""
    for old in [*unfinished.rglob("replaced-*")]:
        checkpoint = unfinished.parent / old.name.removeprefix("replaced-")
        if not checkpoint.exists():
            with suppress(FileNotFoundError):  # another machine has moved it
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
            check_names(entries, str(checkpoint / MANIFEST_NAME))
            for name in dict.fromkeys((TRAINER_STATE_NAME, *entries)):
                _compare(checkpoint / name, entries.get(name), checksums)
        state = read_state(checkpoint)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename} is missing.") from error
    except OSError as error:
        raise InputError(f"{error.filename or checkpoint} cannot be read: {error.strerror}.") from error
    # Trainer itself writes neither these settings nor a manifest.
    if SETTINGS_NAME in (state.stateful_callbacks or ()) and not has_manifest(checkpoint):
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
    return hash_file(file)


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
