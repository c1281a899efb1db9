"""Text files or a dataset -> documents -> sentences.

A document is a list of lines. In text files, each line is a paragraph or a sentence, and a blank line ends a document.
In .jsonl files, .parquet files and datasets, each row is a document. At most one document is in memory at a time.
"""

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import sentencex

from snugbert.errors import InputError
from snugbert.trainers.rows import read_json_rows, read_text_lines
from snugbert.trainers.text_arguments import TextArguments

if TYPE_CHECKING:
    from datasets import DatasetBuilder

LINE_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
TEXT_SUFFIXES = (*LINE_SUFFIXES, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def find_files(patterns: Sequence[str]) -> list[Path]:
    """Finds the text files that match paths and glob patterns. Sorts the matches of a pattern, and lists a file once.

    Raises:
        InputError: a pattern matches no file, or the suffix of a file is not in [`TEXT_SUFFIXES`].
    """
    files: dict[Path, None] = {}
    for pattern in patterns:
        matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
        matches = [match for match in matches if Path(match).is_file()]
        if not matches:
            raise InputError(f"{pattern}: no such file.")
        for match in matches:
            if not match.endswith(TEXT_SUFFIXES):
                raise InputError(f"{match}: unknown suffix. Use one of {', '.join(TEXT_SUFFIXES)}.")
            files[Path(match)] = None
    return list(files)


def read_lines(files: Iterable[Path], text_column: str = "text") -> Iterator[str]:
    """Reads the lines of all documents, without document boundaries. Streams text files line by line."""
    for file in files:
        if file.name.endswith(LINE_SUFFIXES):
            yield from (stripped for line in read_text_lines(file) if (stripped := line.strip()))
        else:
            yield from chain.from_iterable(read_documents([file], text_column))


def read_documents(files: Iterable[Path], text_column: str = "text") -> Iterator[list[str]]:
    """Reads the documents of text files, in order. The end of a file ends a document.

    Args:
        files: .txt and .jsonl files (both also .gz and .zst) and .parquet files, see [`find_files`].
        text_column: the column of .jsonl and .parquet rows that holds the text.

    Yields:
        The stripped lines of a document. Empty lines and empty documents are left out.

    Raises:
        InputError: bytes are not UTF-8, or a row is not a JSON object or has no text column. The message names the
            file and the line or row.
    """
    for file in files:
        if file.name.endswith(LINE_SUFFIXES):
            yield from _group_lines(read_text_lines(file))
        elif file.name.endswith(".parquet"):
            rows = enumerate(_read_parquet_rows(file, text_column), start=1)
            yield from _split_rows(rows, text_column, str(file))
        else:
            yield from _split_rows(read_json_rows(file), text_column, str(file))


def read_dataset_documents(text: TextArguments) -> Iterator[list[str]]:
    """Streams the documents of a dataset from the Hub or a folder. Each row is a document.

    Raises:
        InputError: the dataset, the configuration, the split or the column does not exist.
    """
    rows = _load_builder(text).as_streaming_dataset(text.dataset_split)
    yield from _split_rows(enumerate(rows, start=1), text.text_column_name, f"dataset {text.dataset_name}")


def dataset_version(text: TextArguments) -> str:
    """Returns a string that changes with the dataset's commit on the Hub, or with the times of its local files.

    Raises:
        InputError: see [`read_dataset_documents`].
    """
    # The path of the dataset in the cache: name, configuration, version and hash.
    return "/".join(Path(_load_builder(text).cache_dir).parts[-4:])


def _load_builder(text: TextArguments) -> "DatasetBuilder":
    import datasets  # imported here because it takes seconds, and text files do not need it

    name, split = text.dataset_name, text.dataset_split
    try:
        builder = datasets.load_dataset_builder(name, text.dataset_config_name)
        builder.as_streaming_dataset(split)
    except (ValueError, OSError) as error:
        raise InputError(f"--dataset_name: {name!r} with split {split!r} cannot be loaded: {error}") from error
    return builder


def _group_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Splits the lines of a text file into documents at blank lines."""
    document: list[str] = []
    for line in lines:
        if line := line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _split_rows(rows: Iterable[tuple[int, Mapping[str, Any]]], text_column: str, source: str) -> Iterator[list[str]]:
    """Splits the text of each row into lines."""
    for number, row in rows:
        if text_column not in row:
            raise InputError(
                f"{source}, row {number}: no column {text_column!r}. Columns: {', '.join(row)}. Set "
                "--text_column_name."
            )
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"{source}, row {number}: expected text in column {text_column!r}, found a {type(text).__name__}."
            )
        # JSON can hold half of a surrogate pair, which is not a character.
        text = (text or "").encode("utf-8", "ignore").decode("utf-8")
        document = [stripped for line in text.splitlines() if (stripped := line.strip())]
        if document:
            yield document


def _read_parquet_rows(file: Path, text_column: str) -> Iterator[dict[str, Any]]:
    try:
        parquet = pyarrow.parquet.ParquetFile(file)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{file}: not a Parquet file ({error}).") from error
    columns = [text_column] if text_column in parquet.schema_arrow.names else None
    for batch in parquet.iter_batches(batch_size=256, columns=columns):
        yield from batch.to_pylist()


def split_sentences(document: Sequence[str], language: str) -> list[str]:
    """Splits a document into sentences. The end of a line ends a sentence.

    Args:
        document: the lines of the document, as [`read_documents`] yields them.
        language: ISO 639-1 code of the language whose rules the sentencex library applies.
    """
    return [
        stripped
        for line in document
        for sentence in sentencex.segment(language, line)
        if (stripped := sentence.strip())
    ]
