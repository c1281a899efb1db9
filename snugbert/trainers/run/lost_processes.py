"""Detects lost processes of a run. A process is lost if it was killed, or if its machine does not answer.

A collective operation of torch fails if a process ends, or is more than `--ddp_timeout` seconds late. But a process
may work alone for longer, for example while it prepares text or writes a checkpoint. [`wait_for_all`] has no limit
while all processes are alive. To show that it is alive, each process increments a counter in the store of the process
group. A process whose counter has not changed for `--ddp_timeout` seconds is lost.
"""

import atexit
import functools
import os
import platform
import re
import threading
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from snugbert.errors import ProcessLost

SIGN_SECONDS = 5.0  # between two signs of life
# Seconds between two requests of a process to the store: `PAUSE` times the number of processes, but at most
# `LONGEST_PAUSE`. So up to 100 processes together send 200 requests a second.
PAUSE, LONGEST_PAUSE = 0.005, 0.5
# Phrases in torch's errors about a lost process. Other errors, such as a wrong interface, keep their traceback.
LOST = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed out|timeout|failed to recv|ncclRemoteError|remote process exited",
    re.IGNORECASE,
)
# gloo raises a RuntimeError, mostly with its source file: "[/src/gloo/transport/tcp/pair.cc:538] ...". Without a file:
# "Application timeout caused pair closure".
PLACE = re.compile(r"^\[\S+:\d+\]\s*")
ADVICE = "Start all processes again with --resume_from_checkpoint true."


class SignsOfLife:
    """Shows the other processes that this process is alive, and waits for them.

    Args:
        store: the store of the process group. Its timeout is `--ddp_timeout`.
    """

    def __init__(self, store: Any):
        self.store, self.limit = store, store.timeout.total_seconds()
        self.interval = min(SIGN_SECONDS, self.limit / 4)
        self.rank, self.ranks = dist.get_rank(), range(dist.get_world_size())
        self.meetings = 0
        # A store serves one thread at a time.
        thread = threading.Thread(target=self._count_up, args=(store.clone(),), daemon=True)
        thread.start()
        # Python aborts if it ends while the thread runs torch's code. The wait has a limit: the store may not answer.
        atexit.register(thread.join, SIGN_SECONDS)

    def _count_up(self, store: Any) -> None:
        main_thread = threading.main_thread()
        with suppress(dist.DistError):  # the store is gone
            while main_thread.is_alive():
                store.add(f"signs/{self.rank}", 1)
                main_thread.join(self.interval)

    def meet(self) -> None:
        """Waits until every process has called this method as often as this process.

        Raises:
            ProcessLost: a process or the store does not respond.
            DistError: the store is gone.
        """
        self.meetings += 1
        meeting = Meeting(self)
        meeting.start()
        while meeting.is_alive():
            meeting.join(LONGEST_PAUSE)
            if time.monotonic() - meeting.answered > self.limit:
                raise ProcessLost(
                    f"the machine of the first process has not answered for {self.limit:.0f} seconds "
                    f"(--ddp_timeout). {ADVICE}"
                )
        if meeting.error is not None:
            raise meeting.error


class Meeting(threading.Thread):
    """Waits for all processes, in its own thread, because a request to the store has no time limit.

    Attributes:
        answered: when the store last answered.
        error: why the wait failed.
    """

    def __init__(self, signs: SignsOfLife):
        super().__init__(daemon=True)
        self.signs, self.place = signs, f"meeting/{signs.meetings}"
        self.answered = time.monotonic()
        self.error: RuntimeError | None = None

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._wait()
        except (ProcessLost, dist.DistError) as error:
            self.error = error

    def _wait(self) -> None:
        # With many processes, each process checks the counters less often.
        interval = max(self.signs.interval, len(self.signs.ranks) / 20)
        pause = min(PAUSE * len(self.signs.ranks), LONGEST_PAUSE)
        next_look = self.answered + interval
        seen: dict[int, tuple[int, float]] = {}  # the count of each process, and when it changed
        self._add(self.place, 1)
        while self._add(self.place, 0) < len(self.signs.ranks):
            if self.answered > next_look:
                self._look(seen)
                next_look = self.answered + interval
            time.sleep(pause)

    def _look(self, seen: dict[int, tuple[int, float]]) -> None:
        for rank in self.signs.ranks:
            count = self._add(f"signs/{rank}", 0)
            before, since = seen.setdefault(rank, (count, self.answered))
            if count != before:
                seen[rank] = count, self.answered
            elif self.answered - since > self.signs.limit:
                limit = f"{self.signs.limit:.0f} seconds (--ddp_timeout)"
                raise ProcessLost(f"process {rank} has not responded for {limit}. {ADVICE}")

    def _add(self, key: str, number: int) -> int:
        total = self.signs.store.add(key, number)
        self.answered = time.monotonic()
        return total


def show_signs_of_life() -> None:
    """Lets the other processes of the run see that this process is alive, from now on."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        _signs_in(_get_default_store())


def wait_for_all() -> None:
    """Waits until all processes are here, however long they take. Every process must call this.

    Every process must have called [`show_signs_of_life`] before its long work. accelerate's `wait_for_everyone` fails
    after `--ddp_timeout`. It also asks torch for a GPU per process, even if the processes run on the CPU.

    Raises:
        ProcessLost: a process has not responded for `--ddp_timeout` seconds.
        DistError: the store of the process group is gone.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        _signs_in(_get_default_store()).meet()


@functools.lru_cache(maxsize=1)
def _signs_in(store: Any) -> SignsOfLife:
    return SignsOfLife(store)


def explain_lost_process(error: RuntimeError) -> str | None:
    """Returns a sentence about an error of torch.distributed that another process caused. None for other errors."""
    if isinstance(error, ProcessLost):
        return str(error)
    text = str(error)
    is_distributed = isinstance(error, dist.DistError) or "/gloo/" in text or "pair closure" in text
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not is_distributed or not LOST.search(text):
        return None
    line = next(line for line in text.splitlines() if LOST.search(line))
    reason = PLACE.sub("", line).partition(". ")[0].rstrip(".")
    rank = os.environ.get("RANK", "?")
    return (
        f"process {rank} on {platform.node()} lost another process ({reason}). That process ended, or its machine "
        f"does not answer. Its log may show why. {ADVICE}"
    )
