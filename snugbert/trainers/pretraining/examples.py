"""The examples of a corpus in each epoch: a table of spans on disk, an order, and the tokens.

Memory does not grow with the corpus. The examples of an epoch are made block by block and written to a file, which all
processes and data workers of a machine map into memory. Their order is a function, not a list.
"""

import functools
import hashlib
import json
import logging
import os
import random
from bisect import bisect_right
from collections.abc import Callable
from math import isqrt
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError
from snugbert.trainers.corpus.cache import EPOCHS_FOLDER
from snugbert.trainers.corpus.corpus import Corpus
from snugbert.trainers.corpus.digests import hash_tokenizer
from snugbert.trainers.corpus.parallel_map import map_in_order
from snugbert.trainers.pretraining.objectives import Objective
from snugbert.trainers.pretraining.sentence_pairs import (
    Example,
    full_sentences,
    next_sentence_pairs,
    sentence_order_pairs,
)

# A row of the table: an `Example` in 21 bytes. A block has fewer than 2^32 tokens, an example fewer than 2^16.
ROW = np.dtype(
    [
        *[("block", "<u4"), ("start", "<u4"), ("length", "<u2")],
        *[("second_block", "<u4"), ("second_start", "<u4"), ("second_length", "<u2")],
        ("label", "u1"),
    ]
)
RECIPE_VERSION = 1  # part of a table's name; increase it with every change to the examples that a recipe makes
SHORTEST_EXAMPLE, LONGEST_EXAMPLE = 5, 2**16 - 1
FEISTEL_ROUNDS = 6  # four make a strong pseudo-random permutation (Luby & Rackoff, 1988); two more for tiny epochs

logger = logging.getLogger(__name__)


