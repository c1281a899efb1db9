"""Predicts in several processes: one for each GPU, or several on a CPU.

The main process reads the rows, sends windows of rows to the processes, and returns the predictions in order. The
number of processes does not change the output if the number of threads of each process stays the same.
"""

import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from snugbert.data.tokenizing import end_with_parent
from snugbert.errors import InputError
from snugbert.prediction.make_predictor import make_predictor
from snugbert.prediction.prediction_arguments import PredictionArguments
from snugbert.prediction.predictor import Prediction, Row, RowPredictor, choose_device
from snugbert.shared_cores import share_cores
from snugbert.trainers.run.log import set_up_logging

PATIENCE = 5  # seconds between two checks that all processes are alive


@contextmanager
def open_predictor(
    folder: Path, args: PredictionArguments, first_rows: Sequence[Mapping[str, Any]], num_processes: int
) -> Iterator[RowPredictor]:
    """Makes a predictor. It runs in this process if `num_processes` is 1, else in processes that end afterwards."""
    if num_processes == 1:
        yield make_predictor(folder, args, first_rows)
        return
    # Reads rows, but predicts none. A model on this device has no weights in memory.
    reader = make_predictor(folder, args, first_rows, torch.device("meta"))
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    arguments = (folder, args, first_rows, num_processes, context.Value("i"))
    with ProcessPoolExecutor(num_processes, context, _start_process, arguments) as pool:
        try:
            yield ParallelPredictor(reader, pool, num_processes)
        finally:
            for process in multiprocessing.active_children():
                if process not in others:
                    process.kill()  # after Ctrl-C, it may need minutes for its window
            # Ends the wait for the rest of a reply that a killed process began to send.
            pool._result_queue._writer.close()  # type: ignore[attr-defined]


class ParallelPredictor(RowPredictor):
    """Predicts in the processes of a pool. `reader` reads rows, and describes truncation."""

    def __init__(self, reader: RowPredictor, pool: ProcessPoolExecutor, num_processes: int):
        self.columns, self.lengths = reader.columns, reader.lengths
        self._reader, self._pool, self._num_processes = reader, pool, num_processes

    def read(self, values: Mapping[str, Any]) -> Any:
        """See [`RowPredictor`]."""
        return self._reader.read(values)

    def answer(self, examples: list[Any]) -> list[Prediction]:
        """See [`RowPredictor`]."""
        return self._receive(self._send(examples))

    def answer_windows(self, windows: Iterable[list[Row]]) -> Iterator[tuple[list[Row], list[Prediction]]]:
        """Yields each window with the predictions of its rows, in order. Reads two windows per process ahead."""
        pending: deque[tuple[list[Row], Future[Any]]] = deque()
        for window in windows:
            pending.append((window, self._send([example for _, example in window])))
            if len(pending) == 2 * self._num_processes:
                first, future = pending.popleft()
                yield first, self._receive(future)
        for window, future in pending:
            yield window, self._receive(future)

    def describe_truncation(self) -> str | None:
        """See [`RowPredictor`]."""
        return self._reader.describe_truncation()

    def _send(self, examples: list[Any]) -> "Future[Any]":
        try:
            with _block_interrupts():  # the pool may start a process
                return self._pool.submit(_answer, examples)
        except BrokenProcessPool as error:
            raise _explain_end() from error

    def _receive(self, future: "Future[Any]") -> list[Prediction]:
        while not wait([future], PATIENCE).done:
            # Without this check, the rest of a reply that a killed process began to send would be awaited forever.
            if any(process.exitcode is not None for process in self._pool._processes.values()):
                raise _explain_end()
        try:
            predictions, lengths = future.result()
        except BrokenProcessPool as error:
            raise _explain_end() from error
        self.lengths += lengths
        return predictions


def _explain_end() -> InputError:
    return InputError(
        "--num_processes: a process ended. If there is no error above, memory probably ran out. To continue, run the "
        "same command again with fewer processes."
    )


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Processes that start in the block do not get Ctrl-C, which the main process handles."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # starting the tracker later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the processes -------------------------------------------------------------------------------------------


def _start_process(
    folder: Path,
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
    num_processes: int,
    started: Any,
) -> None:
    """Sets up a process. `started` counts the processes, so that each gets its own number."""
    global _load
    end_with_parent()
    tqdm.set_lock(threading.RLock())  # the default is a semaphore, which outlives a killed process
    with started.get_lock():
        index = started.value
        started.value += 1
    if choose_device(args.use_cpu).type != "cpu":
        torch.accelerator.set_device_index(index % torch.accelerator.device_count())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // num_processes))
    set_up_process(logging.INFO if index == 0 else logging.ERROR)  # otherwise each process prints the same lines
    # The model is loaded with the first examples, because the pool hides errors of this function.
    _load = cache(partial(_make, folder, args, first_rows))


_load: Any = None  # the function that returns the predictor of this process


def _make(*arguments: Any) -> RowPredictor:
    predictor = make_predictor(*arguments)
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
