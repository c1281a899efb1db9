"""Rows of fixed sizes: how the trainers choose the sizes, and fill the rows.

Random rows have random sizes. Filled up to a multiple of some number of tokens, they have a few. A larger multiple
gives fewer sizes and more padding. `benchmarks/row_sizes.py` measures both.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from snugbert.packed_batches import pad_row

# The standard deviation of a row of n examples is 0.08 to 0.17 times sqrt(n) times the longest example. So 6 sizes
# span at least 7.7 standard deviations.
PRETRAINING_SHARE = 0.22
FINE_TUNING_SHARE = 0.95  # 8 sizes span at least 7.6 standard deviations
# Multiples are rounded up to a multiple of 4. 16-bit products need aligned rows, and a row of hidden states is aligned
# for any number of tokens.
STEP = 4


def choose_pretraining_multiple(batch_size: float, max_seq_length: int) -> int:
    """Chooses `pad_to_multiple_of` of pretraining.

    Most examples are full, so their lengths need not be counted.

    Args:
        batch_size: examples of a row.
        max_seq_length: tokens of the longest example.
    """
    return _round_up(PRETRAINING_SHARE * math.sqrt(batch_size) * max_seq_length)


def choose_fine_tuning_multiple(batch_size: int, lengths: np.ndarray) -> int:
    """Chooses `pad_to_multiple_of` of fine-tuning.

    Args:
        batch_size: examples of a row, drawn at random.
        lengths: tokens of each example. *Shape:* (examples,)
    """
    return _round_up(FINE_TUNING_SHARE * math.sqrt(batch_size) * float(lengths.std()))


def _round_up(tokens: float) -> int:
    return max(1, math.ceil(tokens / STEP)) * STEP


class FillRows:
    """Fills the packed batches of a data collator, see [`pad_row`]. Other batches stay unchanged.

    Args:
        collate: the data collator.
        pad_to_multiple_of, max_sequences: as in [`pad_row`].
    """

    def __init__(self, collate: Callable[[Any], Any], pad_to_multiple_of: int, max_sequences: int | None = None):
        self.collate = collate
        self.pad_to_multiple_of = pad_to_multiple_of
        self.max_sequences = max_sequences

    def __call__(self, features: Any) -> Any:
        """Returns the batch of `collate`, filled unless the collator has filled it."""
        batch = self.collate(features)
        if not isinstance(batch, Mapping) or "cu_seq_lens_q" not in batch or "num_sequences" in batch:
            return batch
        return pad_row(batch, self.pad_to_multiple_of, self.max_sequences)