class PretrainingDataset(torch.utils.data.Dataset):
    """Pretraining examples of a prepared corpus.

    The dataset itself is the first epoch. [`PretrainingTrainer`] takes the later epochs from [`get_example`]: each has
    new pairs and a new order. An example is a function of (corpus, settings, seed, epoch, position). So a run can
    resume at any step, with any number of data workers and processes. All epochs have the length of the first: a
    longer one is cut, and a shorter one repeats some examples. A `Subset` or `ConcatDataset` of it repeats the pairs
    and masks of the first epoch in every epoch.

        corpus = snugbert.open_corpus("prepared", tokenizer)
        dataset = snugbert.PretrainingDataset(corpus, tokenizer, max_seq_length=128)

    Args:
        corpus: a prepared corpus. Next sentence prediction needs at least two documents.
        tokenizer: the tokenizer of the corpus. It gives the ids of [CLS] and [SEP].
        max_seq_length: tokens of the longest example, special tokens included, 5 to 65,535.
        objective: `"nsp"` makes pairs, half of them next sentences and half random. `"sop"` makes pairs, half of them
            swapped. `"mlm"` makes full sentences without a second task.
        short_seq_prob: share of the pairs with a random shorter target length, 0.1 in the original release. `"mlm"`
            ignores it.
        seed: determines all random choices.
        epochs_dir: folder for the tables of examples, 21 bytes per example. Default: `epochs` in the corpus folder.
            Processes share the tables. The tables of the first, the previous and the current epoch are kept.

    Attributes:
        next_share: share of pairs with label 0 in the first epoch (next or in order). None for `"mlm"`.

    Each example has `input_ids` and `token_type_ids` (arrays of equal length), `next_sentence_label` (except for
    `"mlm"`), and `mask_seed`, which determines its masks.

    Raises:
        InputError: the corpus was prepared with a different tokenizer.
        ValueError: the settings yield no example, or `epochs_dir` is missing for a corpus without a folder.
        OSError: a table cannot be written.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        objective: Objective = "nsp",
        short_seq_prob: float = 0.1,
        seed: int = 42,
        epochs_dir: str | Path | None = None,
    ):
        if not SHORTEST_EXAMPLE <= max_seq_length <= LONGEST_EXAMPLE:
            raise ValueError(
                f"`max_seq_length` {max_seq_length} must be between {SHORTEST_EXAMPLE} and {LONGEST_EXAMPLE}."
            )
        if objective == "nsp" and corpus.num_documents < 2:
            raise ValueError(
                "Next sentence prediction needs at least two documents. Add documents, or choose another objective."
            )
        if "tokenizer" in corpus.settings and corpus.settings["tokenizer"] != hash_tokenizer(tokenizer):
            raise InputError(
                "The corpus was prepared with a different tokenizer. Use that one, or prepare the text again."
            )
        if epochs_dir is None:
            if corpus.folder is None:
                raise ValueError("`epochs_dir` is missing. The corpus has no folder to store examples in.")
            epochs_dir = corpus.folder / EPOCHS_FOLDER
        self.corpus = corpus
        self.cls_token_id = tokenizer.cls_token_id
        self.sep_token_id = tokenizer.sep_token_id
        self.epochs_dir = Path(epochs_dir)
        self.objective = objective
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self._open_epoch(0)
        self._length = len(self._table)
        self.next_share = None if objective == "mlm" else 1 - np.count_nonzero(self._table["label"]) / self._length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self.get_example(0, index)

    def get_example(self, epoch: int, position: int) -> dict[str, Any]:
        """Returns example `position` of `epoch`. Both count from 0. Each epoch has `len(self)` positions."""
        self.prepare_epoch(epoch)
        size = len(self._table)
        row = self._table[shuffle_position(position % size, size, f"{self.seed} {epoch}")].item()
        block, start, length, second_block, second_start, second_length, label = row
        spans = [self.corpus.blocks[block].tokens[start : start + length]]
        if self.objective == "mlm":
            spans = np.split(spans[0], self._find_document_starts(block, start, length))
        else:
            spans.append(self.corpus.blocks[second_block].tokens[second_start : second_start + second_length])
        parts = [np.array([self.cls_token_id])]
        for span in spans:
            parts += [span, np.array([self.sep_token_id])]
        input_ids = np.concatenate(parts, dtype=np.int64)
        token_type_ids = np.zeros_like(input_ids)
        example = {"input_ids": input_ids, "token_type_ids": token_type_ids, "mask_seed": (self.seed, epoch, position)}
        if self.objective != "mlm":
            token_type_ids[length + 2 :] = 1
            example["next_sentence_label"] = label
        return example

    def prepare_epoch(self, epoch: int) -> None:
        """Opens the table of `epoch`. If no process has made it yet, makes it on all cores (in a data worker: one)."""
        if epoch != self._epoch:
            self._open_epoch(epoch)

    def _find_document_starts(self, block_index: int, start: int, length: int) -> list[int]:
        """The offsets in a span at which documents begin, except 0."""
        block = self.corpus.blocks[block_index]
        document = bisect_right(block.documents, start, key=lambda sentence: block.sentences[sentence])
        starts = []
        while (offset := int(block.sentences[block.documents[document]])) < start + length:
            starts.append(offset - start)
            document += 1
        return starts

    def __getstate__(self) -> dict[str, Any]:
        # A data worker that is not forked opens the table itself, because pickling would copy it.
        return self.__dict__ | {"_epoch": None, "_table": None}

    def _open_epoch(self, epoch: int) -> None:
        """Maps the table of `epoch` into memory. If no other process has made it yet, makes it first."""
        settings = [self.corpus.digest, self.objective, self.max_seq_length, self.short_seq_prob, self.seed]
        name = hashlib.sha256(json.dumps([RECIPE_VERSION, *settings]).encode()).hexdigest()[:16]
        file = self.epochs_dir / f"{name}-{epoch}.examples"
        try:
            self.epochs_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(self.epochs_dir / f"{name}.lock"):
                if not _is_table(file):
                    self._write_epoch(epoch, file)
                    # Epoch 0 gives the length of all epochs. Other workers may still need the epoch before this one.
                    # A table that a process has mapped stays readable, and a missing one is made again.
                    for old in self.epochs_dir.glob(f"{name}-*.examples"):
                        if 0 < int(old.stem.rpartition("-")[2]) < epoch - 1:
                            old.unlink()
                self._table = np.memmap(file, dtype=ROW, mode="r")
        except OSError as error:
            raise OSError(
                f"{self.epochs_dir}: cannot store the examples of epoch {epoch} ({error.strerror}). Each takes "
                f"{ROW.itemsize} bytes. Free some space, or choose another folder."
            ) from error
        self._epoch = epoch

    def _write_epoch(self, epoch: int, file: Path) -> None:
        """Writes a table under another name and renames it, so that an unfinished table is never read."""
        logger.info("making the examples of epoch %d", epoch)
        unfinished = file.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as table:
                encode_block: Callable[[int], bytes] = functools.partial(self._encode_block, epoch)
                for rows in map_in_order(encode_block, iter(range(len(self.corpus.blocks))), joblib.cpu_count()):
                    table.write(rows)
                table.flush()
                os.fsync(table.fileno())  # some file systems report only now that they are full
                if not table.tell():
                    raise ValueError("The text is too short to make an example.")
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)

    def _encode_block(self, epoch: int, block_index: int) -> bytes:
        return np.array(self._make_block_examples(block_index, epoch), dtype=ROW).tobytes()

    def _make_block_examples(self, block_index: int, epoch: int) -> list[Example]:
        block, length, short_share = self.corpus.blocks[block_index], self.max_seq_length, self.short_seq_prob
        rng = random.Random(f"{self.objective} {length} {short_share} {self.seed} {epoch} {block_index}")
        if self.objective == "nsp":
            return next_sentence_pairs(self.corpus, block_index, length, short_share, rng)
        if self.objective == "sop":
            return sentence_order_pairs(block, block_index, length, short_share, rng)
        return full_sentences(block, block_index, length)


def _is_table(file: Path) -> bool:
    """Whether the table exists and consists of whole rows."""
    size = file.stat().st_size if file.exists() else 0
    return size > 0 and size % ROW.itemsize == 0


def shuffle_position(position: int, size: int, key: str) -> int:
    """Maps `position` to its place in a random permutation of `size` items. The permutation takes no memory.

    A Feistel network on pairs of integers below the root of `size`, repeated while the result is out of range (Black &
    Rogaway, 2002, "Ciphers with arbitrary finite domains": generalized Feistel cipher, cycle-walking).

    Args:
        position: 0 to `size` - 1.
        size: number of items.
        key: determines the permutation.
    """
    side = isqrt(size - 1) + 1
    while True:
        left, right = divmod(position, side)
        for turn in range(FEISTEL_ROUNDS):
            digest = hashlib.blake2b(f"{key} {turn} {right}".encode(), digest_size=8).digest()
            left, right = right, (left + int.from_bytes(digest, "little")) % side
        position = left * side + right
        if position < size:
            return position
