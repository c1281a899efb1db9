"""The settings that determine the result of training. Checkpoints store them, and a resumed run compares them."""

import json
import logging
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.continuation import check_continuation, list_changes, make_record
from snugbert.errors import InputError, format_count
from snugbert.files import read_json

SETTINGS_NAME = "RunSettings"  # key in a checkpoint's `trainer_state.json`

# `tf32` is left out, because it depends on the device: a CPU could not resume a run with TF32.
TRAINING_SETTINGS = (
    "optim",
    "optim_args",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "bf16",
    "fp16",
    "seed",
    "load_best_model_at_end",
)
# With `load_best_model_at_end`, these determine which model is kept.
BEST_MODEL_SETTINGS = ("metric_for_best_model", "greater_is_better", "eval_strategy", "eval_steps")
# Training sets these. The first two are tokens that BERT does not use.
SET_BY_TRAINING = ("bos_token_id", "eos_token_id", "problem_type")
MODEL_SETTINGS = tuple(name for name in SnugBertConfig.__annotations__ if name not in SET_BY_TRAINING)

logger = logging.getLogger(__name__)


class RunSettings(TrainerCallback):
    """The settings that must not change when a run resumes, and the changes so far. Checkpoints store both.

    The intervals of logging, evaluating and saving may change, although Trainer alone would use the checkpoint's.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind  # "pretraining" or "fine-tuning"
        self.command_settings: dict[str, Any] = {}  # in addition to the trainer's
        self.data_settings: dict[str, Any] = {}  # empty: not compared
        self.allows_changed_data = False  # if true, a change is only reported
        self.changes: list[str] = []  # what changed when the run resumed, for the model card
        self.keeps_checkpoints = True  # after the run is finished. If true, it stays true on resume
        self._trainer_settings: dict[str, Any] = {}
        self._checkpoint: str | None = None  # that the run resumes from
        self._max_steps = 0  # in the checkpoint

    def compare(self, checkpoint: str | None, trainer_settings: dict[str, Any]) -> None:
        """Compares the settings of this run with the checkpoint's settings, and loads the list of earlier changes."""
        self._trainer_settings, self._checkpoint = trainer_settings, checkpoint
        self.changes = []
        if checkpoint is None:
            return
        record, state = read_settings(checkpoint), read_state(checkpoint)
        remedy = (
            f"Restore the settings, or start a new run from its weights: --model_name_or_path {checkpoint}, with "
            "another --output_dir."
        )
        # Only settings that both runs have are compared.
        settings = trainer_settings | self.command_settings
        settings = {name: value for name, value in settings.items() if name in record["settings"]}
        before = {name: record["settings"][name] for name in settings}  # in the same order
        place = f"--resume_from_checkpoint: {checkpoint}"
        check_continuation(record | {"settings": before}, self.kind, settings, place, remedy)
        self.changes, self._max_steps = record["changes"], state.max_steps
        self.keeps_checkpoints |= record["keeps_checkpoints"]
        before, now = record["data_settings"], make_record(self.kind, self.data_settings)["settings"]
        if before and now and (changes := list_changes(before, now)):
            if not self.allows_changed_data:
                place = f"--resume_from_checkpoint: the training data of {checkpoint}"
                remedy = "Restore the data, or pass --allow_changed_data."
                check_continuation(record | {"settings": before}, self.kind, now, place, remedy)
            listed = [f"{name} was {json.dumps(old)} and is {json.dumps(new)}" for name, old, new in changes]
            self.report_change(f"after step {state.global_step:,}: {'; '.join(listed)}")

    def report_change(self, change: str) -> None:
        """Logs what changed on resume, and keeps it for the model card."""
        logger.warning("changed %s", change)
        self.changes.append(change)

    def store(self, state: TrainerState) -> None:
        """Adds the record to the `state` that is about to be saved. The command may add settings during the run."""
        record = make_record(self.kind, self._trainer_settings | self.command_settings)
        record |= {
            "data_settings": self.data_settings,
            "changes": self.changes,
            "keeps_checkpoints": self.keeps_checkpoints,
        }
        state.stateful_callbacks |= {SETTINGS_NAME: record}  # type: ignore[operator]

    def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any = None, **kwargs: Any) -> None:
        """Called by Trainer before the first step. Applies the intervals and the number of steps in the arguments."""
        state.compute_steps(args, state.max_steps)
        if self._checkpoint is None or state.max_steps == self._max_steps:
            return
        check_steps(self._checkpoint, args, state.max_steps, state.global_step)
        # Trainer would use the old schedule for one more step. Other schedules do not depend on the number of steps.
        if isinstance(lr_scheduler, LambdaLR):
            lr_scheduler.last_epoch -= 1
            lr_scheduler.step()
        steps = f"{state.max_steps:,} steps instead of {self._max_steps:,}"
        self.report_change(f"after step {state.global_step:,}: {steps}")


def check_steps(checkpoint: str, args: TrainingArguments, steps: int, done: int) -> None:
    """Checks that the `done` steps of a checkpoint are not more than the `steps` of the run."""
    if steps < done:
        flag = "--max_steps" if args.max_steps > 0 else "--num_train_epochs"
        raise InputError(
            f"{flag}: {checkpoint} has taken {format_count(done, 'step')}, more than the "
            f"{format_count(steps, 'step')} of this run. Increase {flag}."
        )


def collect_training_settings(args: TrainingArguments, config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Collects the settings that must not change when a run resumes, and the arguments `names`, as JSON values."""
    settings = {f"--{name}": getattr(args, name) for name in (*TRAINING_SETTINGS, *names)}
    if config is not None:
        settings |= {name: getattr(config, name, None) for name in MODEL_SETTINGS}
        settings["labels"] = list((config.id2label or {}).values())
    return json.loads(json.dumps({name: getattr(value, "value", value) for name, value in settings.items()}))


def read_state(checkpoint: str | Path) -> TrainerState:
    """Reads and checks the `trainer_state.json` of a checkpoint. The result always has `stateful_callbacks`."""
    file = Path(checkpoint) / TRAINER_STATE_NAME
    try:
        return TrainerState(**read_json(file))
    except TypeError as error:  # unknown names
        raise InputError(f"{file} is damaged, or was not written by Trainer.") from error


def read_settings(checkpoint: str) -> dict[str, Any]:
    """Returns the record of a checkpoint, see [`RunSettings.store`]."""
    callbacks: Any = read_state(checkpoint).stateful_callbacks
    if SETTINGS_NAME not in callbacks:
        raise InputError(f"{Path(checkpoint) / TRAINER_STATE_NAME} was not written by SnugBERT, or is damaged.")
    return callbacks[SETTINGS_NAME]
