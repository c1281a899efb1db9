"""Stopping a run: on SIGTERM and Ctrl-C after a checkpoint, and with an error if the loss is not finite.

transformers' own `enable_jit_checkpoint` waits on a timer in each process, and each saves on its own, at any step.
"""

import functools
import logging
import math
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import broadcast_object_list
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, seed_worker

from snugbert.errors import InputError, RunStopped
from snugbert.kernels_snugbert import has_own_kernels

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
POSTPONED = "PostponedEvaluation"  # key in a checkpoint's `trainer_state.json`
SIGTERM_SECONDS = 30  # launchers and schedulers kill a process this long after SIGTERM
REMEDY = "Try a lower --learning_rate, more --warmup_steps, or --bf16 or float32 instead of --fp16."


class DivergedError(InputError):
    """The loss, the gradient norm or the model's logits are NaN or infinite."""


class StoppableTrainer(Trainer):
    """Trainer that can be stopped at any time, and that stops if the loss or the gradient norm is not finite.

    - On SIGTERM or SIGINT (Ctrl-C), it finishes the step, writes a checkpoint, whatever `save_strategy` is, and
      returns. An evaluation that is due after this step is left to the resumed run, because a launcher may soon kill
      the process. A second SIGINT raises KeyboardInterrupt at once. After training, signals act as before.
    - If the loss or the gradient norm is NaN or infinite, the optimizer step is not taken, and no checkpoint is
      written. With fp16, the gradient scaler skips steps with infinite gradients, so only the loss is checked.

    All processes stop after the same step. On a GPU, the host reads both one step late, so that it never waits for the
    GPU within a step. Only the first step, which has a log line, is read at once. A stopped run then takes one step
    more. A run that diverges has already taken the bad step, so the weights in memory are not finite either. They
    reach no log line, evaluation or checkpoint, because the host waits for the last report before each of these.

    Attributes:
        interrupted: the signal that ended the last call of `train`. None if training is complete.
    """

    interrupted: signal.Signals | None = None
    _tr_loss: torch.Tensor
    _received = 0  # the signal that this process received
    _report: "StepReport | None" = None  # of the last step, if the host has not read it
    _saved_step = 0  # of the last checkpoint that this run wrote or resumed from
    _evaluation_is_due = False  # and left to the resumed run
    _resumed_from: Any = None
    _random_state: tempfile.TemporaryDirectory | None = None  # after the evaluation that the stopped run left

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.add_callback(StopWithinEpoch(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in Trainer. Stops on SIGTERM and SIGINT, see `interrupted`.

        Raises:
            DivergedError: the loss or the gradient norm is not finite.
            KeyboardInterrupt: on a second SIGINT.
        """
        self.interrupted, self._received, self._evaluation_is_due = None, 0, False
        self._report = None
        self._resumed_from, self._random_state = resume_from_checkpoint, None
        with self._note_signals():
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        if self.interrupted:
            logger.warning(
                "%s: stopped after step %d of %d. Wrote %s.",
                self.interrupted.name,
                self.state.global_step,
                self.state.max_steps,
                Path(str(self.args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}",
            )
        elif self._received:  # after the last step
            signal.raise_signal(self._received)
        return output

    @contextmanager
    def _note_signals(self) -> Iterator[None]:
        def note(number: int, _: Any) -> None:
            if number == self._received == signal.SIGINT:
                raise KeyboardInterrupt
            self._received = number

        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            # A signal that the parent process ignores, as nohup does, stays ignored.
            wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            previous = {number: signal.signal(number, note) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        """As in Trainer. Called after the backward passes of a step. The optimizer step follows."""
        norm = super()._get_grad_norm(*args, **kwargs)
        self._check_step(norm)
        return norm

    def _check_step(self, grad_norm: torch.Tensor) -> None:
        """Reports whether the step diverged in any process, and whether any process received a signal.

        Several processes exchange these two numbers. On the CPU the report is read at once, on other devices after
        the next step has been queued: the device then has work while the host waits.
        """
        self._read_report()
        loss = self._tr_loss  # summed since the last log line; finite before this step
        norm = grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm
        if self.accelerator.scaler is not None:
            norm = torch.zeros_like(loss)  # the scaler skips steps with infinite gradients
        status = torch.stack([(~torch.isfinite(loss + norm)).float(), torch.full_like(loss, self._received)])
        if self.args.world_size > 1:
            dist.all_reduce(status, dist.ReduceOp.MAX)
        self._report = StepReport.send(self.state.global_step + 1, torch.stack([*status, loss, norm]))
        if has_own_kernels(loss):
            self._read_report()

    def _read_report(self) -> None:
        """Reads the report of the last step, unless that is done. Sets `interrupted` if it contains a signal.

        Raises:
            DivergedError: the step diverged.
        """
        if self._report is None:
            return
        report, self._report = self._report, None
        diverged, received, loss, norm = report.read()
        if diverged:
            raise DivergedError(self._describe_divergence(report.step, loss, norm))
        if received and not self.interrupted:  # on a GPU, the report of the next step contains it, too
            self.interrupted = signal.Signals(int(received))
            logger.warning("%s: stopping after this step.", self.interrupted.name)

    def _describe_divergence(self, step: int, loss: float, norm: float) -> str:
        what = "loss of another process is not finite"
        for name, value in (("gradient norm", norm), ("loss", loss)):
            if not math.isfinite(value):
                what = f"{name} is {value}"
        last = f"The last checkpoint is {PREFIX_CHECKPOINT_DIR}-{self._saved_step}. " if self._saved_step else ""
        return f"The {what} in step {step}. {last}{REMEDY}"

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, Any]:
        """As in Trainer, but a run that resumes after its last step takes no further step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """As in Trainer. After a signal, only logs: the checkpoint comes first, see `_finalize_training`."""
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._read_report()  # each of them waits for the device anyway
        if self.interrupted:
            self.control.should_training_stop = True
            self._evaluation_is_due |= self.control.should_evaluate
            self.control.should_evaluate = self.control.should_save = False
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self._saved_step = self.state.global_step

    def _finalize_training(self, trial: Any, *args: Any, **kwargs: Any) -> TrainOutput:
        self._read_report()
        self._evaluate_postponed(trial)  # if the run resumed after the last step of an epoch
        if self.interrupted:
            if self._evaluation_is_due:
                self._callback_states[POSTPONED] = True
            self._save_whole_checkpoint(trial)
        return super()._finalize_training(trial, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._evaluate_postponed(kwargs.get("trial"), kwargs.get("ignore_keys_for_eval"))
        if not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)

    def _evaluate_postponed(self, trial: Any, ignore_keys: list[str] | None = None) -> None:
        """Does the evaluation that was due when a signal stopped the run, and writes the checkpoint again."""
        is_due = self._callback_states.pop(POSTPONED, False) and self.args.eval_strategy != "no"
        (is_due,) = broadcast_object_list([is_due])  # machines may have different copies of the checkpoint
        if not is_due:
            return
        self._load_rng_state(self._resumed_from)
        self._determine_best_metric(self._evaluate(trial, ignore_keys), trial)
        self._random_state = tempfile.TemporaryDirectory()
        self._save_rng_state(self._random_state.name)
        self._save_whole_checkpoint(trial)
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint if self._random_state is None else self._random_state.name)

    def _save_whole_checkpoint(self, trial: Any) -> None:
        """Writes a checkpoint that a run can resume from, even with `save_only_model`."""
        save_only_model, self.args.save_only_model = self.args.save_only_model, False
        try:
            self._save_checkpoint(self.model_wrapped, trial)
        finally:
            self.args.save_only_model = save_only_model
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    @property
    def _callback_states(self) -> dict[str, Any]:
        return self.state.stateful_callbacks  # type: ignore[return-value]

    def _load_best_model(self) -> None:
        if not self.interrupted:
            super()._load_best_model()

    def _get_dataloader(self, *args: Any, **kwargs: Any) -> torch.utils.data.DataLoader:
        loader = super()._get_dataloader(*args, **kwargs)
        getattr(loader, "base_dataloader", loader).worker_init_fn = self.worker_init_fn
        return loader

    @property
    def worker_init_fn(self) -> Callable[[int], None]:
        """The function that each data worker calls first. It seeds the worker and keeps signals from ending it."""
        arguments = {"num_workers": self.args.dataloader_num_workers, "rank": self.args.process_index}
        return functools.partial(_start_worker, **arguments)


@dataclass
class StepReport:
    """Numbers of a step on their way from the device to the host.

    Attributes:
        step: the step, counted from 1.
        values: the numbers, on the CPU. Valid when they have arrived. *Shape:* (count,)
        arrival: event after the copy. None: the values are already on the host.
    """

    step: int
    values: torch.Tensor
    arrival: torch.Event | None

    @classmethod
    def send(cls, step: int, values: torch.Tensor) -> "StepReport":
        """Starts copying `values` to the host."""
        if values.device.type == "cpu":
            return cls(step, values, None)
        host_values = values.to("cpu", non_blocking=True)  # into pinned memory
        arrival = torch.Event(values.device)
        arrival.record()
        return cls(step, host_values, arrival)

    def read(self) -> list[float]:
        """Waits for the numbers and returns them."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.values.tolist()


class StopWithinEpoch(TrainerCallback):
    """Skips what is due at the end of an epoch if a signal stops the run within the epoch."""

    def __init__(self, trainer: StoppableTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        self.trainer._saved_step = state.global_step

    def on_epoch_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer also calls this if training stops within an epoch. Then, what is due once per epoch is skipped."""
        if self.trainer.interrupted and state.epoch % 1 and state.global_step < state.max_steps:
            control.should_log = control.should_evaluate = control.should_save = False


def raise_if_interrupted(trainer: StoppableTrainer) -> None:
    """Ends a command whose training was interrupted.

    Raises:
        RunStopped: a signal ended the training.
    """
    if trainer.interrupted:
        resumes = str(trainer.args.resume_from_checkpoint).lower() == "true"
        logger.warning(
            "To continue, run the same command again%s.", "" if resumes else " with --resume_from_checkpoint true"
        )
        raise RunStopped(trainer.interrupted)


def _start_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seeds a data worker as Trainer does. SIGINT and SIGTERM do not end it, because the trainer ends the run."""
    seed_worker(worker_id, num_workers, rank)
    received: list[float] = []

    def survive(*_: Any) -> None:
        # The launcher and the scheduler may both send SIGTERM. So the worker ignores it until 30 seconds after the
        # first. A later one ends it: at exit, multiprocessing sends SIGTERM to the remaining workers.
        received.append(time.monotonic())
        if received[-1] - received[0] > SIGTERM_SECONDS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, survive)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
