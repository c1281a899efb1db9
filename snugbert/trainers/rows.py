"""Data sets; lines of text files; rows of TSV, CSV and JSON files and of data sets. Errors name line or row."""

import csv
import gzip
import io
import logging
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow
from datasets import ClassLabel, Dataset

from snugbert.errors import InputError
from snugbert.json_files import parse_json

logger = logging.getLogger(__name__)

# Limits in bytes. A megabyte of gzip can hold a line of a gigabyte, and tokenizing a line takes 30 times its size.
# A JSON file may be one line: SQuAD v2.0's training set has 42 MB.
LONGEST_LINE, LONGEST_LINE_OF_JSON = 2**24, 2**26


def read_text_lines(file: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """The lines of a UTF-8 file, plain, .gz or .zst, one after the other, each with its end.

    Args:
        file: the file.
        longest: the longest line allowed, in bytes.

    Raises:
        InputError: bytes that are not UTF-8, a line that is too long, or a compressed file cut short; with file and
            line.
    """
    number = 0
    with _open(file) as stream:
        try:
            # Decoded line by line, so that an error can name its line.
            for number, line in enumerate(iter(lambda: stream.readline(longest + 1), b""), start=1):
                if len(line) > longest:
                    advice = "Split it; in JSON, write one object per line"
                    raise InputError(f"{file}, line {number}: longer than {longest >> 20} MiB. {advice}.")
                # A byte order mark at the start of a file is not text.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}, line {number}: not UTF-8 ({error.reason}); convert the file first.") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{file}, after line {number}: not a whole gzip file ({error}).") from error
        except OSError as error:
            if file.suffix == ".zst":
                raise InputError(f"{file}, after line {number}: not a whole Zstandard file ({error}).") from error
            raise


def _open(file: Path) -> IO[bytes]:
    if file.suffix == ".gz":
        return gzip.open(file, "rb")  # type: ignore[return-value]
    if file.suffix == ".zst":
        return io.BufferedReader(pyarrow.input_stream(str(file), compression="zstd"))
    return file.open("rb")


def read_rows(
    source: Path | Dataset, unnamed: tuple[str, ...] = (), torn_rows: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a data set, or of a .tsv, .csv, .json or .jsonl file, also .gz or .zst, one after the other.

    TSV is that of GLUE: a tab ends a column and a quote is a quote. JSON is an object a line, or one list of objects.

    Args:
        source: the data set, or a file that exists.
        unnamed: the columns of a table that has no header. A table has one if its first row holds the last of these
            names, or if none are given.
        torn_rows: pass over rows of a table with too few or too many columns, and say how many they were.

    Yields:
        The row's number, counted from 1, header and empty lines included, and its values by column. A TSV or CSV value
        is text, a data set's class label its name; None where the label is not told.

    Raises:
        InputError: another kind of file, bytes that are not UTF-8, a row that is broken or has too few or too many
            columns; with file and row.
    """
    if isinstance(source, Dataset):
        return _dataset_rows(source)
    file = source
    kind = file.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    if kind == "tsv":
        return _named(file, _tsv_rows(file), unnamed, torn_rows)
    if kind == "csv":
        return _named(file, _csv_rows(file), unnamed, torn_rows)
    if kind in ("json", "jsonl"):
        return json_rows(file)
    raise InputError(f"{file}: must be a .tsv, .csv, .json or .jsonl file, or one of these with .gz or .zst.")


def _dataset_rows(dataset: Dataset) -> Iterator[tuple[int, dict[str, Any]]]:
    classes = {name: feature for name, feature in dataset.features.items() if isinstance(feature, ClassLabel)}
    for row, values in enumerate(dataset, start=1):
        for name, feature in classes.items():
            # The Hub's test sets have -1 for "not told".
            told = values[name] is not None and values[name] >= 0
            values[name] = feature.int2str(values[name]) if told else None
        yield row, values


def _named(
    file: Path, table: Iterable[tuple[int, list[str]]], unnamed: tuple[str, ...], torn_rows: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] = []
    torn = []
    for row, cells in table:
        if not header and (not unnamed or unnamed[-1] in cells):
            header = cells
            continue
        header = header or list(unnamed)
        if len(cells) == len(header):
            yield row, dict(zip(header, cells, strict=True))
        elif torn_rows:
            torn.append(row)
        else:
            raise InputError(f"{file}, row {row}: {len(cells)} columns instead of {len(header)}.")
    if torn:
        logger.warning("%s: passed over %d rows with missing columns, the first is row %d", file, len(torn), torn[0])


def _tsv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    for row, line in enumerate(read_text_lines(file), start=1):
        if line := line.rstrip("\r\n"):
            yield row, line.split("\t")


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    row = 0
    try:
        # strict: a quote that is never closed would silently swallow the rest of the file.
        for row, cells in enumerate(csv.reader(read_text_lines(file), strict=True), start=1):
            if cells:
                yield row, cells
    except csv.Error as error:
        raise InputError(f"{file}, row {row + 1}: not CSV ({error}).") from error


def json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a JSON file, also compressed, as [`read_rows`] yields them. Lines are streamed, a list not.

    Raises:
        InputError: bytes that are not UTF-8, a line that is not JSON or no object; with file and row.
    """
    for row, value in _json_values(file):
        if not isinstance(value, dict):
            raise InputError(f"{file}, row {row}: a {type(value).__name__} where an object with columns should be.")
        yield row, value


def _json_values(file: Path) -> Iterator[tuple[int, Any]]:
    numbered = enumerate(read_text_lines(file, LONGEST_LINE_OF_JSON), start=1)
    lines = ((row, line) for row, line in numbered if line.strip())
    for position, (row, line) in enumerate(lines):
        if position == 0 and line.lstrip().startswith("["):  # one list of all rows
            text = "".join([line, *(rest for _, rest in lines)])
            try:
                values = parse_json(text)
            except ValueError as error:
                raise InputError(f"{file}: not JSON ({error}).") from error
            yield from enumerate(values, start=1)
            return
        try:
            yield row, parse_json(line)
        except ValueError as error:
            raise InputError(f"{file}, row {row}: not JSON ({error}).") from error
