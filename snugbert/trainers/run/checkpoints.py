"""The checkpoints of a run: how they are found, checked, written and removed.

A checkpoint is written into a temporary folder. Its last file is the manifest, with the size and checksum of every
file. Then everything is synced to the disk, and the folder gets its final name. So a folder named `checkpoint-<step>`
is complete unless it is damaged later. The manifest is verified on resume.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from snugbert.errors import InputError
from snugbert.files import CHECKPOINT_NAME, MANIFEST_NAME, explaining_failed_writes, read_json, step_of
from snugbert.storage.inputs import check_names
from snugbert.storage.uploads import download_checkpoint, find_output
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_settings import read_state

# A checkpoint stays here until all its files are on the disk. Uploads skip names that begin with "_".
UNFINISHED_CHECKPOINT = "_unfinished_checkpoint"
RESUME = "resume with --resume_from_checkpoint true"

logger = logging.getLogger(__name__)


# --- finding and checking -----------------------------------------------------------------------------------------


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Lists the folders `checkpoint-<step>` of a run, ordered by step."""
    named = (path for path in output_dir.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name))
    return sorted(filter(Path.is_dir, named), key=step_of)


def remove_checkpoints(checkpoints: list[Path]) -> None:
    """Removes checkpoints in this order. Each is moved away first, so a killed run leaves no incomplete checkpoint."""
    for checkpoint in checkpoints:
        unfinished, output = checkpoint.parent / UNFINISHED_CHECKPOINT, find_output(checkpoint)
        unfinished.mkdir(exist_ok=True)
        with nullcontext() if output is None else output.keeps_checkpoints:  # waits for an upload
            checkpoint.rename(unfinished / checkpoint.name)
        shutil.rmtree(unfinished, ignore_errors=True)


def find_newest_checkpoint(output_dir: Path) -> Path | None:
    """Finds the complete checkpoint with the highest step. Logs why it skips a checkpoint.

    If the output folder belongs to a store, downloads files of the checkpoint that are missing on this machine.
    """
    restore_replaced(output_dir / UNFINISHED_CHECKPOINT)
    for folder in reversed(list_checkpoints(output_dir)):
        download_checkpoint(folder)
        try:
            check_checkpoint(folder)
        except InputError as error:
            logger.warning("skipping %s: %s", folder.name, error)
        else:
            return folder
    return None


def check_checkpoint(checkpoint: Path, needs_optimizer: bool = True) -> None:
    """Checks that the files of a checkpoint are complete and undamaged, and that a run can resume from them.

    If `needs_optimizer` is false, a checkpoint with only the weights is enough.
    """
    manifest = checkpoint / MANIFEST_NAME
    try:
        entries = read_json(manifest)
        check_names(entries, str(manifest))
        for name in dict.fromkeys((TRAINER_STATE_NAME, *entries)):
            file, entry = checkpoint / name, entries[name]
            if file.stat().st_size != entry["bytes"] or _digest(file) != entry["sha256"]:
                raise InputError(f"{file} is damaged: its content does not match {MANIFEST_NAME}.")
    except (KeyError, TypeError) as error:
        raise InputError(f"{manifest} is damaged.") from error
    except OSError as error:
        raise InputError(f"{error.filename or checkpoint} cannot be read: {error.strerror}.") from error
    if needs_optimizer and not (checkpoint / "optimizer.pt").exists():
        raise InputError(
            f"{checkpoint} contains only weights (--save_only_model), so the run cannot be resumed. To train from "
            f"these weights, use --model_name_or_path {checkpoint} and another --output_dir."
        )


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- writing and removing -----------------------------------------------------------------------------------------


