"""Text files or a dataset -> documents -> sentences.

A document is a list of lines. Text files hold one paragraph or sentence a line and a blank line between documents;
in .jsonl and .parquet files and in datasets a row is a document. Nothing here holds more than one document at a time.
"""

import glob
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet
import sentencex

from snugbert.errors import InputError
from snugbert.trainers.rows import json_rows, read_text_lines
from snugbert.trainers.text_arguments import TextArguments

LINE_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
TEXT_SUFFIXES = (*LINE_SUFFIXES, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


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
        if file.name.endswith(LINE_SUFFIXES):
            yield from (stripped for line in read_text_lines(file) if (stripped := line.strip()))
        else:
            yield from chain.from_iterable(read_documents([file], text_column))


def read_documents(files: Iterable[Path], text_column: str = "text") -> Iterator[list[str]]:
    """Documents of text files, in order.

    Args:
        files: .txt, .jsonl (both also .gz, .zst) and .parquet files, see [`find_files`]. A file's end ends a document.
        text_column: the field of .jsonl and .parquet rows that holds the text.

    Yields:
        A document as its lines, stripped; never an empty line or an empty document.

    Raises:
        InputError: bytes that are not UTF-8, a row that is no JSON object or has no text column; with file and line
            or row.
    """
    for file in files:
        if file.name.endswith(LINE_SUFFIXES):
            yield from _group_lines(read_text_lines(file))
        elif file.name.endswith(".parquet"):
            rows = enumerate(_parquet_rows(file, text_column), start=1)
            yield from _group_rows(rows, text_column, str(file))
        else:
            yield from _group_rows(json_rows(file), text_column, str(file))


def read_dataset_documents(text: TextArguments) -> Iterator[list[str]]:
    """Documents of a dataset that `datasets.load_dataset` finds by name or folder, a row a document, streamed.

    Raises:
        InputError: the dataset, the configuration or the split does not exist, or has no such column.
    """
    rows = _dataset_builder(text).as_streaming_dataset(text.dataset_split)
    yield from _group_rows(enumerate(rows, start=1), text.text_column_name, f"dataset {text.dataset_name}")


def dataset_version(text: TextArguments) -> str:
    """What changes when the dataset does: the commit on the Hub, or the times of local files, by way of `datasets`.

    Raises:
        InputError: as [`read_dataset_documents`].
    """
    # Name, configuration and version, by which `datasets` itself tells what it has in its cache.
    return "/".join(Path(_dataset_builder(text).cache_dir).parts[-4:])


def _dataset_builder(text: TextArguments) -> Any:
    import datasets  # takes seconds to import, and text files do not need it

    name, split = text.dataset_name, text.dataset_split
    try:
        builder = datasets.load_dataset_builder(name, text.dataset_config_name)
        builder.as_streaming_dataset(split)
    except (ValueError, OSError) as error:
        raise InputError(f"the dataset {name!r} with split {split!r} cannot be loaded: {error}") from error
    return builder


def _group_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    document: list[str] = []
    for line in lines:
        if line := line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _group_rows(rows: Iterable[tuple[int, dict[str, Any]]], text_column: str, source: str) -> Iterator[list[str]]:
    for number, row in rows:
        if text_column not in row:
            raise InputError(f"{source}, row {number}: there is no column {text_column!r}, only {', '.join(row)}.")
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"{source}, row {number}: column {text_column!r} holds a {type(text).__name__}, not text."
            )
        # JSON can hold half of a character that takes two; it is none.
        text = (text or "").encode("utf-8", "ignore").decode("utf-8")
        document = [stripped for line in text.splitlines() if (stripped := line.strip())]
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
