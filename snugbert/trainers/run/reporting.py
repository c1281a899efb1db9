"""Reports to TensorBoard, Weights & Biases and Trackio, next to the log lines that Trainer's own callbacks send.

A run has the same name in all reports. Checkpoints store the name, so a resumed run continues its report. Scores and
plots are sent at the end.
"""

import copy
import logging
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Trainer, TrainerState
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

REPORTS_NAME = "Reports"  # key in a checkpoint's `trainer_state.json`

logger = logging.getLogger(__name__)


class Reports:
    """Names the run, and sends what the log does not contain. Only the main process reports.

    Attributes:
        name: `run_name` or the name of the output folder, followed by the start time. It names TensorBoard's folder in
            `output_dir/runs`, and is the id in W&B and the name in Trackio. None: the run reports to none of these.
    """

    _own_wandb_runs: set[str] = set()  # ids of the runs that this process opened

    def __init__(self, trainer: Trainer):
        self._trainer, self._run_name = trainer, trainer.args.run_name
        self.name: str | None = None

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
        # Trainer never closes a W&B run, so the runs of a sweep would share it. A W&B run that the user opened stays.
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

    def send(self, plots: Iterable[Path], metrics: Mapping[str, float] | None = None, step: int | None = None) -> None:
        """Sends scores and plots. A report that fails does not stop the run.

        Args:
            plots: PNG files. Files that do not exist are skipped.
            metrics: names, such as "test_accuracy", and values.
            step: the step of the model. None: the last step.
        """
        images = [plot for plot in plots if plot.exists()]
        for callback in self._callbacks:
            try:
                self._send_to(callback, images, dict(metrics or {}), step)
            except Exception as error:
                name, kind = type(callback).__name__, type(error).__name__
                logger.warning("%s: could not send metrics and plots (%s: %s)", name, kind, error)

    def _send_to(self, callback: Any, plots: list[Path], metrics: dict[str, float], step: int | None) -> None:
        trainer, state = self._trainer, copy.copy(self._trainer.state)
        state.global_step = state.global_step if step is None else step
        # Without metrics, this only opens a report that Trainer closed at the end of training.
        callback.on_log(trainer.args, state, trainer.control, model=trainer.model, logs=metrics)
        for plot in plots:
            name = f"plots/{plot.stem}"
            if isinstance(callback, TensorBoardCallback):
                callback.tb_writer.add_image(name, _read_image(plot), state.global_step, dataformats="HWC")
            else:
                library = callback._wandb if isinstance(callback, WandbCallback) else callback._trackio
                library.log({name: library.Image(str(plot)), "train/global_step": state.global_step})
        if not isinstance(callback, WandbCallback):  # the W&B callback would upload the model
            callback.on_train_end(trainer.args, state, trainer.control, model=trainer.model)


def _read_image(file: Path) -> np.ndarray:
    """Returns the pixels of a PNG. *Shape:* (height, width, 3), uint8"""
    from PIL import Image  # comes with matplotlib

    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
