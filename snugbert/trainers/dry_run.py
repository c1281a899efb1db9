"""`--dry_run`: takes a few real steps of a run in memory, and prints the time and memory that the run will need.

The steps use the run's own examples. Only caches are written, and the run will use them.
"""

import copy
import functools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from torch.utils.data import Subset
from transformers import EarlyStoppingCallback, TrainerCallback

from snugbert.errors import RunStopped, format_count
from snugbert.files import step_of
from snugbert.progress import format_bytes, format_duration
from snugbert.trainers.run.folder import check_disk_space
from snugbert.trainers.run.log import LogLines
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.trainer import RunTrainer

# The first steps allocate memory. On a GPU, they also compile the model and record CUDA graphs. They are not timed.
WARMUP_ON_CPU, WARMUP_ON_GPU = 2, 8
TIMED_STEPS = 24
LONGEST_SECONDS = 30.0  # of timed steps
FEWEST_STEPS = 2  # timed, even if they take longer
EVALUATED_BATCHES = 8  # timed in each evaluation set


def run_dry(
    parts: Mapping[str, Callable[..., RunTrainer]],
    args: Any,
    checkpoint: str | None,
    evaluation_sets: Sequence[Any],
    runs: int = 1,
    budget: float = math.inf,
) -> float:
    """Takes a few steps of each part of a run, prints the plan, and returns the expected seconds of all `runs`.

    Every process must call this. The time to start and to read the data is not included. Each of the `parts`
    makes a trainer for its share of the steps, in order. All `evaluation_sets` are evaluated at the end, and the
    trainer's own set is also evaluated during training. After `budget` seconds, no further run starts.
    """
    done = 0 if checkpoint is None else step_of(Path(checkpoint))
    rows, training, evaluation, evaluations = {}, 0.0, 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, make_trainer in parts.items():
            trainer = make_trainer(args=as_temporary(args, f"{folder}/{name}"))
            if trainer.train_dataset is None:
                continue
            check_disk_space(args, trainer.model.parameters())
            trainer.compare_settings(checkpoint)
            strategy = trainer.args.eval_strategy
            seconds, state = _time_steps(trainer), trainer.state
            left, done = max(state.max_steps - done, 0), max(done - state.max_steps, 0)
            training += left * seconds
            if strategy != "no":
                by_steps = strategy == "steps"
                evaluations += math.ceil(left / state.eval_steps) if by_steps else state.num_train_epochs
            rest = f", {left:,} left after {checkpoint}" if checkpoint else ""
            rows[name] = f"{format_count(state.max_steps, 'step')}{rest}, {seconds:.3g} s each"
        for dataset in evaluation_sets:
            times = max(evaluations, 1) if dataset is trainer.eval_dataset else 1
            evaluation += times * _time_evaluation(trainer, dataset)
    rows["memory"] = _describe_peak(args.device)
    total = training + evaluation
    rows["time"] = (
        f"about {format_duration(total)}: {format_duration(training)} for training, {format_duration(evaluation)} for "
        "evaluation"
    )
    if runs != 1:
        total = min(runs * total, budget + total)
        number = runs if budget == math.inf else f"at most {runs}"
        rows["runs"] = f"{number}, about {format_duration(total)} if all are as long as this one"
    if PartialState().is_main_process:
        print(f"\ndry run: all checks passed. Nothing was trained, and {args.output_dir} is unchanged.\n")
        for name, text in rows.items():
            print(f"{name:<12}{text}", flush=True)
    return total


def as_temporary(args: Any, folder: str) -> Any:
    """Returns a copy of the training arguments that writes into a temporary `folder` and reports nowhere."""
    args = copy.copy(args)
    args.output_dir, args.report_to, args.push_to_hub, args.resume_from_checkpoint = folder, [], False, None
    return args


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Yields a temporary folder that all processes share. Every process must call this."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        (folder,) = broadcast_object_list([own])
        yield Path(folder)
        wait_for_all()


class Stopwatch(TrainerCallback):
    """Times the steps after the warmup, and ends training after `TIMED_STEPS`, or after `LONGEST_SECONDS`."""

    def __init__(self, warmup: int):
        self.warmup = warmup  # number of steps that are not timed
        self.seconds: list[float] = []  # of each timed step

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Called by Trainer before the first step."""
        self._last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each step."""
        if args.device.type != "cpu":
            torch.accelerator.synchronize(args.device)
        last, self._last = self._last, time.perf_counter()
        if state.global_step > min(self.warmup, state.max_steps - 1):
            self.seconds.append(self._last - last)
        is_done = len(self.seconds) >= TIMED_STEPS
        is_done |= len(self.seconds) >= FEWEST_STEPS and sum(self.seconds) > LONGEST_SECONDS
        (control.should_training_stop,) = broadcast_object_list([is_done])  # processes have different clocks


def _time_steps(trainer: RunTrainer) -> float:
    """Trains for a few steps. Returns the mean seconds per step."""
    for kind in ("logging", "eval", "save"):
        setattr(trainer.args, f"{kind}_strategy", "no")
    watch = Stopwatch(WARMUP_ON_CPU if trainer.args.device.type == "cpu" else WARMUP_ON_GPU)
    trainer.add_callback(watch)
    trainer.stop_signal.writes_checkpoint = False
    for callback in (LogLines, EarlyStoppingCallback):
        trainer.remove_callback(callback)
    trainer.train()
    if trainer.interrupted:
        wait_for_all()
        raise RunStopped(trainer.interrupted)
    return mean(watch.seconds)


def _time_evaluation(trainer: RunTrainer, dataset: Any) -> float:
    """Returns the seconds of an evaluation, estimated from a sample."""
    number = min(len(dataset), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
    places = np.linspace(0, len(dataset) - 1, number).round().astype(int).tolist()
    select = getattr(dataset, "select", functools.partial(Subset, dataset))
    begin = time.perf_counter()
    trainer.predict(select(places))
    return (time.perf_counter() - begin) * len(dataset) / number


def _describe_peak(device: torch.device) -> str:
    """Describes the most memory that a process used so far. Every process must call this."""
    ram = psutil.Process().memory_info().rss
    gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    ram, gpu = (max(column) for column in zip(*gather_object([(ram, gpu)]), strict=True))
    on_gpu = f"{format_bytes(gpu)} on the GPU and " if gpu else ""
    each = " in each process" if PartialState().num_processes > 1 else ""
    return f"{on_gpu}at least {format_bytes(ram)} of RAM{each}"
