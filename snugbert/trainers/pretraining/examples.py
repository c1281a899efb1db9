"""The examples of a corpus, epoch after epoch: a table of spans on disk, an order, and the word pieces themselves.

Memory does not grow with the corpus: an epoch's examples are made block by block and written to a file, from which
all processes and workers of a machine read them, and their order is a function, not a list.
"""

import functools
import hashlib
import json
import logging
import os
import random
from bisect import bisect_right
from math import isqrt
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import torch
from filelock import FileLock

from snugbert.trainers.pretraining.corpus import Corpus
from snugbert.trainers.pretraining.parallel_map import map_in_order
from snugbert.trainers.pretraining.sentence_pairs import (
    Example,
    full_sentences,
    next_sentence_pairs,
    sentence_order_pairs,
)

Objective = Literal["nsp", "sop", "mlm"]

# A row of the table, see `Example`. 21 bytes; a block holds below 2^32 word pieces, an example below 2^16.
ROW = np.dtype(
    [
        *[("block", "<u4"), ("start", "<u4"), ("length", "<u2")],
        *[("second_block", "<u4"), ("second_start", "<u4"), ("second_length", "<u2")],
        ("label", "u1"),
    ]
)
RECIPE_VERSION = 1  # part of a table's name; to be raised with every change of what a recipe gives
SHORTEST_EXAMPLE, LONGEST_EXAMPLE = 5, 2**16 - 1
FEISTEL_ROUNDS = 6  # four make a strong pseudo-random permutation (Luby & Rackoff, 1988); two more for tiny epochs

logger = logging.getLogger(__name__)


