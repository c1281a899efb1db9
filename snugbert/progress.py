"""Shows the progress of a command: a bar on a terminal, or a line per minute in a log file."""

import sys
from collections import Counter
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 60  # in a log file


def is_terminal() -> bool:
    """Whether standard error is a terminal. In a log file, progress bars would be noise."""
    return sys.stderr is not None and sys.stderr.isatty()


class Progress(tqdm):
    """Shows how much of some work is done, and the remaining time. Use it in a `with` block.

    `name` is what the command is doing, such as "preparing". `unit` is what `total` counts, such as "rows". Sizes in
    "bytes" are shown as kB, MB and so on. The speed does not include what was `done` earlier.
    """

    n: int  # how much is done

    def __init__(self, name: str, total: int | None, unit: str, done: int = 0, show: bool = True):
        self.counts = Counter[str]()  # other counts to show, such as {"documents": 5}
        self._is_bar = is_terminal()
        scale: dict[str, Any] = {"unit": "B", "unit_scale": True} if unit == "bytes" else {"unit": f" {unit}"}
        if not self._is_bar:
            # With `miniters`, tqdm looks at the clock only, and its monitor adds no lines.
            scale |= {"mininterval": SECONDS_BETWEEN_LINES, "delay": SECONDS_BETWEEN_LINES, "miniters": 1}
        super().__init__(desc=name, total=total, initial=done, disable=not show, dynamic_ncols=self._is_bar, **scale)

    def display(self, *args: Any, **kwargs: Any) -> None:
        """Called by tqdm when it is time to show the progress."""
        if self._is_bar:
            super().display(*args, **kwargs)
        else:
            print_line(str(self))

    def close(self) -> None:
        """Removes or completes the bar. A log file needs no more lines."""
        self.disable |= not self._is_bar
        super().close()

    def skip_to(self, done: int) -> None:
        """Skips work that was done earlier."""
        if not self.disable:
            self.initial += done - self.n
            self.n = self.last_print_n = done

    def move_to(self, done: int) -> None:
        """Shows that `done` units of the work are complete."""
        if self.counts:
            self.set_postfix(self.counts, refresh=False)
        self.update(done - self.n)


def print_line(line: str) -> None:
    """Prints a line on standard error, above progress bars."""
    if is_terminal():
        tqdm.write(line, file=sys.stderr)
    else:
        print(line, file=sys.stderr, flush=True)


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
