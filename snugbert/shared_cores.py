"""Shares the cores with other processes: torch's threads stop spinning while the machine is busy.

The threads of an operation wait for each other at its end. GNU's OpenMP (libgomp), which torch uses on Linux, spins
for milliseconds first, because waking a thread is slow. On a quiet machine this is fastest. If another process uses
one of the cores, a thread spins while the thread that it waits for has no core. Small models run ten thousand
operations per second, and slow down to a third of their speed or less.

libgomp has no function to change this while it runs. But if it has more threads than cores, all threads spin
for a thousandth of the time (`do_spin` in its config/linux/wait.h). So this module adds threads that sleep
while other processes use the cores, and removes them afterwards. torch's threads share the work as before, so the
results stay the same bit for bit. Other OpenMP libraries ignore the added threads.

No thread here is a daemon. If Python ended while a daemon thread was in torch's C++ code, the process would abort. All
threads end when the main thread has ended, and Python waits for them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from functools import cache
from itertools import count

import torch

# If one of these is set, the user has chosen how threads wait.
USER_CHOICES = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
# Threads stop spinning if others use this much of torch's cores. That costs small models about a fifth of their speed.
LEAST_LOAD = 0.2
ERROR = 0.01  # measurement error of the load, per core
SECONDS = 1.0  # between measurements
SECONDS_TO_START = 60.0  # for the added threads. They usually need milliseconds


@cache  # one thread for the process, however many commands it runs
def share_cores() -> None:
    """Starts to watch the load of the machine, until the process ends. Commands call this function when they start.

    Does nothing on a machine with an accelerator, with one thread, or if the environment variable OMP_WAIT_POLICY or
    GOMP_SPINCOUNT is set.
    """
    if sys.platform != "linux" or USER_CHOICES & os.environ.keys() or torch.accelerator.is_available():
        return
    import psutil  # not at the top, because `--help` works without this extra

    cores = os.sched_getaffinity(0)
    # In some containers, /proc/stat numbers the cores differently.
    if torch.get_num_threads() > 1 and max(cores) < len(psutil.cpu_times(percpu=True)):
        loads = (measure_others(cores, SECONDS, threading.main_thread().join) for _ in count())
        threading.Thread(target=follow_loads, args=(loads, len(cores)), name="share_cores").start()


def follow_loads(loads: Iterable[float], num_cores: int) -> None:
    """Stops spinning while other processes need cores that torch uses. Ends with `loads` or after the main thread.

    `loads` yields how many cores other processes use, measured again and again. This process may use `num_cores`.
    """
    start_spinning: Callable[[], None] | None = None
    try:
        for load in loads:
            if not threading.main_thread().is_alive():
                break
            is_busy = load > num_cores - torch.get_num_threads() + max(LEAST_LOAD, ERROR * num_cores)
            if is_busy and start_spinning is None:
                start_spinning = stop_spinning(num_cores)
            elif not is_busy and start_spinning is not None:
                start_spinning()
                start_spinning = None
    finally:
        if start_spinning is not None:
            start_spinning()


def measure_others(cores: Set[int], seconds: float, wait: Callable[[float], None] = time.sleep) -> float:
    """Measures how many of `cores` other processes, including children, use on average while `wait(seconds)` runs."""
    import psutil

    start, own = time.perf_counter(), time.process_time()
    psutil.cpu_percent(percpu=True)  # the next call counts from here
    wait(seconds)
    percents = psutil.cpu_percent(percpu=True)
    own_cores = (time.process_time() - own) / (time.perf_counter() - start)
    return sum(percents[core] for core in cores) / 100 - own_cores


def stop_spinning(num_cores: int) -> Callable[[], None]:
    """Makes libgomp's threads sleep instead of spin. Returns a function that makes them spin again."""
    done = threading.Event()
    # With these teams and torch's own team, libgomp counts more threads than cores.
    num_teams = (num_cores - 1) // (torch.get_num_threads() - 1)
    ready = threading.Barrier(num_teams + 1)

    def keep_team() -> None:
        torch.ones(2**20)  # large enough for all threads: creates a team that lives as long as this thread
        with suppress(threading.BrokenBarrierError):
            ready.wait()
            done.wait()

    try:
        for _ in range(num_teams):
            threading.Thread(target=keep_team).start()
        ready.wait(SECONDS_TO_START)
    except BaseException:  # the system allows no more threads. None of them may wait forever, or Python would not end
        ready.abort()
        done.set()
        raise
    return done.set
