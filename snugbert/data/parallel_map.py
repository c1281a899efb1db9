"""`map` in several processes, with the results in order."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterator[Item], num_workers: int) -> Iterator[Result]:
    """Like `map`, in several processes. A single item, or a call inside a data worker, starts no process.

    Args:
        function: must be picklable where processes are not forked.
        items: read only a little ahead of the results, so they need not fit into memory. Never None.
        num_workers: number of processes.

    Raises:
        BrokenProcessPool: a process was killed.
    """
    first, second = next(items, None), next(items, None)
    if first is None:
        return
    if second is None or num_workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, chain([first], [] if second is None else [second], items))
        return
    # Forking is fast and shares memory, but on macOS system libraries can crash in the child.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(function,)) as executor:
        try:
            pending: deque[Future[Result]] = deque()
            for item in chain([first, second], items):
                pending.append(executor.submit(_call_function, item))
                if len(pending) > 2 * num_workers:  # enough to keep all processes busy
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]


def _start_worker(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes already run in parallel
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    # Without this, workers would wait forever after the main process was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call_function(item: Any) -> Any:
    return _function(item)
