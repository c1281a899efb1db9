"""The files of a prepared corpus: reading and validating them."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from snugbert.errors import InputError

FORMAT = 1  # of the files; another number is not read
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # of an Arrow stream
DAMAGE = (pa.ArrowException, OSError)  # what reading a damaged file raises


@dataclass
class Block:
    """Consecutive documents of a corpus.

    Attributes:
        tokens: word piece ids, no special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: index in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


def read_origin(file: Path) -> dict[str, Any]:
    """What a part was made from: `settings`, and `sources` by name, digest and identity.

    Raises:
        InputError: it is damaged.
    """
    try:
        with pa.memory_map(str(file)) as stream:
            return _origin(pa.ipc.read_schema(stream))
    except DAMAGE as error:
        raise _damaged(file, error) from error


def read_blocks(file: Path, vocab_size: int | None) -> list[Block]:
    """The blocks of a part, memory-mapped. They are validated if `vocab_size` is given."""
    blocks = []
    last_document = -1
    try:
        with pa.memory_map(str(file)) as stream:
            for batch in _reader(stream):
                if vocab_size is not None:
                    last_document = validate_batch(batch, last_document, vocab_size)
                blocks.append(_block(batch))
            if stream.tell() != stream.size() or stream.read_at(8, stream.size() - 8) != END_OF_STREAM:
                raise pa.ArrowInvalid("its end is missing")
    except DAMAGE as error:
        raise _damaged(file, error) from error
    return blocks


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"{file} is damaged ({error}). Remove it and prepare the text again.")


def _reader(stream: Any) -> Any:
    reader = pa.ipc.open_stream(stream)
    if not any(reader.schema.equals(corpus_schema(dtype)) for dtype in (np.uint16, np.uint32)):
        raise pa.ArrowInvalid("it has other columns than a corpus")
    return reader


def corpus_schema(dtype: Any, metadata: dict[bytes, bytes] | None = None) -> pa.Schema:
    """The schema of a part: `document` is an int64, `sentences` are lists of token ids of type `dtype`."""
    sentences = pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    return pa.schema([("document", pa.int64()), ("sentences", sentences)], metadata=metadata)


def validate_batch(batch: pa.RecordBatch, last_document: int, vocab_size: int) -> int:
    """Refuses a block that violates the invariants of [`Block`] or [`Corpus`].

    Args:
        batch: the block as it was read.
        last_document: number of the document before it in the same part, or -1.
        vocab_size: all word piece ids must be below.

    Returns:
        The number of its last document.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
    """
    batch.validate(full=True)  # first: makes the buffers safe to read
    numbers, documents = batch.columns
    buffers = numbers.buffers() + documents.buffers()
    if not len(numbers) or any(buffer is not None for buffer in buffers[::2]):
        raise pa.ArrowInvalid("it has empty or missing values")
    # A wrong start would expose another buffer's bytes. Arrow pads buffers to 8 bytes.
    if any(after.address != buffer.address + -(-buffer.size // 8) * 8 for buffer, after in pairwise(buffers[1::2])):
        raise pa.ArrowInvalid("its columns are not where they were written")
    block = _block(batch)
    for offsets, end in ((block.documents, len(block.sentences) - 1), (block.sentences, len(block.tokens))):
        if offsets[0] != 0 or offsets[-1] != end or not _increases(offsets):
            raise pa.ArrowInvalid("its sentences or documents overlap, are empty, or leave word pieces out")
    numbers = numbers.to_numpy()
    if numbers[0] <= last_document or not _increases(numbers):
        raise pa.ArrowInvalid("its documents are not in order")
    if (highest := block.tokens.max()) >= vocab_size:
        raise pa.ArrowInvalid(f"word piece id {highest} is outside the vocabulary of {vocab_size}")
    return int(numbers[-1])


def _increases(values: np.ndarray) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _block(batch: pa.RecordBatch) -> Block:
    documents = batch.column("sentences")
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
    )


def _origin(schema: pa.Schema) -> dict[str, Any]:
    try:
        origin = json.loads((schema.metadata or {})[b"snugbert"])
        settings, sources = origin["settings"], origin["sources"]
        is_ours = settings["format"] == FORMAT and isinstance(settings["tokenizer"], str)
        is_ours = is_ours and isinstance(sources, list) and len(sources) > 0 and all(map(_is_source, sources))
    except (ValueError, LookupError, TypeError, RecursionError):  # not JSON, or of another form
        is_ours = False
    if not is_ours:
        raise pa.ArrowInvalid("it is not a part of a corpus, or of another version of this program")
    return origin


def _is_source(source: Any) -> bool:
    match source:
        case {"name": str(), "digest": str()}:
            return all(isinstance(number, int) for number in source.get("identity", []))
    return False
