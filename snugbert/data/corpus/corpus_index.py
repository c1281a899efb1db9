"""The index of a part: where its blocks are, how to verify them, and counts of their content.

`part-00000-of-00003.index` is a safetensors file next to `part-00000-of-00003.arrow`. With it, opening a corpus and
planning a run reads no text, and a machine can fetch single blocks from a bucket. The index is written last, so a part
is complete if its index is there.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load, save

from snugbert.data.corpus.part_files import (
    END_OF_STREAM,
    Block,
    damaged,
    parse_record,
    view_block,
)
from snugbert.errors import InputError
from snugbert.files import replacing
from snugbert.storage.urls import hide_credentials, is_url, open_file, read_bytes

TOKENS_AT_ONCE = 10**6  # counted at once, because bincount takes 8 bytes per token


@dataclass(frozen=True)
class Counts:
    """Counts of some blocks: the first three for each block, and the others for all blocks together."""

    documents: np.ndarray  # Shape: (blocks,)
    sentences: np.ndarray  # Shape: (blocks,)
    tokens: np.ndarray  # Shape: (blocks,)
    sentence_lengths: np.ndarray  # how many sentences have each number of tokens. Shape: (longest + 1,)
    token_ids: np.ndarray  # how often each token occurs. Shape: (highest id + 1,)


def count_blocks(blocks: Sequence[Block]) -> Counts:
    """Counts the content of blocks."""
    return join_counts([_count_block(block) for block in blocks])


def _count_block(block: Block) -> Counts:
    starts = range(0, len(block.tokens), TOKENS_AT_ONCE)
    return Counts(
        np.array([len(block.documents) - 1]),
        np.array([len(block.sentences) - 1]),
        np.array([len(block.tokens)]),
        np.bincount(np.diff(block.sentences)),
        _add_up([np.bincount(block.tokens[start : start + TOKENS_AT_ONCE]) for start in starts]),
    )


def join_counts(counts: Sequence[Counts]) -> Counts:
    """Joins the counts of consecutive blocks."""
    columns = ("documents", "sentences", "tokens")
    empty = [np.zeros(0, np.int64)]
    return Counts(
        **{name: np.concatenate(empty + [getattr(each, name) for each in counts]) for name in columns},
        sentence_lengths=_add_up([each.sentence_lengths for each in counts]),
        token_ids=_add_up([each.token_ids for each in counts]),
    )


def _add_up(histograms: Sequence[np.ndarray]) -> np.ndarray:
    total = np.zeros(max(map(len, histograms), default=0), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    return total


@dataclass(frozen=True)
class PartIndex:
    """The index of a part."""

    schema: np.ndarray  # the first bytes of the part, an Arrow schema. Shape: (bytes,), uint8
    offsets: np.ndarray  # where each block begins in the part, and the end of the last block. Shape: (blocks + 1,)
    digests: np.ndarray  # SHA-256 of the bytes of each block. Shape: (blocks, 32), uint8
    counts: Counts

    @property
    def record(self) -> dict[str, Any]:
        """The settings and the text that the part was made from, see `part_files.py`."""
        return parse_record(self.read_schema())

    @property
    def file_size(self) -> int:
        """Bytes of the part's file."""
        return int(self.offsets[-1]) + len(END_OF_STREAM)

    def read_schema(self) -> pa.Schema:
        """Returns the schema of the blocks."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema.tobytes()))


def index_name(part: str) -> str:
    """Returns the name of a part's index. Both names are without folders, or both are paths or URLs."""
    return part.removesuffix(".arrow") + ".index"


def read_index(part: str, size: int) -> PartIndex:
    """Reads the index of a part, which is a path or a URL. `size`: bytes of the part. Another size means damage."""
    name = index_name(part)
    shown = hide_credentials(name)
    try:
        data = read_bytes(name) if is_url(name) else Path(name).read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{shown} is missing. Run `snugbert prepare` again.") from error
    index = parse_index(data, shown)
    if index.file_size != size:
        raise damaged(hide_credentials(part), f"it has {size:,} bytes instead of {index.file_size:,}")
    return index


def verify_part(part: str, size: int) -> PartIndex:
    """Reads a whole part, and compares it with its index."""
    index, shown = read_index(part, size), hide_credentials(part)
    try:
        with open_file(part) as stream:
            if stream.read(len(index.schema)) != index.schema.tobytes():
                raise damaged(shown, "the file does not match its index")
            for digest, (start, end) in zip(index.digests, pairwise(index.offsets.tolist()), strict=True):
                if hashlib.sha256(stream.read(end - start)).digest() != digest.tobytes():
                    raise damaged(shown, f"the checksum of bytes {start:,} to {end:,} does not match the index")
            if stream.read() != END_OF_STREAM:
                raise damaged(shown, "cut off")
    except OSError as error:
        raise damaged(shown, error) from error
    return index


def make_index(part: Path) -> PartIndex:
    """Reads a whole part that was just written, and makes its index."""
    counts, offsets = [], []
    with pa.memory_map(str(part)) as stream:
        reader = pa.ipc.open_stream(stream)
        offsets.append(stream.tell())
        for batch in reader:
            counts.append(_count_block(view_block(batch)))
            offsets.append(stream.tell())
    data = np.memmap(part, mode="r")
    digests = [hashlib.sha256(data[start:end].data).digest() for start, end in pairwise(offsets)]
    return PartIndex(
        np.array(data[: offsets[0]]),
        np.array(offsets, dtype=np.int64),
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        join_counts(counts),
    )


def write_index(index: PartIndex, file: Path) -> None:
    """Writes the file of an index, completely or not at all."""
    lengths = np.flatnonzero(index.counts.sentence_lengths)
    arrays = {
        "schema": index.schema,
        "offsets": index.offsets,
        "digests": index.digests,
        "documents": index.counts.documents,
        "sentences": index.counts.sentences,
        "tokens": index.counts.tokens,
        # A sentence can have millions of tokens, so only lengths that occur are stored.
        "lengths": lengths,
        "sentences_of_length": index.counts.sentence_lengths[lengths],
        "token_ids": index.counts.token_ids,
    }
    with replacing(file) as unfinished:
        unfinished.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def parse_index(data: bytes, name: str) -> PartIndex:
    """Reads the bytes of an index file. Messages name it `name`."""
    try:
        arrays: dict[str, Any] = load(data)
        names = ("documents", "sentences", "tokens")
        columns = {name: arrays[name] for name in names}
        sentence_lengths = np.zeros(int(arrays["lengths"].max(initial=-1)) + 1, dtype=np.int64)
        sentence_lengths[arrays["lengths"]] = arrays["sentences_of_length"]
        counts = Counts(**columns, sentence_lengths=sentence_lengths, token_ids=arrays["token_ids"])
        index = PartIndex(arrays["schema"], arrays["offsets"], arrays["digests"], counts)
        sizes = {len(column) for column in columns.values()} | {len(index.digests), len(index.offsets) - 1}
        is_whole = len(sizes) == 1 and index.digests.shape[1:] == (32,) and index.offsets[0] == len(index.schema)
        is_counted = all((numbers > 0).all() for numbers in (*columns.values(), np.diff(index.offsets)))
        if not (is_whole and is_counted):
            raise pa.ArrowInvalid("its numbers are inconsistent")
        parse_record(index.read_schema())
    except InputError:
        raise
    except (SafetensorError, pa.ArrowException, LookupError, ValueError, TypeError, MemoryError, OSError) as error:
        raise damaged(name, error) from error
    return index
