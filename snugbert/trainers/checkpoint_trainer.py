"""Checkpoints that are complete or absent, even if a run is killed while it writes one."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate.utils import broadcast_object_list, gather_object
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from snugbert.errors import InputError
from snugbert.files import writing
from snugbert.trainers.manifest import check_checkpoint, publish
from snugbert.trainers.output_folder import UNFINISHED
from snugbert.trainers.processes import wait_for_all
from snugbert.trainers.run_settings import read_state

RESUME = "resume with --resume_from_checkpoint true"

logger = logging.getLogger(__name__)


class CheckpointTrainer(Trainer):
    """Trainer that writes a checkpoint into a temporary folder, and renames it when all its files are on the disk.

    The first process writes the random states of all processes, so its folder is enough to resume on any machine.
    Files follow the umask. A full disk is a short error.

    Attributes:
        writes_checkpoint: whether a checkpoint is being written.
    """

    writes_checkpoint = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.args.save_on_each_node:
            raise InputError(
                "--save_on_each_node is not supported, because transformers writes weights in the first process only. "
                "Use an --output_dir that all machines share."
            )
        self.add_callback(LocateBestCheckpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Trainer. A full disk is a short error."""
        folder = Path(output_dir or self.args.output_dir or "")
        with nullcontext() if self.writes_checkpoint else writing(folder, RESUME):
            super().save_model(output_dir, _internal_call)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            for file in folder.glob("*.safetensors"):
                shutil.copymode(folder / CONFIG_NAME, file)  # safetensors ignores the umask

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return str(Path(folder) / UNFINISHED) if self.writes_checkpoint else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        checkpoint = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with writing(checkpoint, RESUME), self._unfinished(checkpoint.parent / UNFINISHED) as folder:
            super()._save_checkpoint(model, trial)
            self._collect_random_states(folder / checkpoint.name)
            if self.args.should_save:
                _forget_best(folder / checkpoint.name)
                publish(folder / checkpoint.name, checkpoint)
            wait_for_all()

    @contextmanager
    def _unfinished(self, folder: Path) -> Iterator[Path]:
        """Makes Trainer write its checkpoint into `folder`. Removes the folder before and after."""

        def clear() -> None:
            if self.args.local_process_index == 0:  # machines without a shared disk have their own folders
                shutil.rmtree(folder, ignore_errors=True)

        clear()
        wait_for_all()
        self.writes_checkpoint = True
        try:
            yield folder
        finally:
            self.writes_checkpoint = False
            clear()

    def _load_best_model(self) -> None:
        """As in Trainer. Only the first process reads the weights, because machines may not share a disk."""
        if self.args.world_size == 1 or self.is_fsdp_enabled:  # FSDP2 does the same
            return super()._load_best_model()
        if self.args.process_index == 0:
            super()._load_best_model()
        for tensor in self.model.state_dict().values():  # type: ignore[union-attr]
            dist.broadcast(tensor, 0)

    def _collect_random_states(self, folder: Path) -> None:
        """Sends the random state of every process to the first one, because machines may not share a disk."""
        mine = [(file.name, file.read_bytes()) for file in folder.glob(f"rng_state_{self.args.process_index}.pth")]
        for name, content in gather_object(mine):
            if self.args.should_save:
                (folder / name).write_bytes(content)


class LocateBestCheckpoint(TrainerCallback):
    """Locates the best checkpoint of a resumed run in its output folder, even if the folder was renamed."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step. Ignores a damaged best checkpoint: a later one can be the best."""
        locate_best(state, Path(args.output_dir))
        if state.best_model_checkpoint is None or not args.load_best_model_at_end:
            return
        damage: str | None = None
        if args.process_index == 0:
            try:
                check_checkpoint(Path(state.best_model_checkpoint), needs_optimizer=False)
            except InputError as error:
                damage = str(error)
        (damage,) = broadcast_object_list([damage])
        if damage is not None:
            logger.warning("ignoring the best checkpoint: %s", damage)
            state.best_model_checkpoint = state.best_global_step = state.best_metric = None


def locate_best(state: TrainerState, output_dir: Path) -> None:
    """Sets the path of the best checkpoint if it exists. All processes must call this.

    They use the path of the first process, because machines may have different output folders.
    """
    best = output_dir / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    if state.best_global_step and best.is_dir():
        state.best_model_checkpoint = str(best)
    (state.best_model_checkpoint,) = broadcast_object_list([state.best_model_checkpoint])


def _forget_best(checkpoint: Path) -> None:
    """Removes the path of the best checkpoint from the state of a checkpoint, because the folder may move.

    [`LocateBestCheckpoint`] locates it by its step. Trainer warns about a path that does not exist.
    """
    state = read_state(checkpoint)
    if state.best_model_checkpoint is not None:
        state.best_model_checkpoint = None
        state.save_to_json(str(checkpoint / TRAINER_STATE_NAME))
