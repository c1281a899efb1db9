"""The files of a prepared corpus: their format, reading and validation.

    prepared/part-00000-of-00003.arrow ...

Each part is an Arrow stream, written block by block and read by memory mapping. A row is a document: `sentences` holds
lists of token ids, and `document` is its index in the text of the part. The schema's metadata records the origin of
the part: digests of the text and the tokenizer, and the settings. `datasets.Dataset.from_file` opens a part.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from snugbert.errors import InputError

FORMAT = 1  # version of the files; other versions are refused
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream
DAMAGE = (pa.ArrowException, OSError)  # raised when a damaged file is read


@dataclass
class Block:
    """Consecutive documents of a corpus. No sentence and no document is empty.

    Attributes:
        tokens: token ids, without special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: offset in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray


class Source(TypedDict):
    """A text file or a dataset.

    Attributes:
        name: path of the file, or `dataset` and its name.
        digest: changes when the text changes.
        identity: device, inode, size and times of the file. While they stay the same, the file is not read again.
    """

    name: str
    digest: str
    identity: NotRequired[Sequence[int]]


class Origin(TypedDict):
    """The text and the settings that a part was made from."""

    settings: dict[str, Any]
    sources: list[Source]


def corpus_schema(dtype: DTypeLike, origin: Origin | None = None) -> pa.Schema:
    """Returns the schema of a part.

    Args:
        dtype: uint16 or uint32, the type of token ids.
        origin: stored in the metadata.
    """
    metadata = None if origin is None else {b"snugbert": json.dumps(origin).encode()}
    sentences = pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    return pa.schema([("document", pa.int64()), ("sentences", sentences)], metadata=metadata)


def read_origin(file: Path) -> Origin:
    """Reads the origin of a part from its metadata.

    Raises:
        InputError: the file is damaged.
    """
    try:
        with pa.memory_map(str(file)) as stream:
            return _parse_origin(pa.ipc.read_schema(stream))
    except DAMAGE as error:
        raise _damaged(file, error) from error


def _parse_origin(schema: pa.Schema) -> Origin:
    try:
        origin = json.loads((schema.metadata or {})[b"snugbert"])
        settings, sources = origin["settings"], origin["sources"]
        is_ours = settings["format"] == FORMAT and isinstance(settings["tokenizer"], str)
        is_ours = is_ours and isinstance(sources, list) and len(sources) > 0 and all(map(_is_source, sources))
    except (ValueError, LookupError, TypeError, RecursionError):  # not JSON, or unexpected JSON
        is_ours = False
    if not is_ours:
        raise pa.ArrowInvalid("not part of a corpus, or from another version of SnugBERT")
    return origin


def _is_source(source: Any) -> bool:
    match source:
        case {"name": str(), "digest": str()}:
            return all(isinstance(number, int) for number in source.get("identity", []))
    return False


def read_blocks(file: Path, vocab_size: int | None) -> list[Block]:
    """Maps the blocks of a part into memory.

    Args:
        file: the part.
        vocab_size: if given, every block is validated, and token ids must be below this.

    Raises:
        InputError: the file is damaged.
    """
    blocks = []
    last_document = -1
    try:
        with pa.memory_map(str(file)) as stream:
            reader = pa.ipc.open_stream(stream)
            if not any(reader.schema.equals(corpus_schema(dtype)) for dtype in (np.uint16, np.uint32)):
                raise pa.ArrowInvalid("unexpected columns")
            for batch in reader:
                if vocab_size is not None:
                    last_document = validate_block(batch, last_document, vocab_size)
                blocks.append(_view_block(batch))
            if stream.tell() != stream.size() or stream.read_at(8, stream.size() - 8) != END_OF_STREAM:
                raise pa.ArrowInvalid("truncated")
    except DAMAGE as error:
        raise _damaged(file, error) from error
    return blocks


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(f"{file} is damaged ({error}). Remove it and prepare the text again.")


def validate_block(batch: pa.RecordBatch, last_document: int, vocab_size: int) -> int:
    """Checks that a block from a file has the properties that [`Block`] promises.

    Args:
        batch: the block as Arrow read it.
        last_document: index of the document before the block in the same part, or -1.
        vocab_size: all token ids must be below this.

    Returns:
        The index of the last document of the block.

    Raises:
        pyarrow.ArrowInvalid: the file is damaged.
    """
    batch.validate(full=True)  # must come first, because it makes the buffers safe to read
    numbers, documents = batch.columns
    buffers = numbers.buffers() + documents.buffers()
    if not len(numbers) or any(buffer is not None for buffer in buffers[::2]):
        raise pa.ArrowInvalid("empty or missing values")
    # A wrong start would expose bytes of another buffer. Arrow pads buffers to 8 bytes.
    if any(after.address != buffer.address + -(-buffer.size // 8) * 8 for buffer, after in pairwise(buffers[1::2])):
        raise pa.ArrowInvalid("columns have invalid offsets")
    block = _view_block(batch)
    for offsets, end in ((block.documents, len(block.sentences) - 1), (block.sentences, len(block.tokens))):
        if offsets[0] != 0 or offsets[-1] != end or not _increases(offsets):
            raise pa.ArrowInvalid("invalid boundaries of sentences or documents")
    numbers = numbers.to_numpy()
    if numbers[0] <= last_document or not _increases(numbers):
        raise pa.ArrowInvalid("documents are not in order")
    if (highest := block.tokens.max()) >= vocab_size:
        raise pa.ArrowInvalid(f"token id {highest} is outside the vocabulary of {vocab_size}")
    return int(numbers[-1])


def _increases(values: np.ndarray) -> bool:
    return bool((values[1:] > values[:-1]).all())


def _view_block(batch: pa.RecordBatch) -> Block:
    documents = batch.column("sentences")
    sentences = documents.values
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
    )
