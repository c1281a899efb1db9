"""The part files of a prepared corpus: their format, and the blocks in them.

A part is an Arrow stream of blocks. The metadata of its schema is a record of `continuation.py`: the settings of the
corpus, and under `text` the digest of each text file or of the dataset, by name. Names of files are relative to the
common folder of all text files, so that they are the same on every machine. [`Block`] is a view of one block.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from snugbert.errors import InputError

KIND = "a prepared corpus"  # see `continuation.py`
FORMAT = 1  # version of the files; other versions are refused
TEXT = "text"  # setting of a part: the digests of its text
WORDS = "continues_word"  # column of word bits, and the setting of a corpus that has this column
DATASET = "dataset "  # prefix of the name of a dataset, in the names of sources
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # the last bytes of an Arrow stream
# Arrow types of the columns of text and words.
_TEXT_TYPES = [pa.list_(pa.list_(number)) for number in (pa.uint16(), pa.uint32())]
TYPES = [[text, *words] for text in _TEXT_TYPES for words in ([], [pa.list_(pa.bool_())])]
ARROW_ERRORS = (pa.ArrowException, OSError)  # raised when a damaged file is read


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
        settings = record["settings"]
        if settings["format"] == FORMAT:
            types = [schema.field("sentences").type]
            types += [schema.field(WORDS).type] if WORDS in schema.names else []
            strings = [settings["tokenizer"], *settings[TEXT].values()]
            is_whole = types in TYPES and all(isinstance(text, str) for text in strings)
            if not is_whole:
                raise pa.ArrowInvalid("columns or settings have the wrong type")
            return record
    except (AttributeError, LookupError, TypeError, RecursionError, json.JSONDecodeError, UnicodeError) as error:
        raise pa.ArrowInvalid("not part of a corpus") from error
    raise InputError(
        f"The corpus has format {settings['format']!r}, but this version of SnugBERT reads format {FORMAT}. Install "
        "the version that wrote it, or prepare the text again."
    )


def shared_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that all parts of a corpus share: all but the text files, which differ."""
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
    return Block(
        tokens=sentences.values.to_numpy(zero_copy_only=True),
        sentences=sentences.offsets.to_numpy(zero_copy_only=True),
        documents=documents.offsets.to_numpy(zero_copy_only=True),
        word_bits=_view_bits(batch.column(WORDS).values) if WORDS in batch.schema.names else None,
    )


def _view_bits(values: pa.BooleanArray) -> np.ndarray:
    return np.frombuffer(values.buffers()[1], np.uint8)[: (len(values) + 7) // 8]
