"""How much of the text an epoch shows."""

import logging
from collections.abc import Sequence

import numpy as np

from snugbert.data.corpus import Corpus
from snugbert.trainers.pretraining.batches import Phase, find_epoch, find_phase
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.sentence_pairs import LABELED_ROWS

logger = logging.getLogger(__name__)


def log_coverage(phases: Sequence[Phase], step: int) -> None:
    """Logs how much of the text the epoch of `step` shows, and how many sentences were too long for an example."""
    if step >= sum(phase.steps for phase in phases):
        return  # the run is finished
    dataset = find_phase(phases, step).dataset
    if not isinstance(dataset, PretrainingDataset):
        return
    epoch, limit = find_epoch(phases, step), dataset.sentence_limit
    longest = num_split = 0
    for block in dataset.corpus.blocks:
        lengths = np.diff(block.sentences)
        longest, num_split = max(longest, int(lengths.max())), num_split + int((lengths > limit).sum())
    share = measure_coverage(dataset.corpus, dataset.open_table(epoch), dataset.find_unused(epoch))
    logger.info(
        "epoch %d: the examples contain %.2f %% of the tokens. Longest sentence: %s tokens. Split sentences (longer "
        "than %d tokens): %s",
        epoch,
        100 * share,
        f"{longest:,}",
        limit,
        f"{num_split:,}",
    )


def measure_coverage(corpus: Corpus, table: np.ndarray, unused: Sequence[int] = ()) -> float:
    """Returns the share of a corpus's tokens that are in at least one example.

    Args:
        corpus: the corpus.
        table: the examples of an epoch, in the order of the text. *Shape:* (examples,), [`ROW`]
        unused: rows that do not count.
    """
    block_starts = np.cumsum([0, *(len(block.tokens) for block in corpus.blocks)])
    covered = 0
    # Rows that are labeled together exchange segments only with each other.
    for numbers in np.array_split(np.arange(len(table)), -(-len(table) // LABELED_ROWS)):
        rows = table[np.setdiff1d(numbers, unused, assume_unique=True)]
        starts = np.concatenate(
            [
                block_starts[rows["block"]] + rows["start"],
                block_starts[rows["second_block"]] + rows["second_start"],
            ]
        )
        ends = starts + np.concatenate([rows["length"], rows["second_length"]])
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])  # text before this is already counted
        covered += np.maximum(ends - np.maximum(starts, before), 0).sum()
    return float(covered / corpus.num_tokens)
