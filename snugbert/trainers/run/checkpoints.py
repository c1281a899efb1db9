"""Writes and removes the checkpoints of a run, and explains errors when a checkpoint is read."""

import logging
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from snugbert.errors import InputError
from snugbert.families.weight_files import read_torch_file, read_weights
from snugbert.files import writing
from snugbert.trainers.run.checkpoint_choice import NoCheckpointError, agree_on_checkpoint
from snugbert.trainers.run.checkpoint_copies import download_checkpoint
from snugbert.trainers.run.checkpoint_files import (
    RESUME,
    UNFINISHED,
    check_checkpoint,
    list_checkpoints,
    publish,
    remove_checkpoints,
    step_of,
)
from snugbert.trainers.run.lost_processes import wait_for_all
from snugbert.trainers.run.run_settings import read_state

logger = logging.getLogger(__name__)


class RunCheckpoints(TrainerCallback):
    """Writes the checkpoints of a run, removes old checkpoints, and locates the best checkpoint.

    The first process writes the random states of all processes, so its folder is enough to resume on any machine.

    Attributes:
        limit: number of checkpoints that are kept. 0: all.
        is_writing: whether a checkpoint is being written.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.is_writing = False

    @contextmanager
    def write(self, args: TrainingArguments, state: TrainerState, checkpoint: Path, whole: bool) -> Iterator[None]:
        """Makes `checkpoint` appear after the block, complete and on the disk. Then removes old checkpoints.

        In the block, Trainer writes the checkpoint into `args.output_dir`, which is a temporary folder, and pushes
        nothing. Every process must call this. A full disk raises an [`InputError`].

        Args:
            args: the trainer's arguments.
            state: the trainer's state.
            checkpoint: the folder, `checkpoint-<step>` in the output folder. It may exist.
            whole: whether the checkpoint contains the optimizer even with `save_only_model`.
        """
        output_dir, folder = checkpoint.parent, checkpoint.parent / UNFINISHED
        before = {name: getattr(args, name) for name in ("output_dir", "push_to_hub", "save_only_model")}
        self._clear(args, folder)
        wait_for_all()
        self.is_writing = True
        try:
            with writing(checkpoint, RESUME):
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
            # On a shared disk, the first process may still be writing.
            if args.should_save:
                self._clear(args, folder)
            raise
        finally:
            self.is_writing = False
            vars(args).update(before)
        wait_for_all()  # another machine may still be clearing the folder, which `remove_old` uses
        locate_best(state, output_dir)
        if args.should_save and self.limit:
            self.remove_old(state, output_dir)

    def _clear(self, args: TrainingArguments, folder: Path) -> None:
        if args.local_process_index == 0:  # machines without a shared disk have their own folders
            shutil.rmtree(folder, ignore_errors=True)

    def remove_old(self, state: TrainerState, output_dir: Path) -> None:
        """Keeps `limit` checkpoints: the last, the best, and then the newest.

        Checkpoints of later steps also stay. If they are damaged and the run started again, their weights may still be
        better than the weights of this run.
        """
        best = Path(state.best_model_checkpoint or "").name
        last = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"

        def rank(folder: Path) -> tuple[bool, float, int]:
            # Some file systems give equal times. Then the step decides.
            return folder.name in (last, best), folder.stat().st_mtime, step_of(folder)

        reached = [folder for folder in list_checkpoints(output_dir) if step_of(folder) <= state.global_step]
        ranked = sorted(reached, key=rank, reverse=True)
        protected = sum(folder.name in (last, best) for folder in ranked)
        remove_checkpoints(ranked[max(self.limit, protected) :])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. Locates the best checkpoint, even if the folder was renamed.

        Another machine may have written the checkpoint, see [`agree_on_checkpoint`]. A damaged best checkpoint is
        ignored, so that a later checkpoint can be the best.
        """
        output_dir = Path(args.output_dir)
        best = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"

        def find() -> Path | None:
            if not best.is_dir():
                return None
            download_checkpoint(best)
            check_checkpoint(best, needs_optimizer=False)
            return best

        if state.best_global_step and args.load_best_model_at_end:
            try:
                agree_on_checkpoint(args, output_dir, find, only_first=True)
            except NoCheckpointError as damage:
                logger.warning("ignoring the best checkpoint: %s", damage)
                state.best_model_checkpoint = state.best_global_step = state.best_metric = None
        locate_best(state, output_dir)


def _collect_random_states(args: TrainingArguments, folder: Path) -> None:
    """Sends the random state of every process to the first process, because machines may not share a disk."""
    wait_for_all()  # the first process may still be writing
    mine = [(file.name, file.read_bytes()) for file in folder.glob(f"rng_state_{args.process_index}.pth")]
    for name, content in gather_object(mine):
        if args.should_save:
            (folder / name).write_bytes(content)


def locate_best(state: TrainerState, output_dir: Path) -> None:
    """Sets the path of the best checkpoint if it exists. All processes must call this.

    All processes use the path of the first process, because machines may have different output folders.
    """
    best = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if state.best_global_step and best.is_dir():
        state.best_model_checkpoint = str(best)
    (state.best_model_checkpoint,) = broadcast_object_list([state.best_model_checkpoint])


def _forget_best(checkpoint: Path) -> None:
    """Removes the path of the best checkpoint from the state of a checkpoint, because the folder may move.

    [`RunCheckpoints`] locates the best checkpoint by its step. Trainer would warn about a missing path.
    """
    state = read_state(checkpoint)
    if state.best_model_checkpoint is not None:
        state.best_model_checkpoint = None
        state.save_to_json(str(checkpoint / TRAINER_STATE_NAME))


@contextmanager
def resuming_from(checkpoint: str | None, files: str) -> Iterator[None]:
    """Turns an error about the content of a checkpoint's `files` into an [`InputError`] that names a damaged file."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # If a file is damaged, these calls raise an error that names the file.
        for file in sorted(Path(str(checkpoint)).glob("*.pt*")):
            read_torch_file(file)
        read_weights(Path(str(checkpoint)))
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
        raise InputError(
            f"{checkpoint}: {files} does not fit this run ({reason}). Resume from another checkpoint, or start a new "
            f"run from its weights with --model_name_or_path {checkpoint}."
        ) from error


@contextmanager
def ignoring_tied_weights(model: Any) -> Iterator[None]:
    """Keeps `model.load_state_dict` from reporting tied weights as missing. Checkpoints store them once."""
    tied = getattr(model, "all_tied_weights_keys", {})

    def remove_tied(_: torch.nn.Module, keys: Any) -> None:
        keys.missing_keys[:] = [key for key in keys.missing_keys if key not in tied]

    hook = model.register_load_state_dict_post_hook(remove_tied)
    try:
        yield
    finally:
        hook.remove()


def check_optimizer(optimizer: Any) -> None:
    """Checks the shapes of a loaded optimizer state. With wrong shapes, fused kernels would access memory out of
    bounds.

    Raises:
        ValueError: a state and its parameter differ in shape.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                    raise ValueError(
                        f"{name} has shape {list(value.shape)}, but its parameter has shape {list(parameter.shape)}"
                    )
