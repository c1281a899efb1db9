"""A prepared corpus: tokenized text with sentence and document boundaries, in the part files of a folder.

[`prepare_corpus`] writes the folder, and [`open_corpus`] opens it.

    prepared/part-00000-of-00003.arrow part-00000-of-00003.index ...

Each part is an Arrow stream of blocks, see `part_files.py`. A row is a document: `sentences` holds lists of token ids,
and `document` is its index in the text of the part. `continues_word`, if it was requested and the vocabulary does not
mark such tokens, has a bit for each token. `datasets.Dataset.from_file` opens a part.

[`Blocks`] and [`CachedBlocks`] map blocks into memory. The process that opened the corpus verifies each block at its
first use. Other processes, such as data workers, do not verify blocks, and never use the network. The cache of a
bucket is a folder with a file for each block:

    00000017.block ...

The folder holds the blocks of the windows in use (see `block_windows.py`), and as many of the corpus's first blocks as
fit. A window is a random selection, so every fixed choice of blocks saves the same number of downloads. All processes
of a machine share the folder. A removed file stays readable in processes that have mapped it.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.part_files import (
    ARROW_ERRORS,
    TEXT,
    WORDS,
    Block,
    CorpusFolder,
    Counts,
    DamagedError,
    PartIndex,
    count_block,
    damaged,
    join_counts,
    read_index,
    shared_settings,
    view_block,
)
from snugbert.data.data_arguments import CACHE_GB
from snugbert.data.tokenizing import hash_tokenizer
from snugbert.errors import InputError
from snugbert.files import hash_json, lock_file, replacing
from snugbert.storage.inputs import work_folder
from snugbert.storage.urls import ask_together, hide_credentials, read_bytes

logger = logging.getLogger(__name__)

MANY_UNKNOWN = 0.05  # the share of [UNK] from which on a warning appears


@dataclass(eq=False, repr=False)
class Corpus:
    """The blocks of a prepared corpus. Blocks from a folder are memory-mapped and use no memory of their own."""

    blocks: Sequence[Block]
    digest: str  # changes when the text, the tokenizer or a setting changes
    folder: Path | str | None = None  # or its URL. None: the corpus was made in memory
    sources: dict[str, str] = field(default_factory=dict)  # the digest of each text file, or of the dataset, by name
    # Everything else that determines the content: the digest of the tokenizer, the language, and which documents were
    # kept.
    settings: dict[str, Any] = field(default_factory=dict)
    known_counts: Counts | None = None  # from an index. None: `counts` reads the blocks when it is first used

    def __post_init__(self):
        self.language = self.settings.get("language") or self.settings.get("lines_language")  # None: unknown

    @cached_property
    def counts(self) -> Counts:
        """Counts of the blocks."""
        return self.known_counts or join_counts([count_block(block) for block in self.blocks])

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Number of documents before each block, and in total. *Shape:* (blocks + 1,)"""
        return np.cumsum([0, *self.counts.documents])

    @cached_property  # read for each example
    def has_words(self) -> bool:
        """Whether the tokens that continue a word are stored."""
        if isinstance(self.blocks, Blocks):
            return self.settings[WORDS]
        return all(block.word_bits is not None for block in self.blocks)

    @property
    def num_documents(self) -> int:
        """The number of documents."""
        return int(self.counts.documents.sum())

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
        return int(self.counts.sentences.sum())

    @property
    def num_tokens(self) -> int:
        """The number of tokens."""
        return int(self.counts.tokens.sum())

    def __str__(self) -> str:
        return f"{self.num_documents:,} documents, {self.num_sentences:,} sentences, {self.num_tokens:,} tokens"


