"""The order of a corpus in each epoch: windows of shuffled blocks.

An epoch shuffles the blocks of the corpus and groups them. The blocks of one group are a window. Its examples are
shuffled, and then the next window follows. So a run reads one window at a time, and a corpus can be larger than the
disk. The order depends on the corpus, the seed and `window_blocks` alone, wherever the corpus is stored.

The first window gives the number of examples per token of all windows. A window with more examples leaves some out in
this epoch, and a window with fewer repeats some. In other epochs, the windows have other blocks.
"""

import functools
import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Two windows and their tables take 2.6 GB. Smaller windows learn less per token (benchmarks/results/windows_*).
WINDOW_BLOCKS = 128


class Window(NamedTuple):
    """A window of an epoch. Windows and epochs count from 0."""

    epoch: int
    number: int


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a corpus. All have about the same number of blocks."""

    tokens: np.ndarray  # in each block. Shape: (blocks,)
    window_blocks: int  # at most
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
        """Returns the number of positions of a window, if an epoch has `length` positions."""
        starts = self._find_starts(window.epoch, length)
        return starts[window.number + 1] - starts[window.number]

    def make_key(self, window: Window) -> str:
        """Returns what the order and the labels of a window depend on, apart from the seed."""
        return f"{window.epoch}" if self.per_epoch == 1 else f"{window.epoch} {window.number}"

    # Between two epochs, windows of both are in use.
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
