"""map in processes, in order."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from typing import Any


def map_in_order(function: Callable[[Any], Any], items: Iterator[Any], num_workers: int) -> Iterator[Any]:
    """`map`, in as many processes as pay: for a single item, or within a data worker, in none but this."""
    first, second = next(items, None), next(items, None)
    if first is None:
        return
    if second is None or num_workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, chain([first], [] if second is None else [second], items))
        return
    # Forking is fast and shares memory, but on macOS system libraries can crash in the child.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(num_workers, context, initializer=_start, initargs=(function,)) as executor:
        try:
            pending: deque = deque()
            for item in chain([first, second], items):
                pending.append(executor.submit(_work, item))
                if len(pending) > 2 * num_workers:  # enough to keep all busy; more would only fill memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)


_function: Callable[[Any], Any]


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are parallel already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the main process's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # When the main process is killed, its children would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