class PretrainingDataset(torch.utils.data.Dataset):
    """Examples to pretrain on, epoch after epoch, each epoch's made and shuffled anew.

    Example `i` is a function of (corpus, settings, seed, i), whatever was asked for before: a run that stops can go
    on from any step, with any number of workers and processes. An epoch has as many examples as epoch 0; the few by
    which another epoch has more are left out of it, those by which it has fewer are taken twice.

    Args:
        corpus: at least two documents for next sentences.
        cls_token_id, sep_token_id: ids of the special tokens.
        epochs_dir: folder for the tables of epochs, 21 bytes an example. Whoever comes first makes a table, the others
            wait for it; one that is there is used. Kept are epoch 0, the current epoch and the one before.
        objective: `"nsp"` for pairs of which half are next sentences and half random, `"sop"` for pairs of which half
            are swapped, `"mlm"` for full sentences without a second loss.
        max_seq_length: tokens of the longest example, special tokens included; 5 to 65,535.
        short_seq_prob: share of the pairs that aim at a random shorter length; 0.1 in the original release. Not for
            `"mlm"`.
        seed: chooses everything that is left to chance.
        num_examples: length of the dataset; one epoch if None.

    Attributes:
        epoch_length: examples of an epoch.
        share_next: share of epoch 0's pairs with label 0: next, or in order. None for `"mlm"`.

    An example has `input_ids` and `token_type_ids` (arrays of the same length), `next_sentence_label` (not with
    `"mlm"`), and `mask_seed`, from which its masks are drawn.

    Raises:
        ValueError: settings that give no example.
        OSError: a table cannot be written.
    """

    def __init__(
        self,
        corpus: Corpus,
        cls_token_id: int,
        sep_token_id: int,
        epochs_dir: str | Path,
        objective: Objective = "nsp",
        max_seq_length: int = 128,
        short_seq_prob: float = 0.1,
        seed: int = 42,
        num_examples: int | None = None,
    ):
        if not SHORTEST_EXAMPLE <= max_seq_length <= LONGEST_EXAMPLE:
            raise ValueError(
                f"`max_seq_length` {max_seq_length} must be at least {SHORTEST_EXAMPLE} and at most {LONGEST_EXAMPLE}."
            )
        if objective == "nsp" and corpus.document_starts[-1] < 2:
            raise ValueError("Random next sentences come from another document, but there are fewer than two.")
        self.corpus = corpus
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id
        self.epochs_dir = Path(epochs_dir)
        self.objective = objective
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self._open_epoch(0)
        self.epoch_length = len(self._table)
        self.share_next = None if objective == "mlm" else 1 - np.count_nonzero(self._table["label"]) / len(self._table)
        self.num_examples = self.epoch_length if num_examples is None else num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.num_examples:
            raise IndexError(index)
        epoch, position = divmod(index, self.epoch_length)
        if epoch != self._epoch:
            self._open_epoch(epoch)
        number = len(self._table)
        row = self._table[shuffled(position % number, number, f"{self.seed} {epoch}")].item()
        block, start, length, second_block, second_start, second_length, label = row
        parts = [self.corpus.blocks[block].tokens[start : start + length]]
        if self.objective == "mlm":
            parts = np.split(parts[0], self._document_starts(block, start, length))
        else:
            parts.append(self.corpus.blocks[second_block].tokens[second_start : second_start + second_length])
        pieces = [np.array([self.cls_token_id])]
        for part in parts:
            pieces += [part, np.array([self.sep_token_id])]
        input_ids = np.concatenate(pieces, dtype=np.int64)
        token_type_ids = np.zeros_like(input_ids)
        example = {"input_ids": input_ids, "token_type_ids": token_type_ids, "mask_seed": (self.seed, epoch, position)}
        if self.objective != "mlm":
            token_type_ids[length + 2 :] = 1
            example["next_sentence_label"] = label
        return example

    def make_ready(self, index: int) -> None:
        """Makes the table of the epoch that example `index` belongs to, on all cores, if no process has.

        A data worker that needs a table makes it, too, but on one core.
        """
        if index // self.epoch_length != self._epoch:
            self._open_epoch(index // self.epoch_length)

    def _document_starts(self, number: int, start: int, length: int) -> list[int]:
        """Where documents begin within a span, counted from its first word piece, which does not count."""
        block = self.corpus.blocks[number]
        document = bisect_right(block.documents, start, key=lambda sentence: block.sentences[sentence])
        starts = []
        while (offset := int(block.sentences[block.documents[document]])) < start + length:
            starts.append(offset - start)
            document += 1
        return starts

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked opens the table itself; pickled, it would be copied.
        return self.__dict__ | {"_epoch": None, "_table": None}

    def _open_epoch(self, epoch: int) -> None:
        """Maps the table of `epoch` into memory, making it first if no other process has."""
        settings = [self.corpus.digest, self.objective, self.max_seq_length, self.short_seq_prob, self.seed]
        name = hashlib.sha256(json.dumps([RECIPE_VERSION, *settings]).encode()).hexdigest()[:16]
        file = self.epochs_dir / f"{name}-{epoch}.examples"
        try:
            self.epochs_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.epochs_dir / f"{name}.lock"):
                if not _is_table(file):
                    self._write_epoch(epoch, file)
                    # Epoch 0 says how long an epoch is; with the one before, other workers may not be done. A table
                    # that is mapped somewhere stays there, and one that is missed is made again.
                    for old in self.epochs_dir.glob(f"{name}-*.examples"):
                        if 0 < int(old.stem.rpartition("-")[2]) < epoch - 1:
                            old.unlink()
                self._table = np.memmap(file, dtype=ROW, mode="r")
        except OSError as error:
            raise OSError(
                f"the examples of epoch {epoch} cannot be kept in {self.epochs_dir} ({error.strerror}); they take "
                f"{ROW.itemsize} bytes each."
            ) from error
        self._epoch = epoch

    def _write_epoch(self, epoch: int, file: Path) -> None:
        """Makes a table under another name and renames it, so that none is ever taken for whole that is not."""
        logger.info("making the examples of epoch %d", epoch)
        unfinished = file.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as table:
                rows_of_block = functools.partial(self._encode_block, epoch)
                for rows in map_in_order(rows_of_block, iter(range(len(self.corpus.blocks))), joblib.cpu_count()):
                    table.write(rows)
                table.flush()
                os.fsync(table.fileno())  # some file systems say only now that they are full
                if not table.tell():
                    raise ValueError("The text gives no example.")
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def _encode_block(self, epoch: int, number: int) -> bytes:
        return np.array(self._make_block_examples(number, epoch), dtype=ROW).tobytes()

    def _make_block_examples(self, number: int, epoch: int) -> list[Example]:
        block, length, share = self.corpus.blocks[number], self.max_seq_length, self.short_seq_prob
        rng = random.Random(f"{self.objective} {length} {share} {self.seed} {epoch} {number}")
        if self.objective == "nsp":
            return next_sentence_pairs(self.corpus, number, length, share, rng)
        if self.objective == "sop":
            return sentence_order_pairs(block, number, length, share, rng)
        return full_sentences(block, number, length)


def _is_table(file: Path) -> bool:
    """Whether the table exists and was not cut off within a row."""
    size = file.stat().st_size if file.exists() else 0
    return size > 0 and size % ROW.itemsize == 0


def shuffled(position: int, number: int, key: str) -> int:
    """Where `position` goes when `number` things are shuffled: a random permutation that needs no memory.

    A Feistel network over pairs of numbers below the root of `number`, walked on while it leads out of range (Black &
    Rogaway, 2002, "Ciphers with arbitrary finite domains": generalized Feistel cipher, cycle-walking).

    Args:
        position: at least 0 and below `number`.
        number: how many things.
        key: chooses the permutation.
    """
    side = isqrt(number - 1) + 1
    while True:
        left, right = divmod(position, side)
        for turn in range(FEISTEL_ROUNDS):
            digest = hashlib.blake2b(f"{key} {turn} {right}".encode(), digest_size=8).digest()
            left, right = right, (left + int.from_bytes(digest, "little")) % side
        position = left * side + right
        if position < number:
            return position
