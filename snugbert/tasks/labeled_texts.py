"""Reads texts and pairs of texts with their labels from rows: GLUE's data and your own.

    rows -> choose_text_columns -> read_labeled_texts, of each split -> name_vectors

Examples are kept in memory. GLUE's largest task, MNLI, has 393,000 training examples.
"""

import ast
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import ClassLabel, Dataset, List

from snugbert.data.glue import TASKS
from snugbert.data.tables import clean_label, read_rows
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError, format_count, list_columns, shorten
from snugbert.files import parse_json

if TYPE_CHECKING:
    from snugbert.tasks.task_arguments import GlueDataArguments

logger = logging.getLogger(__name__)

ROWS_TO_INSPECT = 100  # rows to read, to tell columns of text from columns of numbers
MAX_LISTED_ROWS = 5  # in a message
# Columns with the index of the example: in GLUE's TSV files, in QQP's files, and in datasets on the Hub.
INDEX_COLUMNS = ("index", "id", "idx")
PREDICTED_COLUMNS = ("label", "predicted_label", "probabilities")  # columns of predictions besides the text columns
UNLABELED_ID = ("-1", "-1.0")  # what GLUE writes for a missing label

# Names of two columns of text, in lower case.
PAIRS = (
    *(task.text_columns for task in TASKS.values() if len(task.text_columns) == 2),
    *(("question", "answer"), ("question", "context")),
    *(("text_a", "text_b"), ("text1", "text2"), ("text", "text_pair")),
)
# Names of one column of text, by priority, in lower case.
TEXT_NAMES = ("text", "sentence", "message", "review", "comment", "tweet", "utterance", "content", "body")
ID_NAME = re.compile(r"(.*[\W_])?(?i:id|idx|index|uuid|guid)|.*[a-z]I[Dd]")

NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
ZEROS, ONES = ("0", "0.0", "False", "false"), ("1", "1.0", "True", "true")  # elements of a label vector
# A list in a cell, as Python writes lists. It needs commas: Python would join the texts of a NumPy array.
ELEMENT = rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{NUMBER.pattern}|True|False"""
LIST = re.compile(rf"\[\s*(?:{ELEMENT})(?:\s*,\s*(?:{ELEMENT}))*\s*\]")
# Other Python values: calls such as array(['joy']), tuples, sets and dictionaries. "(other)" and "{x}" are names.
OTHER_VALUE = re.compile(
    rf"""[\w.]+\(\s*[\[({{].*\)|set\(\)|\{{\s*['"].*\}}|[({{]\s*(?:{ELEMENT})\s*[,:].*[)}}]""", re.DOTALL
)
FORMS = 'a name without brackets, a list of different names, such as ["joy", "love"], or a vector of 0 and 1'


@dataclass
class TextSplit:
    """The examples of a split."""

    name: str  # "train", "unlabeled", "validation", "test", or another split of MNLI, such as "test_mismatched"
    source: str
    text_columns: tuple[str, ...] = ()
    texts: list[list[str]] = field(default_factory=list)  # a list of texts, or two lists for pairs
    labels: list[Any] = field(default_factory=list)  # a label, a list of labels, or None for each example
    indices: list[object] = field(default_factory=list)  # indices of GLUE examples in their source, else positions
    rows: list[int] = field(default_factory=list)  # row of each example in the source, for messages
    values: list[dict[str, object]] = field(default_factory=list)  # all columns but the label. Empty in training
    class_names: tuple[str, ...] = ()  # names of a dataset's classes, by id; for label vectors, LABEL_0 and so on
    are_vectors: bool = False  # whether labels were vectors, see [`name_vectors`]
    split_in_dataset: str | None = None
    limit: int | None = None  # maximum number of examples to use. The labels of all examples are collected
    multi_label: bool = False
    references: np.ndarray | None = None  # from `encode_labels`, for the examples to use

    @property
    def labeled(self) -> bool:
        """Whether every example is labeled."""
        return bool(self.labels) and None not in self.labels

    @property
    def num_examples(self) -> int:
        """The number of examples to use."""
        return len(self.texts[0][: self.limit])


# --- columns ----------------------------------------------------------------------------------------------------


def choose_text_columns(
    args: "GlueDataArguments", data: Path | Dataset, source: str, trained_columns: Sequence[str] = ()
) -> tuple[str, ...]:
    """Returns the column of sentences, or the two columns of pairs."""
    text_columns = args.given_columns
    if args.task is not None:
        return text_columns
    if not text_columns:
        first_rows = [values for _, values in islice(read_rows(data), ROWS_TO_INSPECT)]
        label_column = args.label_column_name or "label"
        text_columns = find_text_columns(first_rows, label_column, source, trained_columns)
        known = (*text_columns, label_column, *INDEX_COLUMNS)
        unread = [repr(name) for name in first_rows[0] if name not in known]
        advice = f" Not read: {shorten(unread)}. Set --text_column_names to read other columns." if unread else ""
        # From Python, only warnings are displayed by default.
        level = logging.WARNING if unread else logging.INFO
        logger.log(level, "%s: text %s.%s", source, describe_columns(text_columns), advice)
    if len(text_columns) > 2 or set(PREDICTED_COLUMNS) & set(text_columns):
        raise InputError(
            f"{source}: cannot read texts from {describe_columns(text_columns)}. Expected one or two columns whose "
            f"names are not {', '.join(PREDICTED_COLUMNS)}."
        )
    return text_columns


def describe_columns(names: Sequence[str]) -> str:
    """Describes columns for messages: "columns 'title' and 'body'"."""
    return f"column{'s' if len(names) > 1 else ''} {' and '.join(map(repr, names))}"


def find_text_columns(
    first_rows: Sequence[Mapping[str, object]], label_column: str, source: str, trained_columns: Sequence[str] = ()
) -> tuple[str, ...]:
    """Finds the text column, or the two columns of a pair, in your own data.

    These are `trained_columns`, or a pair in `PAIRS`, if the rows have them. Otherwise it is one column: the first of
    `TEXT_NAMES`, or the only column of text.
    """
    if not first_rows:
        raise InputError(f"{source}: no examples.")
    if trained_columns and all(name in first_rows[0] for name in trained_columns):
        return tuple(trained_columns)
    by_lower_name = {name.strip().lower(): name for name in first_rows[0] if name != label_column}
    for pair in PAIRS:
        if all(name in by_lower_name for name in pair):
            return tuple(by_lower_name[name] for name in pair)
    found = list_text_columns(first_rows, label_column)
    named = [by_lower_name[name] for name in TEXT_NAMES if by_lower_name.get(name) in found]
    if not named and len(found) != 1:
        problem = "Several columns have text." if found else "No column has text."
        if label_column not in first_rows[0]:
            problem += f" The label column {label_column!r} is missing."
        raise InputError(
            f"{source}: {problem} {list_columns(first_rows[0])} Set --text_column_names and --label_column_name."
        )
    return tuple((named or found)[:1])


def list_text_columns(first_rows: Sequence[Mapping[str, object]], label_column: str) -> list[str]:
    """Returns the columns with texts in most of their filled cells. Numbers do not count as texts, nor do ids."""
    columns = []
    for name in first_rows[0]:
        cells = [row.get(name) for row in first_rows]
        filled = [cell for cell in cells if cell is not None and str(cell).strip() not in ("", "nan")]
        texts = [cell for cell in filled if isinstance(cell, str) and not NUMBER.fullmatch(cell.strip())]
        if texts and 2 * len(texts) >= len(filled) and name != label_column and not ID_NAME.fullmatch(name):
            columns.append(name)
    return columns


# --- examples ---------------------------------------------------------------------------------------------------


def read_labeled_texts(
    data: Path | Dataset, name: str, source: str, args: "GlueDataArguments", text_columns: tuple[str, ...]
) -> TextSplit:
    """Reads the examples of a split. Warns about empty texts."""
    task, labeled, skips = args.task, name.startswith(("train", "validation")), args.on_missing_label == "skip"
    label_column = "" if name == "unlabeled" else args.label_column_name or "label"
    split = TextSplit(
        name,
        source,
        text_columns,
        texts=[[] for _ in text_columns],
        class_names=_list_class_names(data, args.label_column_name or "label"),
        split_in_dataset=str(data.split) if isinstance(data, Dataset) and data.split else None,
        limit=args.max_samples.get(name.partition("_")[0]),
    )
    class_names = {str(i): name for i, name in enumerate(task.labels if task else split.class_names)}
    empty, missing = [], []
    for row, values in _read_renamed_rows(data, args):
        where = f"{source}, row {row}"
        if not split.rows:
            _check_columns(values, split, label_column if labeled and not skips else None, is_glue=task is not None)
        texts = [_read_text(values, column, where) for column in text_columns]
        label = _read_label(values.get(label_column), args, class_names, where)
        if label is None:
            missing.append(row)
            if labeled:
                continue
        if label is not None and isinstance(label, list) != split.multi_label:
            if any(earlier is not None for earlier in split.labels):
                raise InputError(f"{where}: single labels and lists of labels are mixed. Write all labels as lists.")
            split.multi_label = True
        if not all(text.strip() for text in texts):
            empty.append(row)
        for column, text in zip(split.texts, texts, strict=True):
            column.append(text)
        own_indices = [values[column] for column in INDEX_COLUMNS if task and column in values]
        split.indices.append(own_indices[0] if own_indices else len(split.rows))
        if task is None and name not in ("train", "unlabeled"):
            split.values.append({column: value for column, value in values.items() if column != label_column})
        split.labels.append(label)
        split.rows.append(row)
    if name != "unlabeled":
        number = len(split.rows) + len(missing) * labeled
        report_missing_labels(source, label_column, missing, number, args.on_missing_label if labeled else None)
    if not split.rows:
        raise InputError(f"{source}: no examples.")
    if empty:
        count = format_count(len(empty), "row")
        logger.warning("%s: empty text in %s: %s. All rows are kept.", source, count, _list_rows(empty))
    return split


def report_missing_labels(
    source: str, column: str, missing: Sequence[int], number: int, on_missing_label: str | None
) -> None:
    """Reports how many rows of a file or dataset have no label.

    `on_missing_label`: "skip" if the caller leaves out `missing`, otherwise "error". None: labels are not needed.
    """
    all_missing, needed = len(missing) == number, on_missing_label is not None
    if not missing or (all_missing and not needed):
        return
    problem = f"{source}: {len(missing):,} of {format_count(number, 'row')} have no label in column {column!r}"
    problem += f": {_list_rows(missing)}."
    if on_missing_label == "error" or all_missing:
        raise InputError(f"{problem} Add labels{'' if all_missing else ', or set --on_missing_label skip'}.")
    logger.warning("%s %s", problem, "They are left out." if needed else "The rows are predicted, but not scored.")


def _list_rows(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:MAX_LISTED_ROWS])) + " and more" * (len(rows) > MAX_LISTED_ROWS)


def _list_class_names(data: Path | Dataset, column: str) -> tuple[str, ...]:
    """Returns the class names of a dataset's label column. Empty if the column has no class names."""
    label = data.features.get(column) if isinstance(data, Dataset) else None
    label = label.feature if isinstance(label, List) else label
    return tuple(clean_label(name) for name in label.names) if isinstance(label, ClassLabel) else ()


def _read_renamed_rows(data: Path | Dataset, args: "GlueDataArguments") -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yields rows. Columns of GLUE's files are renamed as in the datasets library."""
    if args.task is None:
        yield from read_rows(data)
        return
    new_names = args.task.renamed_columns
    log = ReadingLog("skip", logger.warning) if args.task.skips_torn_rows else None
    for row, values in read_rows(data, args.task.headerless_columns, log):
        yield row, {new_names.get(name, name): value for name, value in values.items()}


def _check_columns(values: Mapping[str, object], split: TextSplit, label_column: str | None, is_glue: bool) -> None:
    """Checks the columns of the first row. `label_column` is None if labels are not required."""
    expected = [*split.text_columns, *([] if label_column is None else [label_column])]
    missing = [name for name in expected if name not in values]
    if missing:
        advice = f"Expected: {', '.join(expected)}." if is_glue else "Set --text_column_names and --label_column_name."
        raise InputError(f"{split.source}: no {describe_columns(missing)}. {list_columns(values)} {advice}")


def _read_text(values: Mapping[str, object], column: str, where: str) -> str:
    value = values.get(column)
    if column in values and (value is None or (isinstance(value, float) and math.isnan(value))):  # an empty cell
        return ""
    if not isinstance(value, str | int | float):
        raise InputError(f"{where}: no text in column {column!r}. {list_columns(values)}")
    return str(value)


# --- labels -----------------------------------------------------------------------------------------------------


def _read_label(
    value: object, args: "GlueDataArguments", class_names: Mapping[str, str], where: str
) -> str | list[str] | None:
    """Converts a cell to a label, or to a list of labels if examples can have several. None: not labeled.

    `class_names` maps ids, written as text, to labels. GLUE's labels are ids or names.
    """
    if args.task is not None:
        label = _read_name(value, where)
        return None if label in UNLABELED_ID else class_names.get(label, label) or None
    if isinstance(value, str):
        text = clean_label(value)
        value = _read_list(text, where)
        if value is None and args.label_separator is not None:
            value = [part for part in text.split(args.label_separator) if clean_label(part)]
        value = text if value is None else value
    if not isinstance(value, list):
        return _read_name(value, where) or None
    labels = [_read_name(part, where) for part in value]
    return [class_names.get(label, label) for label in labels if label]


def _read_name(value: object, where: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str | int | float):
        raise _explain_label(value, where)
    return clean_label(str(value))


def _read_list(text: str, where: str) -> list[Any] | None:
    """Returns the elements of a list that was written as text, in JSON or Python. None: the text is a name."""
    if text[:1] + text[-1:] == "[]":
        with suppress(ValueError):
            return parse_json(text)
        with suppress(ValueError, SyntaxError):
            if LIST.fullmatch(text):
                return ast.literal_eval(text)
        raise _explain_label(text, where)
    if OTHER_VALUE.fullmatch(text):
        raise _explain_label(text, where)
    return None


def _explain_label(label: object, where: str, expected: str = FORMS) -> InputError:
    return InputError(f"{where}: the label {repr(label)[:50]} cannot be read. Expected {expected}.")


def name_vectors(splits: Iterable[TextSplit]) -> None:
    """Converts label vectors to lists of their `class_names`: LABEL_0, LABEL_1 and so on. Sets `are_vectors`.

    The first split with lists of labels decides. The lists are vectors if all elements are 0 or 1, and at least one
    list has several elements. The first list that is not empty sets the size. Ids of known classes are not vectors.
    """
    size: int | None = None  # not known yet
    for split in splits:
        lists = [label for label in split.labels if label] if split.multi_label else []
        if size is None and lists:
            are_vectors = max(map(len, lists)) > 1 and all(map(_is_vector, lists)) and not split.class_names
            size = len(lists[0]) if are_vectors else 0
        for row, label in zip(split.rows, split.labels, strict=True):
            if isinstance(label, list) and not (_is_vector(label, size) if size else _has_names(label)):
                vector = f"a vector of {size} elements, each 0 or 1, as in the first labels"
                raise _explain_label(label, f"{split.source}, row {row}", vector if size else FORMS)
        if size and split.multi_label:
            split.are_vectors = True
            names = split.class_names = tuple(f"LABEL_{i}" for i in range(size))
            split.labels = [
                None if label is None else [name for name, bit in zip(names, label, strict=True) if bit in ONES]
                for label in split.labels
            ]


def _is_vector(label: list[str], size: int | None = None) -> bool:
    return size in (None, len(label)) and all(bit in ONES or bit in ZEROS for bit in label)


def _has_names(label: list[str]) -> bool:
    """Whether a list consists of names. Probabilities are no names, nor are counts if some of them are equal."""
    if not all(NUMBER.fullmatch(part) for part in label):
        return True
    return len(set(label)) == len(label) and all(float(part).is_integer() for part in label)
