"""The part files of a prepared corpus: `part-00000-of-00003.arrow` and its index, `part-00000-of-00003.index`.

A part is an Arrow stream of blocks. The metadata of its schema is a record from `continuation.py`: the settings of the
corpus, and under `text` the digest of each text file or of the dataset, by name. Names of files are relative to the
common folder of all text files, so that they are the same on every machine. [`Block`] is a view of one block.

The index is a safetensors file with the offsets of the blocks, their checksums, and counts of their content. With it,
opening a corpus and planning a run reads no text, and a machine can fetch single blocks from a bucket. The index is
written last, so a part with an index is complete.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

from snugbert.errors import InputError
from snugbert.files import hash_json, replacing
from snugbert.storage.inputs import work_folder
from snugbert.storage.uploads import OUTPUTS
from snugbert.storage.urls import (
    ask_together,
    hide_credentials,
    is_url,
    join,
    list_files,
    read_bytes,
    remove,
    upload,
)

KIND = "a prepared corpus"  # see `continuation.py`
FORMAT = 1  # version of the files
TEXT = "text"  # setting of a part: the digests of its text
WORDS = "continues_word"  # name of the column of word bits, and of the setting that adds it
DATASET = "dataset "  # prefix of a dataset's name among the names of sources
PART_NAME = re.compile(r"part-\d{5}-of-(\d{5})\.arrow")
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream
ARROW_ERRORS = (pa.ArrowException, OSError)  # raised when a damaged file is read
BLOCK_COUNTS = ("documents", "sentences", "tokens")  # counts of each block in an index


@dataclass
class Block:
    """Consecutive documents of a corpus. No sentence and no document is empty."""

    tokens: np.ndarray  # token ids, without special tokens. Shape: (tokens,)
    sentences: np.ndarray  # offset in `tokens` of each sentence, and of the end. Shape: (sentences + 1,)
    documents: np.ndarray  # offset in `sentences` of each document, and of the end. Shape: (documents + 1,)
    # For each token, whether it continues the word of the token before it. Eight tokens share a byte, the first token
    # in the lowest bit. None: not stored. Shape: (ceil(tokens / 8),)
    word_bits: np.ndarray | None = None

    def read_continuations(self, start: int, length: int) -> np.ndarray:
        """Returns whether each of `length` tokens from `start` continues a word. *Shape:* (length,), bool"""
        assert self.word_bits is not None
        bits = np.unpackbits(self.word_bits[start // 8 : (start + length + 7) // 8], bitorder="little")
        return bits[start % 8 :][:length].astype(bool)


def corpus_schema(dtype: DTypeLike, record: Mapping[str, Any]) -> pa.Schema:
    """Returns the schema of a part with token ids of type `dtype`, uint16 or uint32, and a record as metadata."""
    columns = [("document", pa.int64()), ("sentences", pa.list_(pa.list_(pa.from_numpy_dtype(dtype))))]
    if record["settings"].get(WORDS):
        columns.append((WORDS, pa.list_(pa.bool_())))
    return pa.schema(columns, metadata={b"snugbert": json.dumps(record).encode()})


def parse_record(schema: pa.Schema) -> dict[str, Any]:
    """Reads the record of a part."""
    try:
        record = json.loads(schema.metadata[b"snugbert"])
        is_readable = record["settings"]["format"] == FORMAT
    except (LookupError, TypeError, ValueError) as error:
        raise pa.ArrowInvalid("not part of a corpus") from error
    if not is_readable:
        raise pa.ArrowInvalid(f"not in this version's format, {FORMAT}")
    return record


def shared_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that all parts of a corpus share: all except the text files."""
    settings = dict(record["settings"])
    if not any(name.startswith(DATASET) for name in settings[TEXT]):
        del settings[TEXT]
    return settings


class DamagedError(InputError):
    """A file of a corpus is damaged."""


def damaged(file: Path | str, error: Exception | str) -> DamagedError:
    """Returns an error about a damaged file."""
    return DamagedError(f"{file} is damaged ({error}). Remove this file and prepare the text again.")


def view_block(batch: pa.RecordBatch) -> Block:
    """Returns a block without copying it."""
    documents = batch.column("sentences")
    sentences = documents.values
    word_bits = None
    if WORDS in batch.schema.names:
        words = batch.column(WORDS).values
        word_bits = np.frombuffer(words.buffers()[1], np.uint8)[: (len(words) + 7) // 8]
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
        word_bits=word_bits,
    )


# --- the index -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Counts of some blocks: the first three for each block, and the last for all blocks together."""

    documents: np.ndarray  # Shape: (blocks,)
    sentences: np.ndarray  # Shape: (blocks,)
    tokens: np.ndarray  # Shape: (blocks,)
    token_ids: np.ndarray  # how often each token occurs. Shape: (highest id + 1,)


def count_block(block: Block) -> Counts:
    """Counts the content of a block."""
    return Counts(
        np.array([len(block.documents) - 1]),
        np.array([len(block.sentences) - 1]),
        np.array([len(block.tokens)]),
        np.bincount(block.tokens),
    )


def join_counts(counts: Sequence[Counts]) -> Counts:
    """Joins the counts of consecutive blocks."""
    empty = [np.zeros(0, np.int64)]
    token_ids = np.zeros(max((len(each.token_ids) for each in counts), default=0), dtype=np.int64)
    for each in counts:
        token_ids[: len(each.token_ids)] += each.token_ids
    columns = {name: np.concatenate(empty + [getattr(each, name) for each in counts]) for name in BLOCK_COUNTS}
    return Counts(**columns, token_ids=token_ids)


