"""Predicts in several processes: one for each GPU, or several on a CPU.

The main process reads the rows, sends windows of rows to the processes, and returns the predictions in order. The
number of processes does not change the output if the number of threads of each process stays the same.
"""

import gc
import logging
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from snugbert.data.tokenizing import end_with_parent
from snugbert.errors import InputError
from snugbert.prediction.predictor import Prediction, Row, RowPredictor, Window, choose_device
from snugbert.shared_cores import share_cores
from snugbert.trainers.run.log import set_up_logging


def answer_in_processes(
    reader: RowPredictor,
    make: Callable[[], RowPredictor],
    num_processes: int,
    use_cpu: bool,
    windows: Iterator[list[Row]],
) -> Iterator[Window]:
    """Yields each window with its predictions, in order. Reads two windows per process ahead.

    `make` makes the predictor of a process. `reader` has read the rows, and gets the lengths that processes count.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    arguments = (make, num_processes, use_cpu, context.Value("i"))
    pending: deque[tuple[list[Row], Future[Any]]] = deque()

    def receive() -> Window:
        window, future = pending.popleft()
        predictions, lengths = future.result()
        reader.lengths += lengths
        return window, predictions

    with ProcessPoolExecutor(num_processes, context, _start_process, arguments) as pool:
        try:
            for window in windows:
                pending.append((window, pool.submit(_answer, [example for _, example in window])))
                if len(pending) == 2 * num_processes:
                    yield receive()
            while pending:
                yield receive()
        except BrokenProcessPool as error:
            raise InputError(
                "--num_processes: a process ended. If there is no error above, memory probably ran out. To continue, "
                "run the same command again with fewer processes."
            ) from error
        finally:
            for process in multiprocessing.active_children():
                process.kill()  # after Ctrl-C, it may need minutes for its window


def _start_process(make: Callable[[], RowPredictor], num_processes: int, use_cpu: bool, started: Any) -> None:
    """Sets up a process. `started` counts the processes, so that each gets its own number."""
    global _load
    end_with_parent()
    tqdm.set_lock(threading.RLock())  # the default is a semaphore, which outlives a killed process
    with started.get_lock():
        index = started.value
        started.value += 1
    if choose_device(use_cpu).type != "cpu":
        torch.accelerator.set_device_index(index % torch.accelerator.device_count())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // num_processes))
    set_up_process(logging.INFO if index == 0 else logging.ERROR)  # otherwise each process prints the same lines
    # The model is loaded with the first examples, because the pool hides errors of this function.
    _load = cache(partial(_make_and_freeze, make))


_load: Any = None  # the function that returns the predictor of this process


def _make_and_freeze(make: Callable[[], RowPredictor]) -> RowPredictor:
    predictor = make()
    gc.freeze()  # so that the garbage collector skips the modules and the model
    return predictor


def _answer(examples: list[Any]) -> tuple[list[Prediction], np.ndarray]:
    """Returns the predictions, and how much the examples add to `lengths`."""
    predictor = _load()
    before = predictor.lengths.copy()
    return predictor.answer(examples), predictor.lengths - before


def set_up_process(level: int = logging.INFO) -> None:
    """Sets up a process that predicts: which messages it logs (from `level` on), and how its threads wait."""
    set_up_logging(level)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # for reading weights
    share_cores()
