"""The examples of a corpus in each epoch: tables of spans on disk, an order, and the tokens.

Memory does not grow with the corpus. The examples of a window (see `block_windows.py`) are made block by block and
written to a file, which all processes and data workers of a machine map into memory. Their order is a function, not a
list.
"""

import functools
import hashlib
import random
import uuid
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.corpus_blocks import Blocks, CachedBlocks
from snugbert.data.tokenizing import hash_tokenizer, map_in_order
from snugbert.errors import InputError
from snugbert.files import hash_json, lock_file, replacing
from snugbert.trainers.pretraining.block_windows import WINDOW_BLOCKS, Window, Windows
from snugbert.trainers.pretraining.pretraining_arguments import Objective
from snugbert.trainers.pretraining.sentence_pairs import (
    EXAMPLE,
    LABELED_ROWS,
    classify_tokens,
    cut_pairs,
    exchange_second_segments,
    full_sentences,
    swap_segments,
)

RECIPE_VERSION = 4  # part of a table's name. Increase it with every change to the examples that a recipe makes
SHORTEST_EXAMPLE, LONGEST_EXAMPLE = 5, 2**16 - 1
OPEN_WINDOWS = 2  # a batch may have examples of two windows
FEISTEL_ROUNDS = 6  # four make a strong pseudo-random permutation (Luby & Rackoff, 1988); two more for tiny epochs


