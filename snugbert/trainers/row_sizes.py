"""Rows of fixed sizes: how the trainers choose the sizes, and fill the rows.

Random rows have random sizes. Filled up to a multiple of some number of tokens, they have a few. A larger multiple
gives fewer sizes and more padding. `benchmarks/row_sizes.py` measures both.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from snugbert.packed_batches import pad_row

# Rows of pretraining: the standard deviation of a row of n examples is 0.08 to 0.17 times sqrt(n) times the longest
# example, and 8 sizes must span most rows.
PRETRAINING_SHARE = 0.2
# 8 sizes then span 6.8 standard deviations: 99.9 % of normally distributed rows.
FINE_TUNING_SHARE = 0.85
FINE_TUNING_STEP = 8  # 16-bit products are fast if their sizes are multiples of 8


def choose_pretraining_multiple(batch_size: float, max_seq_length: int) -> int:
    """Chooses the number of tokens to fill rows up to a multiple of, in pretraining.

    Most examples are full, so their lengths need not be counted. A power of two divides the longest row.

    Args:
        batch_size: examples of a row.
        max_seq_length: tokens of the longest example.
    """
    return 2 ** max(0, round(math.log2(PRETRAINING_SHARE * math.sqrt(batch_size) * max_seq_length)))


def choose_fine_tuning_multiple(batch_size: int, lengths: np.ndarray) -> int:
    """Chooses the number of tokens to fill rows up to a multiple of, in fine-tuning.

    Args:
        batch_size: examples of a row, drawn at random.
        lengths: tokens of each example. *Shape:* (examples,)
    """
    deviation = math.sqrt(batch_size) * float(lengths.std())
    return max(1, math.ceil(FINE_TUNING_SHARE * deviation / FINE_TUNING_STEP)) * FINE_TUNING_STEP


class FillRows:
    """Fills the packed batches of a data collator, see [`pad_row`]. Other batches stay unchanged.

    Args:
        collate: the data collator.
        pad_to_multiple_of: number of tokens.
    """

    def __init__(self, collate: Callable[[Any], Any], pad_to_multiple_of: int):
        self.collate = collate
        self.pad_to_multiple_of = pad_to_multiple_of
        self.tokenizer = getattr(collate, "tokenizer", None)  # Trainer saves it

    def __call__(self, features: Any) -> Any:
        """Returns the batch of `collate`, filled unless the collator has filled it."""
        batch = self.collate(features)
        if not isinstance(batch, Mapping) or "cu_seq_lens_q" not in batch or "num_sequences" in batch:
            return batch
        return pad_row(batch, self.pad_to_multiple_of)
