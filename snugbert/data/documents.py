"""Text files or a dataset -> documents -> sentences.

A document is a list of lines. In text files, each line is a paragraph or a sentence, and a blank line ends a document.
In .jsonl files, .parquet files and datasets, each row is a document. At most one document is in memory at a time.
"""

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import sentencex

from snugbert.data.data_arguments import TextArguments
from snugbert.data.languages import splitter_language
from snugbert.data.tables import read_json_rows
from snugbert.data.text_lines import (
    ReadingLog,
    RemoteText,
    TextFile,
    explaining_bad_data,
    measure_file,
    read_text_lines,
)
from snugbert.errors import InputError, explain_files, join_lines, list_columns
from snugbert.storage.urls import find_entries, hide_credentials, is_url

if TYPE_CHECKING:
    from datasets import DatasetBuilder

LINE_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
TEXT_SUFFIXES = (*LINE_SUFFIXES, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")


def find_files(patterns: Sequence[str]) -> list[TextFile]:
    """Finds the text files that match paths, URLs and glob patterns. See [`match_files`]."""
    files: dict[TextFile, None] = {}
    for pattern in patterns:
        if is_url(pattern):
            found: list[TextFile] = [RemoteText(url, *entry) for url, entry in find_entries(pattern).items()]
        else:
            found = [*match_files([pattern])]
        if not found:
            raise InputError(f"{hide_credentials(pattern)}: no such file. Check the URL.")
        files |= dict.fromkeys(found)
    for file in files:
        if not file.name.endswith(TEXT_SUFFIXES):
            raise InputError(f"{file}: unknown suffix. Use one of {', '.join(TEXT_SUFFIXES)}.")
    return list(files)


def match_files(patterns: Sequence[str]) -> list[Path]:
    """Finds the files that match paths and glob patterns. Sorts the matches of a pattern, and lists a file once."""
    files: dict[Path, None] = {}
    for pattern in patterns:
        matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
        found = [Path(match) for match in matches if Path(match).is_file()]
        if not found:
            raise InputError(explain_files(pattern))
        files |= dict.fromkeys(found)
    return list(files)


def name_files(files: Sequence[TextFile]) -> list[str]:
    """Names files relative to their common folder, so that the names are the same on every machine."""
    paths = [str(file if isinstance(file, RemoteText) else file.resolve()).split("/") for file in files]
    folders = zip(*(path[:-1] for path in paths), strict=False)
    depth = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, folders))
    return ["/".join(path[depth:]) for path in paths]


def read_lines(files: Iterable[TextFile], text_column: str = "text", log: ReadingLog | None = None) -> Iterator[str]:
    """Reads the lines of all documents, without document boundaries. Streams text files line by line."""
    for file in files:
        if file.name.endswith(LINE_SUFFIXES):
            yield from (stripped for line in read_text_lines(file, log) if (stripped := line.strip()))
        else:
            yield from chain.from_iterable(read_documents([file], text_column, log))


def read_documents(
    files: Iterable[TextFile], text_column: str = "text", log: ReadingLog | None = None
) -> Iterator[list[str]]:
    """Yields the stripped lines of each document, without empty lines. The end of a file also ends a document."""
    log = log or ReadingLog()
    for file in files:
        if file.name.endswith(LINE_SUFFIXES):
            stripped = map(str.strip, read_text_lines(file, log))
            yield from (list(lines) for is_text, lines in groupby(stripped, bool) if is_text)
        elif file.name.endswith(".parquet"):
            yield from _split_rows(_read_parquet_rows(file, text_column, log), text_column, file, log)
        else:
            yield from _split_rows(read_json_rows(file, log), text_column, file, log)


def read_dataset_documents(
    text: TextArguments, log: ReadingLog | None = None, shard: tuple[int, int] = (0, 1)
) -> Iterator[list[str]]:
    """Streams the documents of a dataset from the Hub or a folder. Each row is a document.

    `shard`: index of a shard, and number of shards. Each shard reads files that no other shard reads.
    """
    log = log or ReadingLog()
    rows = _load_builder(text).as_streaming_dataset(text.dataset_split).shard(num_shards=shard[1], index=shard[0])
    source, number = f"dataset {text.dataset_name}", 0
    try:
        with log.follow(lambda: number):
            for number, row in enumerate(rows, start=1):
                yield from _split_rows([(number, row)], text.text_column_name, source, log)
    except InputError:
        raise
    except ValueError as error:  # the datasets library stops at text that is not UTF-8 or not JSON
        raise InputError(
            f"{source}, after row {number}: {join_lines(error)}. To skip bad text, download the files and use "
            "--train_file with --on_bad_text skip."
        ) from error


def dataset_version(text: TextArguments) -> str:
    """Returns a string that changes with the dataset's commit on the Hub, or with the times of its local files."""
    # The path of the dataset in the cache: name, configuration, version and hash.
    return "/".join(Path(_load_builder(text).cache_dir).parts[-4:])


def count_dataset_rows(text: TextArguments) -> int | None:
    """Returns the number of rows of the split, or None if the dataset does not state it."""
    split = (_load_builder(text).info.splits or {}).get(text.dataset_split)
    return (split and split.num_examples) or None


def count_dataset_files(text: TextArguments) -> int:
    """Returns the number of files of the split, or of other units that can be read separately."""
    return _load_builder(text).as_streaming_dataset(text.dataset_split).num_shards


def _load_builder(text: TextArguments) -> "DatasetBuilder":
    import datasets  # imported here because it takes seconds, and text files do not need it

    name, split = text.dataset_name, text.dataset_split
    try:
        builder = datasets.load_dataset_builder(name, text.dataset_config_name)
        builder.as_streaming_dataset(split)
    except (ValueError, OSError) as error:
        reason = join_lines(error)
        raise InputError(f"--dataset_name: {name!r} with split {split!r} cannot be loaded: {reason}") from error
    return builder


def _split_rows(
    rows: Iterable[tuple[int, Mapping[str, Any]]], text_column: str, source: TextFile | str, log: ReadingLog
) -> Iterator[list[str]]:
    for number, row in rows:
        text = row.get(text_column)
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            problem = f"expected text in column {text_column!r}, found {found}."
            if text_column not in row:
                problem = f"no column {text_column!r}. {list_columns(row)} Set --text_column_name."
            log.leave_out(source, f"row {number}", problem)
        elif document := [stripped for line in text.splitlines() if (stripped := line.strip())]:
            yield document


def _read_parquet_rows(file: TextFile, text_column: str, log: ReadingLog) -> Iterator[tuple[int, dict[str, Any]]]:
    rows_read = 0
    with explaining_bad_data(lambda: f"{file}, after row {rows_read}"):
        source = file.open("rb") if isinstance(file, RemoteText) else file
        parquet = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        num_rows, size = parquet.metadata.num_rows, measure_file(file)
        columns = [text_column] if text_column in parquet.schema_arrow.names else None
        with log.follow(lambda: size * rows_read // max(num_rows, 1)):
            for batch in parquet.iter_batches(batch_size=256, columns=columns):
                yield from enumerate(batch.to_pylist(), start=rows_read + 1)
                rows_read += len(batch)


def split_sentences(document: Sequence[str], language: str, keep_spaces: bool = False) -> list[str]:
    """Splits a document into sentences. The end of a line ends a sentence."""
    sentences = []
    for line in document:
        space = ""
        for segment in sentencex.segment(splitter_language(language), line):
            if stripped := segment.strip():
                sentences.append(space + stripped)
            space = " " if keep_spaces and segment[-1:].isspace() else ""
    return sentences
