"""Rows of fixed sizes: how the trainers choose the sizes, and fill the rows.

Random rows have random sizes. Filled up to a multiple of some number of tokens, they have a few. A larger multiple
gives fewer sizes and more padding. `benchmarks/row_sizes.py` measures both.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from snugbert.data.packed_batches import pad_row

# Multiples in standard deviations of the tokens of a row. Rows of 1,000 random batches differ by 5 to 7 deviations. So
# they have at most 6 sizes in pretraining, and 8 in fine-tuning, where padding is a larger share.
PRETRAINING_DEVIATIONS = 1.45
FINE_TUNING_DEVIATIONS = 0.95
# Multiples are rounded up to a multiple of 4. 16-bit products are fast for any number of tokens, because each hidden
# state is aligned.
STEP = 4
SAMPLE = 1000  # examples of pretraining whose tokens are counted, in a tenth of a second


def choose_pretraining_multiple(batch_size: float, dataset: Any) -> int:
    """Chooses `pad_to_multiple_of` of pretraining.

    The longest row is about a multiple of it. Many rows are nearly full, so they need little padding.

    Args:
        batch_size: examples of a row.
        dataset: a [`PretrainingDataset`], or another dataset with `max_seq_length` whose examples are in random order.
            The first ones are a sample.
    """
    lengths = [len(dataset[row]["input_ids"]) for row in range(min(len(dataset), SAMPLE))]
    longest = batch_size * dataset.max_seq_length
    multiple = max(STEP, PRETRAINING_DEVIATIONS * math.sqrt(batch_size) * float(np.std(lengths)))
    return _round_up(longest / max(1, longest // multiple))


def choose_fine_tuning_multiple(batch_size: int, lengths: np.ndarray) -> int:
    """Chooses `pad_to_multiple_of` of fine-tuning.

    Args:
        batch_size: examples of a row, drawn at random.
        lengths: tokens of each example. *Shape:* (examples,)
    """
    return _round_up(FINE_TUNING_DEVIATIONS * math.sqrt(batch_size) * float(lengths.std()))


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
