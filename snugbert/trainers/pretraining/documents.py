"""Text files or a dataset -> documents -> sentences -> one flat array of word pieces.

A document is a list of lines. Text files hold one paragraph or sentence a line and a blank line between documents;
in .jsonl and .parquet files and in datasets a row is a document. Nothing here holds more than one document of text
at a time. A [`Corpus`] holds 2 bytes a word piece (4 above 65,536 word pieces of vocabulary) and 8 a sentence.
"""

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import sentencex
from tqdm import tqdm

from snugbert.trainers.command_line import InputError
from snugbert.trainers.files import json_rows, lines_of

TEXT_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet")
DOCUMENTS_PER_BATCH = 256  # tokenized in one call: enough to keep every core of the tokenizer busy


def find_files(patterns: list[str]) -> list[Path]:
    """The files that paths and glob patterns name, each pattern's in sorted order, none twice.

    Raises:
        InputError: a pattern matches nothing, or a file is of a kind that is not read.
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
        matches = [match for match in matches if Path(match).is_file()]
        if not matches:
            raise InputError(f"there is no file {pattern}.")
        for match in matches:
            if not match.endswith(TEXT_SUFFIXES):
                raise InputError(f"{match} is not a {', '.join(TEXT_SUFFIXES[:-1])} or {TEXT_SUFFIXES[-1]} file.")
            files[Path(match)] = None
    return list(files)


def read_lines(files: Iterable[Path], text_column: str = "text") -> Iterator[str]:
    """The lines of [`read_documents`] without the boundaries: no more than a line of a text file is in memory."""
    for file in files:
        if file.name.endswith((".txt", ".txt.gz")):
            yield from (stripped for line in lines_of(file) if (stripped := line.strip()))
        else:
            yield from chain.from_iterable(read_documents([file], text_column))


def read_documents(files: Iterable[Path], text_column: str = "text") -> Iterator[list[str]]:
    """Documents of text files, in order.

    Args:
        files: .txt, .jsonl (both also .gz) and .parquet files, see [`find_files`]. A text file's end ends a document.
        text_column: the field of .jsonl and .parquet rows that holds the text.

    Yields:
        A document as its lines, stripped; never an empty line or an empty document.

    Raises:
        InputError: bytes that are not UTF-8, a row that is no JSON object or has no text column; with file and line
            or row.
    """
    for file in files:
        if file.name.endswith((".txt", ".txt.gz")):
            yield from _documents_of_lines(lines_of(file))
        elif file.name.endswith(".parquet"):
            rows = enumerate(_parquet_rows(file, text_column), start=1)
            yield from _documents_of_rows(rows, text_column, str(file))
        else:
            yield from _documents_of_rows(json_rows(file), text_column, str(file))


def read_dataset_documents(
    name: str, config_name: str | None = None, split: str = "train", text_column: str = "text"
) -> Iterator[list[str]]:
    """Documents of a dataset that `datasets.load_dataset` finds by name or folder, a row a document, streamed.

    Raises:
        InputError: the dataset, the configuration or the split does not exist, or has no such column.
    """
    import datasets  # takes seconds to import, and text files do not need it

    try:
        rows = datasets.load_dataset(name, config_name, split=split, streaming=True)
    except (ValueError, OSError) as error:
        raise InputError(f"the dataset {name!r} with split {split!r} cannot be loaded: {error}") from error
    yield from _documents_of_rows(enumerate(rows, start=1), text_column, f"dataset {name}")


def _documents_of_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in lines:
        if line := line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _documents_of_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], text_column: str, source: str
) -> Iterator[list[str]]:
    for number, row in rows:
        if text_column not in row:
            raise InputError(f"{source}, row {number}: there is no column {text_column!r}, only {', '.join(row)}.")
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"{source}, row {number}: column {text_column!r} holds a {type(text).__name__}, not text."
            )
        document = [stripped for line in (text or "").splitlines() if (stripped := line.strip())]
        if document:
            yield document


def _parquet_rows(file: Path, text_column: str) -> Iterator[dict[str, Any]]:
    try:
        parquet = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{file} is not a Parquet file ({error}).") from error
    columns = [text_column] if text_column in parquet.schema_arrow.names else None
    for batch in parquet.iter_batches(batch_size=256, columns=columns):
        yield from batch.to_pylist()


def split_sentences(document: list[str], language: str) -> list[str]:
    """Sentences of a document, in order; a line's end ends a sentence.

    Args:
        document: lines, as [`read_documents`] yields them.
        language: ISO 639-1 code of the language whose rules the sentencex library applies.
    """
    return [
        stripped
        for line in document
        for sentence in sentencex.segment(language, line)
        if (stripped := sentence.strip())
    ]


@dataclass
class Corpus:
    """Word pieces of all documents in one array, and where sentences and documents begin.

    Attributes:
        tokens: word piece ids, no special tokens. *Shape:* (tokens,)
        sentences: offset in `tokens` of each sentence, and of the end. *Shape:* (sentences + 1,)
        documents: index in `sentences` of each document's first sentence, and of the end. *Shape:* (documents + 1,)
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    def __str__(self) -> str:
        return (
            f"{len(self.documents) - 1:,} documents, {len(self.sentences) - 1:,} sentences, "
            f"{len(self.tokens):,} word pieces"
        )


def tokenize_corpus(
    documents: Iterable[list[str]], tokenizer: Any, language: str | None, show_progress: bool = True
) -> Corpus:
    """Splits documents into sentences and sentences into word pieces.

    Args:
        documents: as [`read_documents`] yields them.
        tokenizer: a fast tokenizer.
        language: of the sentence splitter, see [`split_sentences`]; None when lines are sentences already.
        show_progress: whether to show a progress bar, in documents.

    Sentences without a word piece, and documents without a sentence, are left out.
    """
    dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    pieces: list[np.ndarray] = []
    sentence_lengths: list[np.ndarray] = []
    document_lengths: list[int] = []
    remaining = iter(documents)
    with tqdm(desc="tokenizing", unit=" documents", disable=not show_progress) as progress:
        while batch := list(islice(remaining, DOCUMENTS_PER_BATCH)):
            split = [document if language is None else split_sentences(document, language) for document in batch]
            flat = [sentence for document in split for sentence in document]
            ids = tokenizer(
                flat,
                add_special_tokens=False,
                split_special_tokens=True,  # "[MASK]" in a text is three pieces, not the token
                return_token_type_ids=False,
                return_attention_mask=False,
                verbose=False,
            )["input_ids"]
            lengths = np.array([len(sentence) for sentence in ids], dtype=np.int64)
            pieces.append(np.fromiter((piece for sentence in ids for piece in sentence), dtype, count=lengths.sum()))
            sentence_lengths.append(lengths[lengths > 0])
            start = 0
            for document in split:
                kept = int(np.count_nonzero(lengths[start : start + len(document)]))
                start += len(document)
                if kept:
                    document_lengths.append(kept)
            progress.update(len(batch))
    return Corpus(
        tokens=np.concatenate([np.empty(0, dtype), *pieces]),
        sentences=_offsets(np.concatenate([np.empty(0, np.int64), *sentence_lengths])),
        documents=_offsets(np.array(document_lengths, dtype=np.int64)),
    )


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
