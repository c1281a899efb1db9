"""Checks before the first step: how much of the text an epoch shows, and whether processes have the same examples."""

import logging
import zlib
from collections.abc import Sequence

import numpy as np
from accelerate.utils import gather_object

from snugbert.errors import InputError
from snugbert.trainers.corpus.corpus import Corpus
from snugbert.trainers.pretraining.batches import Phase, find_epoch, find_phase
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.sentence_pairs import LABELED_ROWS

logger = logging.getLogger(__name__)


def check_processes(phases: Sequence[Phase]) -> None:
    """Checks that all processes have the same examples. Machines without shared disks make their own tables.

    Raises:
        InputError: they differ.
    """
    examples = [(len(phase.dataset), _checksum(phase.dataset)) for phase in phases]
    everywhere = gather_object([examples])
    for rank, others in enumerate(everywhere):
        if others != everywhere[0]:
            raise InputError(
                f"processes 0 and {rank} have different training examples "
                f"({sum(size for size, _ in everywhere[0]):,} and {sum(size for size, _ in others):,}). Use the same "
                "text and the same version of SnugBERT on all machines."
            )


def _checksum(dataset: object) -> int:
    return zlib.crc32(dataset.open_table(0).data) if isinstance(dataset, PretrainingDataset) else 0


def log_coverage(phases: Sequence[Phase], step: int) -> None:
    """Logs how much of the text the epoch of `step` shows, and how many sentences were too long for an example."""
    if step >= sum(phase.steps for phase in phases):
        return  # the run is finished
    dataset = find_phase(phases, step).dataset
    if not isinstance(dataset, PretrainingDataset):
        return
    epoch = find_epoch(phases, step)
    lengths = [np.diff(block.sentences) for block in dataset.corpus.blocks]
    logger.info(
        "epoch %d: the examples contain %.2f %% of the tokens. Longest sentence: %s tokens. Split sentences (longer "
        "than %d tokens): %s",
        epoch,
        100 * measure_coverage(dataset.corpus, dataset.open_table(epoch)),
        f"{max(length.max() for length in lengths):,}",
        dataset.longest_sentence,
        f"{sum(np.count_nonzero(length > dataset.longest_sentence) for length in lengths):,}",
    )


def measure_coverage(corpus: Corpus, table: np.ndarray) -> float:
    """Returns the share of a corpus's tokens that are in at least one example.

    Args:
        corpus: the corpus.
        table: the examples of an epoch, in the order of the text. *Shape:* (examples,), [`ROW`]
    """
    block_starts = np.cumsum([0, *(len(block.tokens) for block in corpus.blocks)])
    covered = 0
    # Rows that are labeled together exchange segments only with each other.
    for rows in np.array_split(table, -(-len(table) // LABELED_ROWS)):
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
