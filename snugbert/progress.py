"""Shows the progress of a command: a bar on a terminal, or occasional lines with the remaining time in a log file."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")

# Seconds between two lines of a log file. After the shortest pause, another line is written if another 10 % is done.
# After the longest pause, it is written in any case.
SHORTEST_PAUSE, LONGEST_PAUSE = 60, 600
FEWEST_TIMED = 10  # steps, rows or bytes, before the remaining time is estimated
ITEMS_AT_ONCE = 1000  # items that [`Progress.follow`] counts at once


class Progress:
    """Shows how much of some work is done, and the remaining time. Use it in a `with` block.

    Args:
        name: what the command is doing, for example "preparing".
        total: size of the whole work. None if it is unknown.
        unit: what `total` counts, for example "rows". Sizes in "bytes" are shown as kB, MB and so on.
        done: how much was done earlier. The percentage includes this amount, but the speed does not.
        show: whether to show anything.

    Attributes:
        done: how much of the work is done.
        counts: other counts in the lines, such as {"documents": 5}.
    """

    def __init__(self, name: str, total: int | None, unit: str, done: int = 0, show: bool = True):
        self.done, self.counts = done, Counter[str]()
        self._name, self._total, self._unit = name, total, unit
        self._done_before, self._start = done, time.monotonic()
        scale: dict[str, Any] = {"unit": "B", "unit_scale": True} if unit == "bytes" else {"unit": f" {unit}"}
        self._bar = tqdm(desc=name, total=total, initial=done, disable=None if show else True, **scale)
        self._prints_lines = show and self._bar.disable  # tqdm shows no bar without a terminal
        self._rhythm = Rhythm(self._percentage)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def skip_to(self, done: int) -> None:
        """Skips work that was done earlier."""
        self._done_before += done - self.done
        self._bar.update(done - self.done)
        self.done = done

    def move_to(self, done: int) -> None:
        """Shows that `done` of the work is done."""
        self._bar.update(done - self.done)
        self.done = done
        if self._prints_lines and self._rhythm.is_due(self._percentage):
            print_line(self._describe())

    def follow(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items, and counts them."""
        number = 0
        for number, item in enumerate(items, start=1):
            yield item
            if number % ITEMS_AT_ONCE == 0:
                self.move_to(number)
        self.move_to(number)

    @property
    def _percentage(self) -> int:
        return 100 * self.done // self._total if self._total else 0

    def _describe(self) -> str:
        counts = [f"{number:,} {noun}" for noun, number in self.counts.items()]
        if not self._total:
            return f"{self._name}: {', '.join(counts) or self._format(self.done)}"
        left = describe_time_left(self._start, self._done_before, self.done, self._total)
        share = f"{self._percentage} % of {self._format(self._total)}"
        return f"{self._name}: {', '.join([share, *counts])}{left}"

    def _format(self, amount: int) -> str:
        return format_bytes(amount) if self._unit == "bytes" else f"{amount:,} {self._unit}"


class Rhythm:
    """Decides when a log file gets another line with the remaining time.

    Args:
        percentage: the percentage of the work that is done at the start.
    """

    def __init__(self, percentage: int = 0):
        self._last_time, self._last_percentage = time.monotonic(), percentage

    def is_due(self, percentage: int) -> bool:
        """Whether it is time for a line, now that `percentage` of the work is done."""
        pause = time.monotonic() - self._last_time
        is_due = pause >= LONGEST_PAUSE or (pause >= SHORTEST_PAUSE and percentage >= self._last_percentage + 10)
        if is_due:
            self._last_time, self._last_percentage = time.monotonic(), percentage
        return is_due


def print_line(line: str) -> None:
    """Prints a line on standard error, above progress bars."""
    tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def describe_time_left(start: float, done_before: int, done: int, total: int) -> str:
    """Returns the time until all work is done, such as ", 45 s left". Empty before [`FEWEST_TIMED`] of it is done.

    Args:
        start: when this work started, from `time.monotonic`.
        done_before: how much was done before the start. The speed does not include this amount.
        done: how much is done now.
        total: the whole work.
    """
    timed = done - done_before
    if timed < FEWEST_TIMED:
        return ""
    return f", {format_duration((time.monotonic() - start) * (total - done) / timed)} left"


def format_duration(seconds: float) -> str:
    """Returns a duration for people: "45 s", "12 min 5 s" or "3 h 7 min"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_bytes(size: int) -> str:
    """Formats a size: 512B, 1.20kB, 3.46GB."""
    return tqdm.format_sizeof(size, "B") if size >= 1000 else f"{size}B"