class RunCheckpoints(TrainerCallback):
    """Writes the checkpoints of a run, removes old checkpoints, and locates the best checkpoint.

    The first process writes the random states of all processes, so its folder is enough to resume on any machine.
    """

    def __init__(self) -> None:
        self.limit = 0  # number of checkpoints that are kept. 0: all

    @contextmanager
    def write(self, args: TrainingArguments, state: TrainerState, checkpoint: Path, whole: bool) -> Iterator[None]:
        """Makes `checkpoint` appear after the block, complete and on the disk. Then removes old checkpoints.

        In the block, `args.output_dir` is a temporary folder, and nothing is pushed. Every process must call this. If
        `whole`, the checkpoint contains the optimizer even with `save_only_model`.
        """
        output_dir, folder = checkpoint.parent, checkpoint.parent / UNFINISHED_CHECKPOINT
        before = {name: getattr(args, name) for name in ("output_dir", "push_to_hub", "save_only_model")}
        self._clear(args, folder)
        wait_for_all()
        try:
            with explaining_failed_writes(checkpoint, RESUME):
                args.output_dir, args.push_to_hub = str(folder), False
                args.save_only_model = args.save_only_model and not whole
                yield
                _collect_random_states(args, folder / checkpoint.name)
                if args.should_save:
                    _forget_best(folder / checkpoint.name)
                    publish(folder / checkpoint.name, checkpoint)
                wait_for_all()
            self._clear(args, folder)
        except BaseException:
            # Other processes do not clear the folder, because the first process may still be writing.
            if args.should_save:
                self._clear(args, folder)
            raise
        finally:
            vars(args).update(before)
        wait_for_all()  # another machine may still be clearing the folder, which `remove_old` uses
        locate_best(state, output_dir)
        if args.should_save and self.limit:
            self.remove_old(state, output_dir)

    def _clear(self, args: TrainingArguments, folder: Path) -> None:
        if args.local_process_index == 0:  # with a bucket, each machine has its own folder
            shutil.rmtree(folder, ignore_errors=True)

    def remove_old(self, state: TrainerState, output_dir: Path, waits: bool = False) -> None:
        """Keeps `limit` checkpoints: the last, the best, and then the newest.

        During an upload, it removes nothing until there are more than `limit` old checkpoints, unless it `waits`.
        Checkpoints of later steps are kept, too, because the run may have resumed from an earlier checkpoint.
        """
        best = Path(state.best_model_checkpoint or "").name
        last = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= state.global_step]
        ranked = sorted(reached, key=lambda folder: (folder.name in (last, best), step_of(folder)), reverse=True)
        protected = sum(folder.name in (last, best) for folder in ranked)
        old, output = ranked[max(self.limit, protected) :], find_output(output_dir)
        is_busy = output is not None and output.keeps_checkpoints.locked()
        if waits or not is_busy or len(old) > self.limit:
            remove_checkpoints(old)

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Called by Trainer after loading a checkpoint. The folder of the best checkpoint may have moved."""
        if optimizer is not None:
            check_optimizer(optimizer, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        locate_best(state, Path(args.output_dir))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after the last step. Waits for an upload, and removes what `remove_old` has left."""
        if args.should_save and self.limit:
            self.remove_old(state, Path(args.output_dir), waits=True)
        self._clear(args, Path(args.output_dir) / UNFINISHED_CHECKPOINT)  # left by a killed process


def _collect_random_states(args: TrainingArguments, folder: Path) -> None:
    """Sends the random state of every process to the first, because machines that use a bucket share no disk."""
    wait_for_all()  # the first process may still be writing
    mine = [(file.name, file.read_bytes()) for file in folder.glob(f"rng_state_{args.process_index}.pth")]
    for name, content in gather_object(mine):
        if args.should_save:
            (folder / name).write_bytes(content)


def locate_best(state: TrainerState, output_dir: Path) -> None:
    """Sets the path of the best checkpoint if the first process has it. All processes must call this."""
    best = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if state.best_global_step and best.is_dir():
        state.best_model_checkpoint = str(best)
    (state.best_model_checkpoint,) = broadcast_object_list([state.best_model_checkpoint])


def _forget_best(checkpoint: Path) -> None:
    """Removes the best checkpoint's path from a state, because folders can move. [`locate_best`] uses the step."""
    state = read_state(checkpoint)
    if state.best_model_checkpoint is not None:
        state.best_model_checkpoint = None
        state.save_to_json(str(checkpoint / TRAINER_STATE_NAME))


def publish(folder: Path, checkpoint: Path) -> None:
    """Writes the manifest of `folder`, waits until all files are on the disk, and renames the folder to `checkpoint`.

    Replaces an old checkpoint of this name. [`restore_replaced`] undoes a replacement that was interrupted.
    """
    write_manifest(folder)
    for path in (*folder.rglob("*"), folder):
        _sync(path)
    output = find_output(checkpoint) if checkpoint.exists() else None
    with nullcontext() if output is None else output.keeps_checkpoints:  # an upload would mix both checkpoints
        if checkpoint.exists():
            checkpoint.rename(folder.with_name(f"replaced-{folder.name}"))
        folder.rename(checkpoint)
    _sync(checkpoint.parent)


def restore_replaced(unfinished: Path) -> None:
    """Moves an old checkpoint back from `unfinished` if the run was killed before the new checkpoint was renamed."""
    for old in [*unfinished.rglob("replaced-*")]:
        checkpoint = unfinished.parent / old.name.removeprefix("replaced-")
        if not checkpoint.exists():
            old.rename(checkpoint)


def write_manifest(folder: Path) -> None:
    """Writes the size and checksum of every file in `folder`, except for an earlier manifest."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files.pop(MANIFEST_NAME, None)
    entries = {name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for name, path in files.items()}
    (folder / MANIFEST_NAME).write_text(json.dumps(entries, indent=1))


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


def check_optimizer(optimizer: Any, checkpoint: str) -> None:
    """Checks the shapes of AdamW's loaded state. With wrong shapes, its fused kernel would access invalid memory."""
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        for name in ("exp_avg", "exp_avg_sq"):
            shape = getattr(optimizer.state.get(parameter, {}).get(name), "shape", parameter.shape)
            if shape != parameter.shape:
                raise InputError(
                    f"{checkpoint}/optimizer.pt does not fit this run: {name} has shape {list(shape)}, but its "
                    f"parameter has shape {list(parameter.shape)}. Resume from another checkpoint."
                )
