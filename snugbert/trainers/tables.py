"""Rows of TSV, CSV and JSON files, read so that whatever is wrong with a file is said with the row it is in."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from snugbert.trainers.command_line import InputError


def read_rows(file: Path, unnamed: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a .tsv, .csv, .json or .jsonl file, also .gz, one after the other.

    TSV is that of GLUE: a tab ends a column and a quote is a quote. JSON is an object a line, or one list of objects.

    Args:
        file: the file; it exists.
        unnamed: the columns of a table that has no header. A table has one if its first row holds the last of these
            names, or if none are given.

    Yields:
        The row's number, counted from 1, header and empty lines included, and its values by column. A TSV or CSV value
        is text.

    Raises:
        InputError: another kind of file, bytes that are not UTF-8, a row that is broken or has too few or too many
            columns; with file and row.
    """
    kind = file.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "tsv":
        return _named(file, _tsv_rows(file), unnamed)
    if kind == "csv":
        return _named(file, _csv_rows(file), unnamed)
    if kind in ("json", "jsonl"):
        return _json_rows(file)
    raise InputError(f"{file}: must be a .tsv, .csv, .json or .jsonl file, or one of these with .gz.")


def _named(
    file: Path, rows: Iterable[tuple[int, list[str]]], unnamed: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] = []
    for row, cells in rows:
        if not header and (not unnamed or unnamed[-1] in cells):
            header = cells
            continue
        header = header or list(unnamed)
        if len(cells) != len(header):
            raise InputError(f"{file}, row {row}: {len(cells)} columns instead of {len(header)}.")
        yield row, dict(zip(header, cells, strict=True))


def _tsv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    for row, line in enumerate(_lines(file), start=1):
        if line := line.rstrip("\r\n"):
            yield row, line.split("\t")


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    row = 0
    try:
        # strict: a quote that is never closed would silently swallow the rest of the file.
        for row, cells in enumerate(csv.reader(_lines(file), strict=True), start=1):
            if cells:
                yield row, cells
    except csv.Error as error:
        raise InputError(f"{file}, row {row + 1}: not CSV ({error}).") from error


def _json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = [(row, line) for row, line in enumerate(_lines(file), start=1) if line.strip()]
    if lines and lines[0][1].lstrip().startswith("["):
        try:
            values = list(enumerate(json.loads("".join(line for _, line in lines)), start=1))
        except json.JSONDecodeError as error:
            raise InputError(f"{file}: not JSON ({error}).") from error
    else:
        values = lines
    for row, value in values:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise InputError(f"{file}, row {row}: not JSON ({error}).") from error
        if not isinstance(value, dict):
            raise InputError(f"{file}, row {row}: a {type(value).__name__} where an object with columns should be.")
        yield row, value


def _lines(file: Path) -> Iterator[str]:
    number = 0
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
        try:
            # Decoded line by line, so that an error can name its line.
            for number, line in enumerate(stream, start=1):
                # A byte order mark at the start of a file is not text.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}, line {number}: not UTF-8 ({error.reason}); convert the file first.") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{file}, after line {number}: not a whole gzip file ({error}).") from error