@dataclass(frozen=True)
class PartIndex:
    """The index of a part."""

    schema: np.ndarray  # the first bytes of the part, an Arrow schema. Shape: (bytes,), uint8
    offsets: np.ndarray  # where each block begins in the part, and the end of the last block. Shape: (blocks + 1,)
    digests: np.ndarray  # SHA-256 of the bytes of each block. Shape: (blocks, 32), uint8
    counts: Counts

    @property
    def record(self) -> dict[str, Any]:
        """The settings and the text that the part was made from."""
        return parse_record(self.read_schema())

    @property
    def file_size(self) -> int:
        """Bytes of the part's file."""
        return int(self.offsets[-1]) + len(END_OF_STREAM)

    def read_schema(self) -> pa.Schema:
        """Returns the schema of the blocks."""
        return pa.ipc.read_schema(pa.py_buffer(self.schema.tobytes()))


def index_name(part: str) -> str:
    """Returns the name of a part's index. `part` may be a file name, a path or a URL."""
    return part.removesuffix(".arrow") + ".index"


def read_index(part: str, size: int) -> PartIndex:
    """Reads the index of a part, which is a path or a URL. The part must have `size` bytes."""
    name = index_name(part)
    data = read_bytes(name) if is_url(name) else Path(name).read_bytes()
    index = parse_index(data, hide_credentials(name))
    if index.file_size != size:
        raise damaged(hide_credentials(part), f"it has {size:,} bytes instead of {index.file_size:,}")
    return index


def make_index(part: Path) -> PartIndex:
    """Reads a whole part that was just written, and makes its index."""
    counts, offsets = [], []
    with pa.memory_map(str(part)) as stream:
        reader = pa.ipc.open_stream(stream)
        offsets.append(stream.tell())
        for batch in reader:
            counts.append(count_block(view_block(batch)))
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
    arrays = {
        "schema": index.schema,
        "offsets": index.offsets,
        "digests": index.digests,
        **{name: getattr(index.counts, name) for name in BLOCK_COUNTS},
        "token_ids": index.counts.token_ids,
    }
    with replacing(file) as unfinished:
        unfinished.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def parse_index(data: bytes, name: str) -> PartIndex:
    """Parses the bytes of an index file. Messages call the file `name`."""
    try:
        arrays: dict[str, Any] = load(data)
        columns = {name: arrays[name] for name in BLOCK_COUNTS}
        counts = Counts(**columns, token_ids=arrays["token_ids"])
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


# --- the folder ----------------------------------------------------------------------------------------------------


def part_name(number: int, num_parts: int) -> str:
    """Returns the name of a part's file."""
    return f"part-{number:05d}-of-{num_parts:05d}.arrow"


def read_num_parts(name: str) -> int:
    """Returns the number of parts of the corpus that a part belongs to, from the part's name. 0: not a part."""
    match = PART_NAME.fullmatch(name)
    return int(match[1]) if match else 0


class CorpusFolder:
    """The folder of a corpus at a path or a URL.

    For a bucket, a local folder holds the part that is being written. A finished part is uploaded and
    then removed from this machine, so the disk needs space for one part per process.
    """

    def __init__(self, place: str | Path):
        self.url = str(place).rstrip("/") if is_url(place) else None  # None: the corpus is only on this machine
        self.folder = Path(place)  # on this machine
        if self.url is not None:
            self.folder = work_folder() / OUTPUTS / hash_json(hide_credentials(self.url))

    def __str__(self) -> str:
        return hide_credentials(str(self.place))

    @property
    def place(self) -> str | Path:
        """The URL, or the folder."""
        return self.url or self.folder

    def locate(self, name: str) -> str:
        """Returns the path or the URL of a file."""
        return str(self.folder / name) if self.url is None else join(self.url, name)

    def find_parts(self) -> dict[str, int]:
        """Returns the sizes of the complete parts (parts with an index) by name, in order."""
        if self.url is None:
            files = {file.name: file.stat().st_size for file in self.folder.glob("part-*")}
        else:
            files = {name: entry.size for name, entry in list_files(self.url).items()}
        return {name: files[name] for name in sorted(files) if read_num_parts(name) and index_name(name) in files}

    def read_record(self, name: str, size: int | None = None) -> dict[str, Any] | None:
        """Returns the record of a part. None: the part does not exist, or is damaged. `size`: from [`find_parts`]."""
        size = self.find_parts().get(name) if size is None else size
        try:
            return None if size is None else read_index(self.locate(name), size).record
        except DamagedError:
            return None

    def read_records(self) -> dict[str, dict[str, Any] | None]:
        """Returns the record of each part that has an index. None: the part is damaged."""
        sizes = self.find_parts()
        records = ask_together(lambda name: self.read_record(name, sizes[name]), sizes)
        return dict(zip(sizes, records, strict=True))

    def publish(self, name: str) -> None:
        """Uploads a finished part, and removes it from this machine."""
        if self.url is None:
            return
        remove(join(self.url, index_name(name)))  # without an index, the part counts as incomplete
        for each in (name, index_name(name)):
            upload(self.folder / each, join(self.url, each))
        for each in (index_name(name), name):
            (self.folder / each).unlink()

    def remove_part(self, name: str) -> None:
        """Removes the files of a part, if they exist."""
        for each in (index_name(name), name):
            (self.folder / each).unlink(missing_ok=True)
            if self.url is not None:
                remove(join(self.url, each))
