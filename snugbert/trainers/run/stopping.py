"""Stops a run: on SIGTERM or Ctrl-C after a checkpoint, and with an error if the loss is not finite."""

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, seed_worker

from snugbert.errors import InputError, RunStopped
from snugbert.kernels_snugbert import has_own_kernels
from snugbert.trainers.run.processes import wait_for_all

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGTERM_SECONDS = 30  # launchers and schedulers kill a process this long after SIGTERM
REMEDY = "Try a lower --learning_rate, more --warmup_steps, or --bf16 or float32 instead of --fp16."


class DivergedError(InputError):
    """The loss, the gradient norm or the model's logits are NaN or infinite."""


class StopSignal(TrainerCallback):
    """Ends training on a signal, or if the loss or the gradient norm is not finite.

    - On SIGTERM or SIGINT (Ctrl-C), the trainer finishes the step, writes a checkpoint, whatever `save_strategy` is,
      and returns. An evaluation that is due after this step comes first, so that the resumed run has the same log and
      random state as an uninterrupted run. A second SIGINT raises KeyboardInterrupt at once. After training, signals
      act as before.
    - If the loss or the gradient norm is NaN or infinite, the optimizer step is not taken, and no checkpoint is
      written. With fp16, the gradient scaler skips steps with infinite gradients, so only the loss is checked.

    All processes stop after the same step. On a GPU, the host reads the signal and the loss one step late, so that it
    never waits for the GPU within a step. Weights after a bad step are never logged, evaluated or saved, because the
    host first waits for the last report. This is the last callback, so that it can cancel checkpoints.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.writes_checkpoint = True  # on a signal. A dry run writes none
        self._begin()

    def _begin(self) -> None:
        self.interrupted: signal.Signals | None = None  # the signal that ended training
        self.writes_whole_checkpoint = False  # whether it includes the optimizer even with `save_only_model`
        self._saved_step = 0  # the step of the last checkpoint that this run wrote or resumed from. 0: none
        self._received = 0  # the signal that this process received
        # The report that the host has not read: step, numbers on the CPU, and the event of their arrival there.
        self._report: tuple[int, torch.Tensor, torch.Event | None] | None = None
        self.status: torch.Tensor | None = None  # from `describe`, if this step's all-reduce has included it

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Records signals during training. A signal after the last step takes effect once training is complete."""
        self._begin()
        save_strategy = self.trainer.args.save_strategy
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            # A signal that the parent process ignores, as nohup does, stays ignored.
            wanted = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            previous = {number: signal.signal(number, self._note) for number in wanted}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler or signal.SIG_DFL)
            self.trainer.args.save_strategy = save_strategy
        state, output_dir = self.trainer.state, self.trainer.args.output_dir
        if self.interrupted:
            folder = Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            wrote = f" Wrote {folder}." if self.writes_checkpoint else ""
            where = f"after step {state.global_step} of {state.max_steps}"
            logger.warning("%s: stopped %s.%s", self.interrupted.name, where, wrote)
        elif self._received:  # after the last step
            signal.raise_signal(self._received)

    def _note(self, number: int, _: Any) -> None:
        if number == self._received == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = number

    # --- a step -------------------------------------------------------------------------------------------------

    def describe(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns whether the loss is not finite, and whether each signal was received. *Shape:* (3,)"""
        received = [torch.full_like(loss, self._received == number) for number in STOP_SIGNALS]
        return torch.stack([(~torch.isfinite(loss)).to(loss.dtype), *received])

    def check_step(self, grad_norm: torch.Tensor) -> None:
        """Reports whether the step diverged in any process, and whether any process received a signal.

        Called between the backward passes and the optimizer step. On the CPU, the report is read at once, and on other
        devices after the next step has been queued.
        """
        self.read_report()
        trainer = self.trainer
        loss = trainer._tr_loss  # summed since the last log line; finite before this step
        status, self.status = self.status, None
        if status is None:
            status = self.describe(loss)
            if trainer.args.world_size > 1:
                dist.all_reduce(status)
        # The scaler skips steps with infinite gradients.
        norm = grad_norm if trainer.accelerator.scaler is None else torch.zeros_like(loss)
        values, arrival = torch.cat([status, torch.stack([loss, norm])]), None
        if loss.device.type != "cpu":
            values = values.to("cpu", non_blocking=True)  # into pinned memory
            arrival = torch.Event(loss.device)
            arrival.record()
        self._report = trainer.state.global_step + 1, values, arrival
        if has_own_kernels(loss):
            self.read_report()

    def read_report(self) -> None:
        """Reads the report of the last step, if unread. Sets `interrupted` on a signal. Divergence raises an error."""
        if self._report is None:
            return
        (step, values, arrival), self._report = self._report, None
        if arrival is not None:
            arrival.synchronize()
        diverged, *received, loss, norm = values.tolist()
        if diverged or not math.isfinite(norm):
            last = f"The last checkpoint is {PREFIX_CHECKPOINT_DIR}-{self._saved_step}. " if self._saved_step else ""
            what = f"The loss or the gradient norm is not finite in step {step} (in this process: {loss} and {norm})."
            raise DivergedError(f"{what} {last}{REMEDY}")
        if any(received) and not self.interrupted:  # on a GPU, the report of the next step contains the signal, too
            self.interrupted = next(number for number, share in zip(STOP_SIGNALS, received, strict=True) if share)
            logger.warning("%s: stopping after this step.", self.interrupted.name)

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each step. After a signal, Trainer logs and evaluates. `on_epoch_end` saves."""
        if control.should_log or control.should_evaluate or control.should_save:
            self.read_report()  # logging, evaluating and saving wait for the device anyway
        if self.interrupted:
            control.should_save = False
            control.should_training_stop = True

    def on_epoch_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each epoch and when training stops. After a signal, saves.

        If a signal stops training within an epoch, logging and evaluation at the end of an epoch are skipped. If a
        run is stopped after its last step and its last evaluation, the resumed run does not evaluate again.
        """
        last = state.log_history[-1] if state.log_history else {}
        if last.get("step") == state.global_step and any(name.startswith("eval_") for name in last):
            control.should_evaluate = False
        if self.interrupted and state.epoch % 1 and state.global_step < state.max_steps:
            control.should_log = control.should_evaluate = False
        elif control.should_training_stop:
            self.read_report()  # of the last step
        self.on_step_end(args, state, control)
        if self.interrupted:
            control.should_save = self.writes_whole_checkpoint = self.writes_checkpoint
            args.save_strategy = SaveStrategy.STEPS  # with "best", an evaluation would decide whether to save

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        self._saved_step = state.global_step

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after a checkpoint."""
        self._saved_step = state.global_step


def raise_if_interrupted(trainer: Any) -> None:
    """Ends a command whose training was interrupted. Every process must call this.

    A launcher kills other processes soon after one ends, but the first process may still be uploading its checkpoint.
    """
    if trainer.interrupted:
        resumes = str(trainer.args.resume_from_checkpoint).lower() == "true"
        logger.warning(
            "To continue, run the same command again%s.", "" if resumes else " with --resume_from_checkpoint true"
        )
        wait_for_all()
        raise RunStopped(trainer.interrupted)


def start_worker(worker_id: int, num_workers: int, rank: int) -> None:
    """Seeds a data worker like Trainer. SIGINT and SIGTERM do not end the worker, because the trainer ends the run."""
    seed_worker(worker_id, num_workers, rank)
    received: list[float] = []

    def survive(*_: Any) -> None:
        # The launcher and the scheduler may both send SIGTERM. So the worker ignores SIGTERM for 30 seconds after the
        # first one. A later SIGTERM ends the worker: at exit, multiprocessing sends it to the remaining workers.
        received.append(time.monotonic())
        if received[-1] - received[0] > SIGTERM_SECONDS:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, survive)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal
