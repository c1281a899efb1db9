"""The part files of a prepared corpus: their format, and the blocks in them.

A part is an Arrow stream of blocks. Its schema's metadata records its origin. [`Block`] is a view of one block.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from snugbert.errors import InputError

PART_NAME = re.compile(r"part-\d{5}-of-(\d{5})\.arrow(\.partial)?")
FORMAT = 1  # version of the files; other versions are refused
WORDS = "continues_word"  # column of word bits, and the setting of a corpus that has this column
DATASET = "dataset "  # prefix of the name of a dataset, in the names of sources
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream
# Arrow types of the columns of text and words.
_TEXT_TYPES = [pa.list_(pa.list_(number)) for number in (pa.uint16(), pa.uint32())]
TYPES = [[text, *words] for text in _TEXT_TYPES for words in ([], [pa.list_(pa.bool_())])]
ARROW_ERRORS = (pa.ArrowException, OSError)  # raised when a damaged file is read
NO_INDEX = "has no index"  # a state of a part in a bucket. On a disk, its index is made from the part
INDEX_ADVICE = "If the upload was interrupted, run `snugbert prepare` again."


def part_name(number: int, num_parts: int) -> str:
    """Returns the name of a part's file."""
    return f"part-{number:05d}-of-{num_parts:05d}.arrow"


def find_states(folder: str, complete: Collection[str], files: Collection[str]) -> dict[str, str]:
    """Returns the state of each part that a corpus must have, in order: "" if it is complete.

    Args:
        folder: path or URL, for messages.
        complete: names of the complete parts.
        files: names of all files in the folder.

    Raises:
        InputError: the parts belong to different corpora.
    """
    matches = map(PART_NAME.fullmatch, [*sorted(complete), *sorted(files)])
    num_parts = next((int(match[1]) for match in matches if match), 0)
    names = [part_name(number, num_parts) for number in range(num_parts)]
    if stray := set(complete) - set(names):
        others = {*complete, *files} & set(names)
        if not others:
            raise InputError(f"{folder}: {min(stray)} is not part of a corpus. Move this file to another folder.")
        raise InputError(
            f"{folder}: {min(stray)} and {min(others)} belong to different corpora. Move one corpus to another folder."
        )

    def describe(name: str) -> str:
        if name in complete:
            return ""
        if name in files:
            return NO_INDEX
        return "is unfinished" if f"{name}.partial" in files else "is missing"

    return {name: describe(name) for name in names}


@dataclass
class Block:
    """Consecutive documents of a corpus. No sentence and no document is empty.

    Attributes:
        tokens: token ids, without special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: offset in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
        word_bits: for each token, whether it continues the word of the token before it. Eight tokens share a byte, the
            first token in the lowest bit. None: not stored. *Shape:* (ceil(tokens / 8),)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    word_bits: np.ndarray | None = None

    def read_continuations(self, start: int, length: int) -> np.ndarray:
        """Returns whether each of `length` tokens from `start` continues a word. *Shape:* (length,), bool"""
        assert self.word_bits is not None
        bits = np.unpackbits(self.word_bits[start // 8 : (start + length + 7) // 8], bitorder="little")
        return bits[start % 8 :][:length].astype(bool)


class Source(TypedDict):
    """A text file or a dataset.

    Attributes:
        name: the path of the file, relative to the common folder of all text files of the corpus, or `dataset` and the
            name of the dataset.
        digest: changes when the text changes.
        identity: a digest of device, inode, size and times of the file, or of its URL, size and version. While it
            stays the same, the file is not read again. Empty: unknown. The corpus does not store it.
    """

    name: str
    digest: str
    identity: NotRequired[str]


class Origin(TypedDict):
    """The text and the settings that a part was made from."""

    settings: dict[str, Any]
    sources: list[Source]


def corpus_schema(dtype: DTypeLike, origin: Origin) -> pa.Schema:
    """Returns the schema of a part with token ids of type `dtype`, uint16 or uint32. Its metadata is the `origin`."""
    columns = [("document", pa.int64()), ("sentences", pa.list_(pa.list_(pa.from_numpy_dtype(dtype))))]
    if origin["settings"].get(WORDS):
        columns.append((WORDS, pa.list_(pa.bool_())))
    return pa.schema(columns, metadata={b"snugbert": json.dumps(origin).encode()})


def read_origin(file: Path) -> Origin:
    """Reads the origin of a part from its metadata.

    Raises:
        InputError: the file is damaged.
    """
    try:
        with pa.memory_map(str(file)) as stream:
            return parse_origin(pa.ipc.read_schema(stream))
    except ARROW_ERRORS as error:
        raise damaged(file, error) from error


def parse_origin(schema: pa.Schema) -> Origin:
    """Reads the origin of a part from its schema.

    Raises:
        pyarrow.ArrowInvalid: the schema has no origin, or the part has another format.
    """
    try:
        origin = json.loads(schema.metadata[b"snugbert"])
        settings = origin["settings"]
        if is_known := settings["format"] == FORMAT:
            types = [schema.field("sentences").type]
            types += [schema.field(WORDS).type] if WORDS in schema.names else []
            sources = (source[key] for source in origin["sources"] for key in ("name", "digest"))
            is_whole = types in TYPES and all(isinstance(text, str) for text in (settings["tokenizer"], *sources))
    except (ValueError, LookupError, TypeError, RecursionError) as error:  # not JSON, or a stream of another program
        raise pa.ArrowInvalid("not part of a corpus") from error
    if not is_known:
        raise FormatError(f"has format {settings['format']!r}, but this version of SnugBERT reads format {FORMAT}")
    if not is_whole:
        raise pa.ArrowInvalid("columns or settings have the wrong type")
    return origin


class FormatError(pa.ArrowInvalid):
    """A part was written by a version of SnugBERT with another format."""


class DamagedError(InputError):
    """A file of a corpus is damaged."""


def damaged(file: Path | str, error: Exception | str) -> InputError:
    """Returns a [`DamagedError`] about a damaged part, or an [`InputError`] about a part in another format."""
    if isinstance(error, FormatError):
        return InputError(f"{file} {error}. Install the version that wrote it, or prepare the text again.")
    return DamagedError(f"{file} is damaged ({error}). Remove this file and prepare the text again.")


def validate_block(batch: pa.RecordBatch, vocab_size: int) -> None:
    """Checks a block from a file. All token ids must be below `vocab_size`.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
    """
    batch.validate(full=True)  # makes the buffers safe to read
    block = view_block(batch)
    if (highest := block.tokens.max()) >= vocab_size:
        raise pa.ArrowInvalid(f"token id {highest} is outside the vocabulary of {vocab_size}")
    if block.word_bits is not None:
        bits = batch.column(WORDS).values
        if len(bits) != len(block.tokens) or bits.null_count or bits.offset:
            raise pa.ArrowInvalid(f"{len(bits)} word bits for {len(block.tokens)} tokens")


def view_block(batch: pa.RecordBatch) -> Block:
    """Returns a block without copying it."""
    documents = batch.column("sentences")
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
        word_bits=_view_bits(batch.column(WORDS).values) if WORDS in batch.schema.names else None,
    )


def _view_bits(values: pa.BooleanArray) -> np.ndarray:
    return np.frombuffer(values.buffers()[1], np.uint8)[: (len(values) + 7) // 8]