class PretrainingDataset(torch.utils.data.Dataset):
    """Pretraining examples of a prepared corpus.

    The dataset itself is the first epoch. [`PretrainingTrainer`] takes the later epochs from [`get_example`]: each has
    new pairs and a new order. An example is a function of (corpus, settings, seed, epoch, position). So a run can
    resume at any step, with any number of data workers and processes. All epochs have the length of the first: a
    longer epoch is cut, and a shorter epoch repeats some examples. A `Subset` or `ConcatDataset` of the dataset
    repeats the pairs and masks of the first epoch in every epoch.

    [`prepare`] downloads the blocks of a corpus in a bucket. The process of the trainer calls it before its data
    workers need the blocks.

        corpus = snugbert.open_corpus("prepared", tokenizer)
        dataset = snugbert.PretrainingDataset(corpus, tokenizer, max_seq_length=128)

    Args:
        corpus: a prepared corpus. Next sentence prediction needs at least two documents.
        tokenizer: the tokenizer of the corpus. It defines the ids of [CLS] and [SEP].
        max_seq_length: tokens of the longest example, special tokens included, 5 to 65,535.
        objective: `"nsp"` makes pairs, half of them next sentences and half random. `"sop"` makes pairs, half of them
            swapped. `"mlm"` makes full sentences without a second task.
        short_seq_prob: share of the pairs with a random shorter target length, 0.1 in the original release. `"mlm"`
            ignores it.
        seed: determines all random choices.
        epochs_dir: folder for the tables of examples, 21 bytes per example. Default: `epochs` in the corpus folder.
            Processes share the tables. The tables of the first, the previous and the current window are kept.
        window_blocks: blocks in a window, see `block_windows.py`. A block has about 4.2 million tokens.

    Attributes:
        vocab_size: number of tokens in the vocabulary.
        special_ids: ids of the special tokens, which are never predicted. *Shape:* (special tokens,)
        windows: the order of the blocks in each epoch.
        next_share: share of pairs with label 0 (next sentence, or in order), in the first window. None for `"mlm"`.

    Each example has `input_ids` and `token_type_ids` (arrays of equal length), `next_sentence_label` (except for
    `"mlm"`), and `mask_seed`, which determines its masks. If the corpus stores words, `continues_word` is true for
    tokens that continue the word of the token before them.
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
        window_blocks: int = WINDOW_BLOCKS,
    ):
        if not SHORTEST_EXAMPLE <= max_seq_length <= LONGEST_EXAMPLE:
            raise ValueError(
                f"`max_seq_length` {max_seq_length} must be between {SHORTEST_EXAMPLE} and {LONGEST_EXAMPLE}."
            )
        if objective == "nsp" and corpus.num_documents < 2:
            raise InputError(
                "Next sentence prediction needs at least two documents. Write a blank line between documents, or set "
                "--objective mlm."
            )
        if corpus.settings.get("tokenizer") not in (None, hash_tokenizer(tokenizer)):
            raise InputError("The corpus has a different tokenizer. Use that tokenizer, or prepare the corpus again.")
        if epochs_dir is None:
            if not isinstance(corpus.folder, Path):
                raise ValueError("`epochs_dir` is missing. The corpus has no local folder to store examples in.")
            epochs_dir = corpus.folder / "epochs"
        self.corpus = corpus
        self.cls_token_id = tokenizer.cls_token_id
        self.sep_token_id = tokenizer.sep_token_id
        self.vocab_size = len(tokenizer)
        self.special_ids = np.flatnonzero(np.isin(np.arange(self.vocab_size), tokenizer.all_special_ids))
        self.epochs_dir = Path(epochs_dir)
        self.objective = objective
        self.max_seq_length = max_seq_length
        self.short_seq_prob = short_seq_prob
        self.seed = seed
        self.windows = Windows(corpus.counts.tokens, window_blocks, seed)
        self._token_kinds = classify_tokens(tokenizer)
        self._rng_key = f"{objective} {max_seq_length} {short_seq_prob} {seed}"
        self._tables: dict[Window, np.ndarray] = {}
        self._read_ahead: Window | None = None
        first = Window(0, 0)
        self._reserve_cache(first)
        table, tokens = self.open_table(first), corpus.counts.tokens
        self._length = len(table) * int(tokens.sum()) // int(tokens[self.windows.list_blocks(first)].sum())
        self.next_share = None if objective == "mlm" else 1 - np.count_nonzero(table["label"]) / len(table)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return self.get_example(0, index)

    def get_example(self, epoch: int, position: int) -> dict[str, Any]:
        """Returns example `position` of `epoch`. Both count from 0. Each epoch has `len(self)` positions."""
        spans, label = self._find_spans(epoch, position)
        no_word = np.zeros(1, dtype=bool)  # special tokens continue no word
        parts, continuations = [np.array([self.cls_token_id])], [no_word]
        for number, start, length in spans:
            block = self.corpus.blocks[number]
            parts += [block.tokens[start : start + length], np.array([self.sep_token_id])]
            if self.corpus.has_words:
                continuations += [block.read_continuations(start, length), no_word]
        input_ids = np.concatenate(parts, dtype=np.int64)
        token_type_ids = np.zeros_like(input_ids)
        example = {"input_ids": input_ids, "token_type_ids": token_type_ids, "mask_seed": (self.seed, epoch, position)}
        if self.corpus.has_words:
            example["continues_word"] = np.concatenate(continuations)
        if self.objective != "mlm":
            token_type_ids[spans[0][-1] + 2 :] = 1
            example["next_sentence_label"] = label
        return example

    def _find_spans(self, epoch: int, position: int) -> tuple[list[tuple[int, int, int]], int]:
        """Returns the spans of an example, each as block, start and length, and its label."""
        window, place = self.windows.locate(epoch, position, self._length)
        table, key = self.open_table(window), f"{self.seed} {self.windows.make_key(window)}"
        row = table[shuffle_position(place % len(table), len(table), key)].item()
        block, start, length, second_block, second_start, second_length, label = row
        if self.objective != "mlm":
            return [(block, start, length), (second_block, second_start, second_length)], label
        bounds = [0, *self._find_document_starts(block, start, length), length]
        return [(block, start + begin, end - begin) for begin, end in pairwise(bounds)], label

    def open_table(self, window: Window) -> np.ndarray:
        """Maps the examples of a window into memory, in the order of the text. *Shape:* (examples,), [`EXAMPLE`]

        The result is read-only. If the table does not exist, makes it on all cores (in a data worker, on one core).
        """
        if window in self._tables:
            return self._tables[window]
        for old in list(self._tables)[: 1 - OPEN_WINDOWS]:
            del self._tables[old]
        settings = [self.corpus.digest, self.objective, self.max_seq_length, self.short_seq_prob, self.seed]
        if self.windows.per_epoch > 1:
            settings.append(self.windows.window_blocks)
        name = hash_json([RECIPE_VERSION, *settings])[:16]
        file = self.epochs_dir / f"{name}-{window.epoch}-{window.number}.examples"
        self._map_blocks(window)
        self.epochs_dir.mkdir(parents=True, exist_ok=True)
        with lock_file(self.epochs_dir / f"{name}.lock"):
            if not file.exists():
                self._write_table(window, file)
                self._remove_old_tables(name, window)
            self._tables[window] = np.memmap(file, dtype=EXAMPLE, mode="r")
        return self._tables[window]

    def _find_document_starts(self, block_index: int, start: int, length: int) -> list[int]:
        """Returns the offsets in a span at which documents begin, except 0."""
        block = self.corpus.blocks[block_index]
        document = bisect_right(block.documents, start, key=lambda sentence: block.sentences[sentence])
        starts = []
        while (offset := int(block.sentences[block.documents[document]])) < start + length:
            starts.append(offset - start)
            document += 1
        return starts

    def __getstate__(self) -> dict[str, Any]:
        # A data worker that is not forked opens the tables itself, because pickling would copy them.
        return self.__dict__ | {"_tables": {}}

    # --- a corpus in a bucket -----------------------------------------------------------------------------------

    def prepare(self, first: int, last: int, prefetched: int, end: int) -> None:
        """Prepares what data workers need to read the examples: tables, and the blocks of a corpus in a bucket.

        Removes the blocks of earlier windows from the cache, and begins to download the next window. `first`, `last`
        and `end`, the number of examples of the run, count over all epochs. Data workers may not yet have read the
        `prefetched` examples before `first`.
        """
        window, _ = self.windows.locate(*divmod(first, self._length), self._length)
        current, place = self.windows.locate(*divmod(last, self._length), self._length)
        while window < current:
            self.open_table(window)
            window = self.windows.follow(window)
        self.open_table(current)
        blocks = self.corpus.blocks
        if not isinstance(blocks, CachedBlocks) or blocks.pinned == len(blocks) or self._read_ahead == current:
            return
        batch_size = last - first + 1
        if place - batch_size >= prefetched:  # the data workers have read the window before the current one
            following: list[int] = []
            if last + self.windows.measure(current, self._length) - place < end:
                following = self.windows.list_blocks(self.windows.follow(current))
            blocks.keep([*self.windows.list_blocks(current), *following])
            blocks.ensure_later(following)
            self._read_ahead = current

    def end_download(self) -> None:
        """Ends the download that [`prepare`] began. Call it when no more examples are read."""
        if isinstance(self.corpus.blocks, CachedBlocks):
            self.corpus.blocks.end_download()

    def _reserve_cache(self, first: Window) -> None:
        """Divides the cache of a corpus in a bucket between the windows in use and pinned blocks."""
        blocks = self.corpus.blocks
        if isinstance(blocks, CachedBlocks):
            # Most examples are full. Each document may add a shorter example.
            rows = 1.25 * self.corpus.counts.tokens / self.max_seq_length + self.corpus.counts.documents
            # The blocks of two windows, and the tables of the first, the previous and the current window.
            sizes = np.sort(2 * blocks.sizes + 3 * EXAMPLE.itemsize * rows)
            blocks.reserve(round(sizes[-len(self.windows.list_blocks(first)) :].sum()))

    # --- tables -------------------------------------------------------------------------------------------------

    def _map_blocks(self, window: Window) -> None:
        """Maps the blocks of a window, so that they stay readable after a cache removes them. Unmaps older windows.

        The process that opened the corpus downloads missing blocks, and verifies all blocks.
        """
        blocks, numbers = self.corpus.blocks, self.windows.list_blocks(window)
        if not isinstance(blocks, Blocks):
            return
        if isinstance(blocks, CachedBlocks) and blocks.is_own:
            blocks.ensure(numbers)
        blocks.retain([number for each in (*self._tables, window) for number in self.windows.list_blocks(each)])
        for number in numbers:
            blocks[number]

    def _remove_old_tables(self, name: str, window: Window) -> None:
        """Removes tables that no process needs in `window`. Without a working lock, several may do so at once."""
        # The first window gives the length of all epochs. Other workers may still need the window before `window`. A
        # table that a process has mapped stays readable, and a missing table is made again.
        for old in self.epochs_dir.glob(f"{name}-*-*.examples"):
            place = Window(*map(int, old.stem.split("-")[1:]))
            if place != Window(0, 0) and place < window and self.windows.follow(place) != window:
                old.unlink(missing_ok=True)

    def _write_table(self, window: Window, file: Path) -> None:
        """Writes a table under a unique name and renames it, so that an unfinished table is never read."""
        # Machines may write the same table at once, because network file systems may ignore the lock.
        unfinished = file.with_suffix(f".{uuid.uuid4().hex}.unfinished")
        with replacing(file, unfinished):
            with unfinished.open("wb") as stream:
                encode_block: Callable[[int], bytes] = functools.partial(self._encode_block, window.epoch)
                blocks = self.windows.list_blocks(window)
                # No more processes than blocks, because training waits until all processes have started.
                for rows in map_in_order(encode_block, iter(blocks), min(len(blocks), joblib.cpu_count())):
                    stream.write(rows)
                if not stream.tell():
                    raise ValueError("The text is too short to make an example.")
            table = np.memmap(unfinished, dtype=EXAMPLE, mode="r+")
            self._label_rows(table, window)
            table.flush()

    def _encode_block(self, epoch: int, block_index: int) -> bytes:
        block, length = self.corpus.blocks[block_index], self.max_seq_length
        if self.objective == "mlm":
            return full_sentences(block, block_index, self._token_kinds, length).tobytes()
        rng = random.Random(f"{self._rng_key} {epoch} {block_index}")
        share = self.short_seq_prob
        return cut_pairs(block, block_index, self._token_kinds, length, share, rng, self.objective).tobytes()

    def _label_rows(self, table: np.ndarray, window: Window) -> None:
        """Gives the pairs of a table their labels, and random pairs their second segments."""
        for number, rows in enumerate(np.array_split(table, -(-len(table) // LABELED_ROWS))):
            rng = random.Random(f"{self._rng_key} {self.windows.make_key(window)} labels {number}")
            if self.objective == "nsp":
                exchange_second_segments(rows, self.corpus, self.max_seq_length, rng)
            elif self.objective == "sop":
                swap_segments(rows, rng)


def unwrap_subset(dataset: Any) -> Any:
    """Returns the dataset that a `Subset` selects from, or the dataset itself."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    return dataset


def shuffle_position(position: int, size: int, key: str) -> int:
    """Maps `position`, 0 to `size` - 1, to its place in a random permutation. The permutation takes no memory.

    A Feistel network on pairs of integers below the root of `size`, repeated while the result is out of range (Black &
    Rogaway, 2002, "Ciphers with arbitrary finite domains": generalized Feistel cipher, cycle-walking).
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
