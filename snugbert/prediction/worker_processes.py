"""Predicts in several processes: one for each GPU, or several on a CPU.

The main process reads the rows, sends windows of rows to the processes, receives the predictions and writes them. The
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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
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

SECONDS_TO_EXIT = 10  # after a process has closed its connection


@contextmanager
def open_predictor(
    folder: Path, args: PredictionArguments, first_rows: Sequence[Mapping[str, Any]], num_processes: int
) -> Iterator[RowPredictor]:
    """Makes a predictor. It runs in this process if `num_processes` is 1, else in processes that end with the block.

    Args:
        folder, args, first_rows: see [`make_predictor`].
        num_processes: number of processes.

    Raises:
        InputError: see [`make_predictor`].
    """
    if num_processes == 1:
        yield make_predictor(folder, args, first_rows)
        return
    # Reads rows, but predicts none. A model on this device has no weights in memory.
    reader = make_predictor(folder, args, first_rows, torch.device("meta"))
    workers = [Worker(folder, args, first_rows, index, num_processes) for index in range(num_processes)]
    predictor = ParallelPredictor(reader, workers)
    try:
        yield predictor
    finally:
        predictor.close()


class ParallelPredictor(RowPredictor):
    """Predicts in several processes.

    Args:
        reader: the predictor that reads rows, and describes truncation.
        workers: the processes.
    """

    def __init__(self, reader: RowPredictor, workers: "Sequence[Worker]"):
        self.columns, self.lengths = reader.columns, reader.lengths
        self._reader, self._workers = reader, workers
        # Each thread waits for one process.
        self._threads = ThreadPoolExecutor(len(workers))
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in workers:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._failure: InputError | None = None  # the first failure

    def read(self, values: Mapping[str, Any]) -> Any:
        """Returns the example of a row."""
        return self._reader.read(values)

    def answer(self, examples: list[Any]) -> list[Prediction]:
        """Returns the prediction for each example, from one of the processes.

        Raises:
            InputError: a process ended, or the model cannot be used.
        """
        worker = self._idle.get()
        try:
            predictions, lengths = worker.ask(examples)
        except InputError as error:
            with self._lock:
                if self._failure is None:
                    self._failure = error
                    self._kill()  # other processes may need minutes for their windows
            raise self._failure from None
        finally:
            self._idle.put(worker)
        with self._lock:
            self.lengths += lengths
        return predictions

    def answer_windows(self, windows: Iterable[list[Row]]) -> Iterator[tuple[list[Row], list[Prediction]]]:
        """Yields each window with the predictions of its rows, in order. Reads two windows per process ahead."""
        pending: deque[tuple[list[Row], Future[list[Prediction]]]] = deque()
        for window in windows:
            pending.append((window, self._threads.submit(self.answer, [example for _, example in window])))
            if len(pending) == 2 * len(self._workers):
                first, predictions = pending.popleft()
                yield first, predictions.result()
        for window, predictions in pending:
            yield window, predictions.result()

    def describe_truncation(self) -> str | None:
        """See [`RowPredictor`]."""
        return self._reader.describe_truncation()

    def close(self) -> None:
        """Ends the processes at once."""
        self._kill()
        self._threads.shutdown(cancel_futures=True)

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()


class Worker:
    """A process that predicts.

    Args:
        folder, args, first_rows: see [`make_predictor`].
        index: the number of the process, from 0.
        num_processes: number of processes.
    """

    def __init__(self, *arguments: Any):
        # A forked process could not use a GPU.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, *arguments), daemon=True)
        with _block_interrupts():
            self.process.start()
        other.close()  # so that reading fails when the process ends

    def ask(self, examples: list[Any]) -> tuple[list[Prediction], np.ndarray]:
        """Returns the predictions for the examples, and how much they add to `lengths`.

        Raises:
            InputError: the process has ended, or the model cannot be used.
        """
        with suppress(OSError):  # the process has ended, but may have sent an error
            self._connection.send(examples)
        try:
            reply = self._connection.recv()
        except (EOFError, OSError):
            raise InputError(self._describe_end()) from None
        if isinstance(reply, InputError):
            raise reply
        return reply

    def _describe_end(self) -> str:
        self.process.join(SECONDS_TO_EXIT)
        code = self.process.exitcode or 0
        if code == -9:
            end = "was killed by signal 9, probably because memory ran out"
            advice = "To continue, run the same command again with fewer processes."
        elif code < 0:
            end, advice = f"was killed by signal {-code}", "To continue, run the same command again."
        else:
            end, advice = f"failed with exit status {code}", "Its error is above."
        return f"--num_processes: a process {end}. {advice}"


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


def _serve(
    connection: Connection,
    folder: Path,
    args: PredictionArguments,
    first_rows: Sequence[Mapping[str, Any]],
    index: int,
    num_processes: int,
) -> None:
    """Predicts lists of examples until the connection is closed. Sends an [`InputError`] instead of raising it."""
    end_with_parent()
    tqdm.set_lock(threading.RLock())  # the default is a semaphore, which outlives a killed process
    if choose_device(args.use_cpu).type != "cpu":
        torch.accelerator.set_device_index(index % torch.accelerator.device_count())
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // num_processes))
    set_up_process(logging.INFO if index == 0 else logging.ERROR)  # otherwise each process prints the same lines
    try:
        predictor = make_predictor(folder, args, first_rows)
        gc.freeze()
        for examples in _receive(connection):
            before = predictor.lengths.copy()
            _send(connection, (predictor.answer(examples), predictor.lengths - before))
    except InputError as error:
        _send(connection, error)


def _receive(connection: Connection) -> Iterator[list[Any]]:
    with suppress(EOFError, OSError):  # the main process has ended
        while True:
            yield connection.recv()


def _send(connection: Connection, reply: Any) -> None:
    with suppress(OSError):  # the main process has ended
        connection.send(reply)


def set_up_process(level: int = logging.INFO) -> None:
    """Sets up a process that predicts: which messages it logs (from `level` on), and how its threads wait."""
    set_up_logging(level)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # for reading weights
    share_cores()
