"""The progress of `snugbert prepare`: a bar on a terminal, occasional lines in a log file."""

import time
from typing import Any, Literal

from tqdm import tqdm

from snugbert.data.text_lines import ReadingLog
from snugbert.trainers.log_lines import Rhythm, estimate_seconds_left, format_duration, print_line


class PreparationProgress:
    """Shows how much of a text is prepared, and the remaining time.

    Text that was prepared earlier counts in the percentage, but not in the speed.

    Args:
        total: size of the whole text. None if it is unknown.
        unit: what `total` counts.
        log: follows the reading of the text that is not prepared yet.
        show: whether to show anything.
    """

    def __init__(self, total: int | None, unit: Literal["bytes", "rows"], log: ReadingLog, show: bool):
        self.log = log
        self._total, self._unit = total, unit
        scale: dict[str, Any] = {"unit": "B", "unit_scale": True} if unit == "bytes" else {"unit": " rows"}
        self._bar = tqdm(desc="preparing", total=total, disable=None if show else True, **scale)
        self._prints_lines = show and self._bar.disable  # tqdm shows no bar without a terminal
        self._skipped = self._done = self._documents = 0
        self._done_before = 0
        self._start, self._rhythm = time.monotonic(), Rhythm()

    def __enter__(self) -> "PreparationProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def skip_part(self, size: int | None) -> None:
        """Skips a part that was prepared earlier. Its text is not read."""
        self._skipped += size or 0
        self._move_to(self.log.position)
        self._done_before += size or 0

    def skip_to(self, position: int) -> None:
        """Skips text up to a `position` of the log. It was read, but is already prepared."""
        done = self._done
        self._move_to(position)
        self._done_before += self._done - done

    def update(self, position: int, documents: int) -> None:
        """Counts prepared documents, up to a `position` of the log."""
        self._documents += documents
        self._move_to(position)
        if self._prints_lines and self._rhythm.is_due(self._percentage):
            print_line(self._describe())

    def _move_to(self, position: int) -> None:
        done = position + self._skipped
        self._bar.update(done - self._done)
        self._done = done

    @property
    def _percentage(self) -> int:
        return 100 * self._done // self._total if self._total else 0

    def _describe(self) -> str:
        documents = f"{self._documents:,} documents"
        if not self._total:
            return f"preparing: {documents}"
        total = format_bytes(self._total) if self._unit == "bytes" else f"{self._total:,} rows"
        left = estimate_seconds_left(self._start, self._done_before, self._done, self._total)
        return f"preparing: {self._percentage} % of {total}, {documents}, {format_duration(left)} left"


def format_bytes(size: int) -> str:
    """Formats a size: 512B, 1.20kB, 3.46GB."""
    return tqdm.format_sizeof(size, "B") if size >= 1000 else f"{size}B"
