"""The order of a corpus in each epoch: windows of shuffled blocks.

An epoch shuffles the blocks of the corpus and groups them. Each group is a window. A run shuffles the examples of a
window, trains on them, and continues with the next window. So a corpus can be larger than the disk. The order depends
only on the corpus, the seed and `window_blocks`, not on where the corpus is stored.

The first window sets the number of examples per token for all windows. In an epoch, windows with more examples leave
some out, and windows with fewer examples repeat some. In other epochs, windows consist of different blocks.
"""

import functools
import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Two windows and their tables take 2.6 GB. With smaller windows, models learn less (benchmarks/results/windows_*).
WINDOW_BLOCKS = 128


class Window(NamedTuple):
    """A window of an epoch. Windows and epochs count from 0."""

    epoch: int
    number: int


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a corpus. All have about the same number of blocks."""

    tokens: np.ndarray  # number of tokens in each block. Shape: (blocks,)
    window_blocks: int  # maximum blocks of a window
    seed: int

    @property
    def per_epoch(self) -> int:
        """Number of windows in an epoch."""
        return -(-len(self.tokens) // self.window_blocks)

    def list_blocks(self, window: Window) -> list[int]:
        """Returns the numbers of the blocks of a window, in the order of the corpus."""
        return self._shuffle(window.epoch)[window.number]

    def follow(self, window: Window) -> Window:
        """Returns the window that follows `window`."""
        epochs, number = divmod(window.number + 1, self.per_epoch)
        return Window(window.epoch + epochs, number)

    def locate(self, epoch: int, position: int, length: int) -> tuple[Window, int]:
        """Returns the window of a position in an epoch of `length` examples, and the position in the window."""
        starts = self._find_starts(epoch, length)
        number = bisect_right(starts, position) - 1
        return Window(epoch, number), position - starts[number]

    def measure(self, window: Window, length: int) -> int:
        """Returns how many of an epoch's `length` positions are in a window."""
        starts = self._find_starts(window.epoch, length)
        return starts[window.number + 1] - starts[window.number]

    def make_key(self, window: Window) -> str:
        """Returns a key for the order and the labels of a window, which also depend on the seed."""
        return f"{window.epoch}" if self.per_epoch == 1 else f"{window.epoch} {window.number}"

    # At the end of an epoch, windows of two epochs are in use.
    @functools.lru_cache(maxsize=2)  # noqa: B019 (a run has few of these objects)
    def _shuffle(self, epoch: int) -> list[list[int]]:
        order = list(range(len(self.tokens)))
        if self.per_epoch > 1:
            random.Random(f"{self.seed} {epoch} blocks").shuffle(order)
        return [sorted(part.tolist()) for part in np.array_split(order, self.per_epoch)]

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _find_starts(self, epoch: int, length: int) -> list[int]:
        """Returns the first position of each window, and the end. Positions are in proportion to tokens."""
        ends = np.cumsum([int(self.tokens[blocks].sum()) for blocks in self._shuffle(epoch)])
        return [0, *(length * end // int(ends[-1]) for end in ends.tolist())]
