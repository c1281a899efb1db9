"""Reads rows from TSV, CSV and JSON files, from datasets, and from DataFrames and lists in Python.

Errors name the file and the line or row. The CSV and JSON readers of the datasets library are not used, because they
guess types: "NA" becomes a missing value, "007" a number, and a text that looks like a date becomes a date. They also
accept rows with too many or too few cells.
"""

import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from datasets import ClassLabel, Dataset, IterableDataset, List

from snugbert.data.data_arguments import OnBadText
from snugbert.data.sources import uncompressed_name
from snugbert.data.text_lines import (
    LONGEST_LINE,
    ReadingLog,
    TextFile,
    describe_bad_data,
    explaining_bad_data,
    read_numbered_lines,
    read_text_lines,
)
from snugbert.errors import InputError, format_count, list_columns, suggest_path
from snugbert.files import parse_json

NO_SEPARATOR = "\0"  # for CSV files with one column. Text does not contain this character
# Separators of CSV files, by priority. In languages with a decimal comma, spreadsheets separate columns by semicolons.
SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", NO_SEPARATOR: "a NUL"}
JSON_FORM = (
    'Write one row per line, such as {"text": "...", "label": "..."}, or a single list of rows. In pandas: '
    'to_json(file, orient="records", lines=True).'
)
csv.field_size_limit(LONGEST_LINE)  # the default is 128 kB
# All spaces and line ends, and characters without a width: joiners, directions, soft hyphen, byte order mark.
WITHOUT_WIDTH = (0xAD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
INVISIBLE = "".join([char for char in map(chr, range(0x3001)) if char.isspace()] + [chr(n) for n in WITHOUT_WIDTH])


def read_rows(
    source: Path | Dataset,
    headerless_columns: Sequence[str] = (),
    log: ReadingLog | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Reads the rows of a dataset, or of a .tsv, .csv, .json or .jsonl file, also .gz or .zst.

    TSV files are read like GLUE's: tabs separate columns, and quotes are ordinary characters. The separator of a CSV
    file is the first of comma, semicolon and tab that occurs in the first line. Without a separator, there is one
    column. JSON files contain one object per line, or a single list of objects.

    `headerless_columns` are the columns of a TSV or CSV file without a header. The file has a header if its first row
    contains the last of these names, or if none are given. `log` handles bad rows, by default with an error.
    Broken CSV is always an error. In TSV and CSV files, so is invalid UTF-8, unless `on_bad_text` is "replace".

    Yields the number of the row and its values by column. Rows are counted from 1, including the header and empty
    lines. TSV and CSV values are strings. Class ids of a dataset become names, and missing labels become None.
    """
    if isinstance(source, Dataset):
        return _read_dataset_rows(source)
    file, log = source, log or ReadingLog()
    suffix = uncompressed_name(file).rpartition(".")[2]
    # Leaving out a bad line could make a header or a quoted cell incomplete.
    lines_log = log if log.on_bad_text == "replace" else ReadingLog()
    if suffix in ("tsv", "csv"):
        separator = "\t" if suffix == "tsv" else find_separator(file, lines_log.on_bad_text)
        quoting: Literal[0, 3] = csv.QUOTE_NONE if suffix == "tsv" else csv.QUOTE_MINIMAL
        return _name_cells(file, _read_cells(file, separator, quoting, lines_log), separator, headerless_columns, log)
    if suffix in ("json", "jsonl"):
        return read_json_rows(file, log)
    raise InputError(f"{file}: unknown suffix. Use .tsv, .csv, .json or .jsonl, optionally with .gz or .zst.")


def read_text(values: Mapping[str, Any], column: str) -> str:
    """Returns the text in a column of a row."""
    value = values.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        raise InputError(f"no text in column {column!r}. Fix or remove the row. {list_columns(values)}")
    return str(value)


def read_texts(values: Mapping[str, Any], column: str) -> list[str]:
    """Returns the list of texts in a column of a row."""
    texts = values.get(column)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"no list of texts in column {column!r}. Fix or remove the row.")
    return texts


def clean_label(text: str) -> str:
    """Removes spaces and invisible characters from the ends of a label, and composes its letters (Unicode NFC)."""
    return unicodedata.normalize("NFC", text).strip(INVISIBLE)


def _read_dataset_rows(dataset: Dataset) -> Iterator[tuple[int, dict[str, Any]]]:
    row = 0
    with explaining_bad_data(lambda: f"the dataset, row {row + 1}"):  # Parquet can contain any bytes
        for row, values in enumerate(dataset, start=1):  # a transform of the dataset may add columns
            yield row, {name: _name_classes(value, dataset.features.get(name)) for name, value in values.items()}


def _name_classes(value: Any, feature: Any) -> Any:
    """Replaces class ids by names, and missing labels (-1 in test sets on the Hub) by None. Keeps other values."""
    if isinstance(feature, List) and isinstance(feature.feature, ClassLabel) and value is not None:
        names = [_name_classes(each, feature.feature) for each in value]
        return None if None in names else names
    if not isinstance(feature, ClassLabel):
        return value
    return None if value is None or value < 0 else feature.int2str(value)


def _name_cells(
    file: Path,
    table: Iterable[tuple[int, list[str]]],
    separator: str,
    headerless_columns: Sequence[str],
    log: ReadingLog,
) -> Iterator[tuple[int, dict[str, Any]]]:
    header: list[str] = []
    for row, cells in table:
        if not header and (not headerless_columns or headerless_columns[-1] in cells):
            header = cells
            check_header(file, header)
            continue
        header = header or list(headerless_columns)
        if len(cells) == len(header):
            yield row, dict(zip(header, cells, strict=True))
        else:
            expected = format_count(len(header), "column")
            advice = f"The separator is {SEPARATORS[separator]}. In .csv files, quote cells and names that contain it."
            log.leave_out(file, f"row {row}", f"expected {expected}, found {len(cells)}. {advice}")


def check_header(source: Path | str, header: Sequence[str]) -> None:
    """Checks that all columns have different names. Of columns with the same name, only the last would be read."""
    for position, name in enumerate(header, start=1):
        first = header.index(name) + 1
        if first < position:
            raise InputError(
                f"{source}: columns {first} and {position} are both called {name!r}. Rename or remove one."
            )


def find_separator(file: Path, on_bad_text: OnBadText | None) -> str:
    """Returns the separator of a CSV file. Bytes that are not UTF-8 are an error unless `on_bad_text` is "replace"."""
    log = ReadingLog("replace" if on_bad_text == "replace" else None)
    lines = (line.rstrip("\r\n") for line in read_text_lines(file, log))
    return choose_separator(next(filter(None, lines), ""))


def choose_separator(first: str) -> str:
    """Returns the separator of a CSV file with this first line, or `NO_SEPARATOR` if the line has one column."""
    unquoted = re.sub(r'"[^"]*"', "", first)
    # After an open quote, the first row continues in the next line.
    default = "," if '"' in unquoted else NO_SEPARATOR
    return next((separator for separator in SEPARATORS if separator in unquoted), default)


def _read_cells(
    file: Path, separator: str, quoting: Literal[0, 3], log: ReadingLog
) -> Iterator[tuple[int, list[str]]]:
    lines, row = read_text_lines(file, log), 0
    with explaining_bad_data(lambda: f"{file}, row {row + 1}"):
        # Without `strict`, a quote that is never closed would silently put the rest of the file into one cell.
        rows = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
        for row, cells in enumerate(rows, start=1):
            if cells:
                yield row, cells


def read_json_rows(file: TextFile, log: ReadingLog | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Reads the rows of a JSON file, compressed or not. JSON lines are streamed. A single list is read as a whole."""
    log = log or ReadingLog()
    for row, value in _read_json_values(file, log):
        if isinstance(value, dict):
            yield row, value
        else:
            log.leave_out(file, f"row {row}", f"expected a JSON object, found a {type(value).__name__}. {JSON_FORM}")


def _read_json_values(file: TextFile, log: ReadingLog) -> Iterator[tuple[int, Any]]:
    lines = ((row, line) for row, line in read_numbered_lines(file, log) if line.strip())
    for position, (row, line) in enumerate(lines):
        if position == 0 and line.lstrip().startswith("["):  # a single list of all rows
            text = "".join([line, *(rest for _, rest in lines)])
            with explaining_bad_data(lambda: str(file), JSON_FORM):
                values = parse_json(text)
            yield from enumerate(values, start=1)
            return
        try:
            value = parse_json(line)
        except ValueError as error:
            log.leave_out(file, f"row {row}", describe_bad_data(error, JSON_FORM))
        else:
            yield row, value


# --- rows passed in Python --------------------------------------------------------------------------------------


def make_source(data: Any, name: str) -> Path | Dataset:
    """Converts a path to a `Path`, and other data to a `Dataset`. Messages call the argument `name`."""
    if isinstance(data, str | Path):
        if not Path(data).is_file():
            raise InputError(f"{name}: {data}: no such file.{suggest_path(str(data))}")
        return Path(data)
    if isinstance(data, Dataset):
        return data if data.format["type"] == "custom" else data.with_format(None)  # keeps a transform
    if _is_data_frame(data):
        check_header(name, [*data.columns])
        try:
            return Dataset.from_pandas(data, preserve_index=False)
        except pa.ArrowInvalid:  # lists such as [0, 3, "PER"]
            data = data.to_dict("records")
    features = None
    if isinstance(data, IterableDataset):
        features, data = data.features, data.with_format(None)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        expected = "the path of a file, a datasets.Dataset, a DataFrame or a list of dicts"
        advice = " Pass one of its splits." if isinstance(data, Mapping) else ""
        raise InputError(f"{name}: expected {expected}, not a {type(data).__name__}.{advice}")
    rows = [values for _, values in _check_rows(data, f"{name}, ", "a dict")]
    columns = dict.fromkeys(column for values in rows for column in values)
    table = {column: [values.get(column) for values in rows] for column in columns}
    return Dataset.from_dict(table, features, on_mixed_types="use_json")  # such as [0, 3, "PER"]


def number_rows(data: Any, text_column: str | None, expected: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the number of each row to predict, counted from 1, and its values.

    `data` is a dataset, a DataFrame, an iterable of rows, or one row. A row that is a text belongs to `text_column`.
    """
    if isinstance(data, Dataset | IterableDataset) or _is_data_frame(data):
        return read_rows(make_source(data, "rows"))
    rows = data if isinstance(data, Iterable) and not isinstance(data, str | Mapping) else [data]
    if text_column is not None:
        rows = ({text_column: values} if isinstance(values, str) else values for values in rows)
    return _check_rows(rows, "", expected)


def _check_rows(rows: Iterable[Any], place: str, expected: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for row, values in enumerate(rows, start=1):
        if not isinstance(values, Mapping):
            raise InputError(f"{place}row {row}: expected {expected}, not a {type(values).__name__}.")
        yield row, values


def _is_data_frame(data: Any) -> bool:
    return hasattr(data, "iterrows")  # pandas may not be installed
