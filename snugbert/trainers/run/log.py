"""What a training run prints and reports.

[`Reports`] sends to TensorBoard, Weights & Biases and Trackio what Trainer's own callbacks do not send.
"""

import copy
import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerState
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from snugbert.progress import Progress, is_terminal, print_line

REPORTS_NAME = "Reports"  # key in a checkpoint's `trainer_state.json`
# Metrics that log lines omit. Log files contain them.
NOT_PRINTED = (
    "epoch",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "model_preparation_time",
    "tokens",
)
ACRONYMS = ("mlm", "nsp", "mfu")

logger = logging.getLogger(__name__)


class LogHandler(logging.Handler):
    """Prints log records on standard error, above progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by the logger."""
        try:
            print_line(self.format(record))
        except Exception:  # as in logging's own handlers, a record that cannot be printed does not end the run
            self.handleError(record)


def set_up_logging(level: int = logging.INFO) -> None:
    """Prints the log records of SnugBERT from `level` on, and the warnings of other packages, on standard error."""
    logging.basicConfig(format="%(message)s", handlers=[LogHandler()])
    logging.getLogger("snugbert").setLevel(level)


class LogLines(TrainerCallback):
    """Prints the metrics of a step or an evaluation as one line on standard error."""

    last_line = ""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Called by Trainer with the metrics. A summary follows the run, so the run's totals are not printed."""
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            line = format_log_line(logs, state.global_step, state.max_steps)
            # The last evaluation is often repeated after training. Without training, the caller prints the metrics.
            if line != self.last_line and state.max_steps > 0:
                print_line(line)
            self.last_line = line


class ProgressBar(ProgressCallback):
    """Shows the [`Progress`] of training. In a resumed run, the speed is computed from the new steps."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        self.current_step = state.global_step
        if state.is_world_process_zero:
            bar: Any = Progress("training", state.max_steps, "steps", state.global_step)
            self.training_bar = bar

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        """Called by Trainer after each batch of an evaluation."""
        if is_terminal():
            super().on_prediction_step(*args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Prints nothing, because [`LogLines`] prints the metrics."""


def format_log_line(logs: Mapping[str, float], step: int, max_steps: int) -> str:
    """Formats the metrics of a step or of an evaluation. Names of evaluation metrics begin with `eval_`.

    step  200/1000  epoch 0.61  loss 6.5210  learning rate 9.0e-05
    eval  200/1000  epoch 0.61  loss 6.3021  accuracy 0.1250
    """
    kind = "eval" if any(name.startswith("eval_") for name in logs) else "step"
    width = len(str(max_steps))
    parts = [f"{kind} {step:>{width}}/{max_steps}"]
    if "epoch" in logs:
        parts.append(f"epoch {logs['epoch']:.2f}")
    for name, value in logs.items():
        name = name.removeprefix("eval_")
        if not f"_{name}".endswith(tuple(f"_{omitted}" for omitted in NOT_PRINTED)):
            parts.append(f"{_format_name(name)} {_format_metric(name, value)}")
    return "  ".join(parts)


def _format_name(name: str) -> str:
    words = name.replace("tokens_per_second", "tokens/s").split("_")
    return " ".join(word.upper() if word in ACRONYMS else word for word in words)


def _format_metric(name: str, value: float) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name == "learning_rate":
        return f"{value:.1e}"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:6.4f}" if abs(value) < 10 else f"{value:6.2f}"


class Reports:
    """Names the run, and sends scores at the end. Only the main process reports.

    A run has the same name in all reports: `run_name` or the name of the output folder, followed by the start time.
    Checkpoints store it, so a resumed run continues its report.
    """

    _own_wandb_runs: set[str] = set()  # ids of the runs that this process opened

    def __init__(self, trainer: Trainer):
        self._trainer, self._run_name = trainer, trainer.args.run_name
        self.name: str | None = None  # None: there are no reports

    @property
    def _callbacks(self) -> list[Any]:
        """Trainer's callbacks that report to TensorBoard, W&B or Trackio."""
        kinds = (TensorBoardCallback, WandbCallback, TrackioCallback)
        callbacks = self._trainer.callback_handler.callbacks if self._trainer.is_world_process_zero() else []
        return [callback for callback in callbacks if isinstance(callback, kinds)]

    def begin(self, state: TrainerState) -> None:
        """Opens the report of a run, or the report that the `state` of a checkpoint stores."""
        args, folder = self._trainer.args, Path(self._trainer.args.output_dir or "").resolve()
        self.name = None
        for callback in self._callbacks:
            if self.name is None:
                new = f"{self._run_name or folder.name}-{datetime.now():%Y%m%d-%H%M%S}"
                records: Any = state.stateful_callbacks or {}
                self.name = records.get(REPORTS_NAME, {}).get("name", new)
                args.run_name = self.name
            if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
                callback.logging_dir = str(folder / "runs" / self.name)
            elif isinstance(callback, WandbCallback):
                self._open_wandb(callback._wandb)

    def _open_wandb(self, wandb: Any) -> None:
        # Trainer never closes a W&B run, so the runs of a sweep would share it. The user's own run stays open.
        if wandb.run is not None and wandb.run.id in self._own_wandb_runs:
            wandb.finish()
        if wandb.run is None:
            allowed = re.sub(r"[:;,#?/']", "-", str(self.name))  # W&B refuses other ids
            project, run_id = os.getenv("WANDB_PROJECT", "huggingface"), os.getenv("WANDB_RUN_ID", allowed)
            run = wandb.init(project=project, id=run_id, name=self._run_name or self.name, resume="allow")
            self._own_wandb_runs.add(run.id)

    def store(self, state: TrainerState) -> None:
        """Adds the name of the run to the `state` that is about to be saved."""
        if self.name is not None:
            state.stateful_callbacks |= {REPORTS_NAME: {"name": self.name}}  # type: ignore[operator]

    def send(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends the scores of the model at a `step`. A failed report only causes a warning."""
        trainer, state = self._trainer, copy.copy(self._trainer.state)
        state.global_step = step
        for callback in self._callbacks:
            try:
                callback.on_log(trainer.args, state, trainer.control, model=trainer.model, logs=dict(metrics))
                if not isinstance(callback, WandbCallback):  # the W&B callback would upload the model
                    callback.on_train_end(trainer.args, state, trainer.control, model=trainer.model)
            except Exception as error:
                name, kind = type(callback).__name__, type(error).__name__
                logger.warning("%s: could not send metrics (%s: %s)", name, kind, error)
