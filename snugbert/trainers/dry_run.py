"""`--dry_run`: takes a few steps of a run, and prints what the whole run will do, need and take.

These are real steps of the run, on its own examples. Only caches are written, and the run will use them.
"""

import copy
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import EarlyStoppingCallback, TrainerCallback

from snugbert.errors import RunStopped, format_count
from snugbert.progress import format_bytes, format_duration
from snugbert.trainers.run.log import LogLines, count_warmup
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.trainer import RunTrainer

TIMED_STEPS = 24
LONGEST_SECONDS = 30.0  # of timed steps
FEWEST_STEPS = 2  # timed, even if they take longer
EVALUATED_BATCHES = 8  # timed, of each evaluation set

_printed = 0.0  # when the last plan of this process was printed; 0: never


class Stopwatch(TrainerCallback):
    """Times the steps after the warmup, and ends training after `TIMED_STEPS`, or after `LONGEST_SECONDS`."""

    def __init__(self, warmup: int):
        self.warmup = warmup  # number of steps that are not timed
        self.seconds: list[float] = []  # of each timed step
        self._last = 0.0

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


def as_dry_run(args: Any, folder: str) -> Any:
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


def time_steps(trainer: RunTrainer) -> Stopwatch:
    """Trains for a few steps, and times them. A run of one step is timed with its warmup. Every process calls this."""
    for kind in ("logging", "eval", "save"):
        setattr(trainer.args, f"{kind}_strategy", "no")
    watch = Stopwatch(count_warmup(trainer.args))
    trainer.add_callback(watch)
    trainer.stop_signal.writes_checkpoint = False
    for callback in (LogLines, EarlyStoppingCallback):
        trainer.remove_callback(callback)
    trainer.train()
    if trainer.interrupted:
        wait_for_all()
        raise RunStopped(trainer.interrupted)
    trainer.remove_callback(watch)
    return watch


def describe_steps(args: Any, steps: int) -> dict[str, str]:
    """Describes learning rate and memory of a run, after a few of its steps. Every process must call this."""
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    warmup = format_count(args.get_warmup_steps(steps), "warmup step")
    return {
        "learning rate": f"{args.learning_rate:.1e}, {schedule}, {warmup}",
        "memory": describe_peak(args.device),
    }


def as_steps(interval: float, steps: int) -> int:
    """Returns an interval of the arguments in steps. An interval below 1 is a share of all `steps`."""
    return math.ceil(interval * steps) if interval < 1 else int(interval)


def describe_peak(device: torch.device) -> str:
    """Describes the most memory that a process used so far. Every process must call this."""
    ram = psutil.Process().memory_info().rss
    gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    peaks = gather_object([(ram, gpu)])
    ram, gpu = (max(column) for column in zip(*peaks, strict=True))
    each = f" in each of {len(peaks)} processes" if len(peaks) > 1 else ""
    on_gpu = f"{format_bytes(gpu)} on the GPU and " if gpu else ""
    return f"{on_gpu}at least {format_bytes(ram)} of RAM{each} (measured)"


def seconds_since_start() -> float:
    """Returns the seconds since this process started, or since its last plan: the time before a run's first step."""
    return time.time() - (_printed or psutil.Process().create_time())


def describe_seconds(start: float, training: float, evaluation: float, watches: Sequence[Stopwatch]) -> str:
    """Describes the time of a run: the total, and its parts."""
    timed = sum(len(watch.seconds) for watch in watches)
    parts = [f"{format_duration(start)} to start"]
    if timed:
        parts.append(f"{format_duration(training)} for training (estimated from {timed} steps)")
    parts += [f"{format_duration(evaluation)} for evaluation"] if evaluation else []
    return f"about {format_duration(start + training + evaluation)}: {', '.join(parts)}"


def print_plan(output_dir: str, rows: Mapping[str, str]) -> None:
    """Prints the plan of a run in the main process, a line for each of its parts."""
    global _printed
    _printed = time.time()
    if not PartialState().is_main_process:
        return
    print(f"\ndry run: all checks passed. Nothing was trained, and {output_dir} is unchanged.\n")
    for name, text in rows.items():
        print(f"{name:<17}{text}", flush=True)