def check_unknown_tokens(corpus: Corpus, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Warns if many tokens of a corpus are [UNK], and raises an error if all are. The message begins with `name`."""
    counts, unknown = corpus.counts.token_ids, tokenizer.unk_token
    special = {index: counts[index] for index in tokenizer.all_special_ids if index < len(counts)}
    remedy = "Use another tokenizer, or train one on this text with `snugbert vocabulary`."
    if not corpus.num_tokens:
        raise InputError(f"{name}: no documents.")
    if sum(special.values()) == counts.sum():
        raise InputError(f"{name}: every token is {unknown}, so no token can be masked. {remedy}")
    share = special.get(tokenizer.unk_token_id, 0) / counts.sum()
    if share >= MANY_UNKNOWN:
        problem = f"{share:.0%} of the tokens are {unknown}, text that the vocabulary cannot represent"
        logger.warning("%s: %s. %s", name, problem, remedy)


def open_corpus(
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    cache_dir: str | Path | None = None,
    cache_gb: float = CACHE_GB,
) -> Corpus:
    """Opens a corpus that [`prepare_corpus`] or `snugbert prepare` wrote. Reads no text.

        corpus = snugbert.open_corpus("prepared", tokenizer)
        corpus = snugbert.open_corpus("s3://bucket/prepared", tokenizer)

    Args:
        folder: the folder of the corpus, or its URL on any file system that fsspec opens.
        tokenizer: the tokenizer that the corpus was prepared with.
        cache_dir: for a URL, the folder for the blocks in use. The processes of a run share it. Runs at the same time
            need different folders. Default: a folder for this corpus in `HF_HOME`.
        cache_gb: for a URL, the size of this folder in GB (1e9 bytes).

    Returns:
        The corpus. It is memory-mapped, so it may be larger than the memory. Blocks are verified when they are first
        used.

    Raises:
        InputError: `folder` holds no complete corpus, or the corpus was prepared with a different tokenizer.
    """
    output = CorpusFolder(folder)
    states = output.find_states()
    if incomplete := [name for name, state in states.items() if state]:
        raise InputError(
            f"{output}: {incomplete[0]} {states[incomplete[0]]}. Missing or unfinished: {len(incomplete)} of "
            f"{len(states)} parts. Run `snugbert prepare` again for all shards."
        )
    sizes = output.find_parts()
    parts = [output.locate(name) for name in sizes]
    indices = ask_together(lambda entry: read_index(*entry), zip(parts, sizes.values(), strict=True))
    records = [index.record for index in indices]
    settings = shared_settings(records[0])
    for part, record in zip(parts, records, strict=True):
        if shared_settings(record) != settings:
            raise InputError(
                f"{hide_credentials(part)} and {next(iter(sizes))} were prepared with different settings. Prepare all "
                "shards again with the same settings and tokenizer."
            )
    if settings["tokenizer"] != hash_tokenizer(tokenizer):
        raise InputError(f"{output} was prepared with a different tokenizer. Use that one, or prepare the text again.")
    texts = [record["settings"][TEXT] for record in records]
    sources = {name: digest for text in texts for name, digest in text.items()}
    settings.pop(TEXT, None)
    digest = hash_json([settings, [[*text.values()] for text in texts]])
    mapped = [_map_part(part, index, len(tokenizer)) for part, index in zip(parts, indices, strict=True)]
    blocks = Blocks(mapped)
    if output.url is not None:
        cache = Path(cache_dir or work_folder() / "blocks" / digest)
        blocks = CachedBlocks(mapped, cache, round(cache_gb * 1e9))
    counts = join_counts([index.counts for index in indices])
    return Corpus(blocks, digest, output.place, sources, settings, counts)


# --- blocks on the disk, or in a bucket with a local cache -------------------------------------------------------


@dataclass(frozen=True)
class MappedPart:
    """The location of the blocks of a part, see [`PartIndex`]."""

    name: str  # the file or URL
    schema: pa.Schema
    offsets: np.ndarray
    digests: np.ndarray


def _map_part(part: str, index: PartIndex, vocab_size: int) -> MappedPart:
    if (highest := len(index.counts.token_ids) - 1) >= vocab_size:
        raise damaged(hide_credentials(part), f"token id {highest} is outside the vocabulary of {vocab_size}")
    return MappedPart(part, index.read_schema(), index.offsets, index.digests)


class Blocks(Sequence[Block]):
    """The blocks of a corpus, mapped into memory from the files of its parts. It can be pickled."""

    def __init__(self, parts: Sequence[MappedPart]):
        self.parts = parts
        self.starts = np.cumsum([0, *(len(part.digests) for part in parts)])
        self._process: int | None = os.getpid()
        self._open: dict[int, Block] = {}
        self._maps: dict[str, Any] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, number: int) -> Block:  # type: ignore[override]
        if number not in self._open:
            number = range(len(self))[number]
            self._open[number] = self._map(number)
        return self._open[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None, "_open": {}, "_maps": {}}

    @property
    def is_own(self) -> bool:
        """Whether this process opened the corpus. Only then does it verify blocks and use the network."""
        return self._process == os.getpid()

    def retain(self, numbers: Iterable[int]) -> None:
        """Unmaps all blocks except `numbers`."""
        kept = set(numbers)
        self._open = {number: block for number, block in self._open.items() if number in kept}

    @property
    def sizes(self) -> np.ndarray:
        """The bytes of each block. *Shape:* (blocks,)"""
        return np.concatenate([np.diff(part.offsets) for part in self.parts])

    def _find(self, number: int) -> tuple[MappedPart, int, int, bytes]:
        """Returns the part of a block, the block's start and end in the part, and the block's digest."""
        at = int(np.searchsorted(self.starts, number, side="right")) - 1
        part, row = self.parts[at], number - int(self.starts[at])
        return part, int(part.offsets[row]), int(part.offsets[row + 1]), part.digests[row].tobytes()

    def _map(self, number: int) -> Block:
        part, _, _, digest = self._find(number)
        try:
            data = self._map_bytes(number)
            if self.is_own and hashlib.sha256(data.data).digest() != digest:
                raise pa.ArrowInvalid(f"the checksum of block {number} does not match the index")
            batch = pa.ipc.read_record_batch(pa.py_buffer(data), part.schema)
            if self.is_own:
                batch.validate(full=True)  # makes the buffers safe to read
            return view_block(batch)
        except InputError:
            raise
        except (*ARROW_ERRORS, ValueError) as error:  # an empty file cannot be mapped
            raise damaged(hide_credentials(part.name), error) from error

    def _map_bytes(self, number: int) -> np.ndarray:
        part, start, end, _ = self._find(number)
        if part.name not in self._maps:
            self._maps[part.name] = np.memmap(part.name, mode="r")
        return self._maps[part.name][start:end]


class CachedBlocks(Blocks):
    """The blocks of a corpus in a bucket, through a cache on the local disk.

    Only the process that opened the corpus downloads blocks. A block that is in no window is removed when the next
    block is read.
    """

    def __init__(self, parts: Sequence[MappedPart], folder: Path, cache_bytes: int):
        super().__init__(parts)
        self.folder = folder
        self.cache_bytes = cache_bytes
        self.pinned = 0  # the first `pinned` blocks are never removed
        self._download: threading.Thread | None = None
        self._stop = threading.Event()
        self._single: int | None = None  # the last block that was read without a window

    def reserve(self, in_use: int) -> None:
        """Divides the cache: `in_use` bytes for two windows and their tables, and the rest for pinned blocks."""
        if self.sizes.sum() <= self.cache_bytes:
            self.pinned = len(self)
        elif in_use > self.cache_bytes:
            raise InputError(
                f"--corpus_cache_gb {self.cache_bytes / 1e9:g} is too small: two windows of blocks need "
                f"{in_use / 1e9:.2g} GB. Increase the cache, or decrease --window_blocks."
            )
        else:
            self.pinned = int(np.searchsorted(np.cumsum(self.sizes), self.cache_bytes - in_use, side="right"))

    def ensure(self, numbers: Iterable[int]) -> None:
        """Downloads the blocks that are missing. Waits for a download that [`ensure_later`] began."""
        if self._download is not None:
            self._download.join()  # blocks that failed to download are retried now
            self._download = None
        self._fetch_missing(numbers)

    def ensure_later(self, numbers: Sequence[int]) -> None:
        """Starts to download missing blocks, and returns. After an error, [`ensure`] retries."""
        if self._download is None and any(not self._file(number).exists() for number in numbers):
            self._stop.clear()

            def fetch() -> None:
                with suppress(InputError, OSError):
                    self._fetch_missing(numbers, self._stop)

            self._download = threading.Thread(target=fetch, daemon=True)
            self._download.start()

    def end_download(self) -> None:
        """Ends the downloads of [`ensure_later`] after the current requests. Call it before removing the folder."""
        self._stop.set()
        if self._download is not None:
            self._download.join()
            self._download = None

    def keep(self, numbers: Iterable[int]) -> None:
        """Removes unfinished files, and all blocks from the cache except `numbers` and the pinned blocks."""
        kept = {self._file(number).name for number in numbers}
        with lock_file(self.folder / "blocks.lock"):
            for file in self.folder.glob("*.block"):
                is_unfinished = file.stem.startswith("_")  # of a process that was killed
                if is_unfinished or (file.name not in kept and int(file.stem) >= self.pinned):
                    file.unlink(missing_ok=True)

    def _map(self, number: int) -> Block:
        try:
            return super()._map(number)
        except DamagedError:
            if not self.is_own:
                raise
            self._file(number).unlink(missing_ok=True)  # the disk may have damaged the file since an earlier run
            self.ensure([number])
            return super()._map(number)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.block"

    def _fetch_missing(self, numbers: Iterable[int], stop: threading.Event | None = None) -> None:
        with lock_file(self.folder / "blocks.lock"):
            missing = [number for number in numbers if not self._file(number).exists()]
            ask_together(self._fetch, missing, stop)

    def _fetch(self, number: int) -> None:
        part, start, end, digest = self._find(number)
        data = read_bytes(part.name, start, end)
        if hashlib.sha256(data).digest() != digest:
            raise damaged(hide_credentials(part.name), f"the checksum of block {number} does not match the index")
        with replacing(self._file(number)) as unfinished:
            unfinished.write_bytes(data)

    def _map_bytes(self, number: int) -> np.ndarray:
        if self.is_own and not self._file(number).exists():
            if self._single is not None and self._single >= self.pinned:
                self._open.pop(self._single, None)
                self._file(self._single).unlink(missing_ok=True)
            self.ensure([number])
            self._single = number
        return np.memmap(self._file(number), mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_download": None, "_stop": None}
