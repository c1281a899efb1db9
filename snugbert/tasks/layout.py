"""Columns of a row: which hold the text and the label, in GLUE's data and in your own."""

import ast
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from snugbert.data.tables import clean_label
from snugbert.errors import InputError
from snugbert.files import check_unicode, parse_json
from snugbert.tasks.classification_arguments import GlueDataArguments

logger = logging.getLogger(__name__)

NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
ROWS_TO_INSPECT = 100  # to distinguish columns of text from columns of numbers
PREDICTED_COLUMNS = ("label", "predicted_label", "probabilities")  # what predictions have besides the text columns

# A list in a cell, as Python and NumPy write lists, tuples and sets. NumPy puts only spaces between elements.
ELEMENT = rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{NUMBER.pattern}|True|False"""
LIST = re.compile(rf"[\[({{]\s*(?:(?:{ELEMENT})(?:(?:\s*,\s*|\s+)(?:{ELEMENT}))*(?:\s*,)?)?\s*[\])}}]")
PAIRS = ("[]", "()", "{}")
# Other Python values in a cell are refused: dictionaries, and calls such as array(['joy'], dtype=object).
DICTIONARY = re.compile(rf"\{{\s*(?:{ELEMENT})\s*:.*\}}", re.DOTALL)
WRAPPED_LIST = re.compile(r"[\w.]+\(\s*[\[({].*\)|(?:frozen)?set\(\)", re.DOTALL)


class Layout(NamedTuple):
    """The columns of a row and the form of its label.

    Attributes:
        text_columns: one column of sentences or two columns of pairs, after renaming.
        label_column: the column of the label, after renaming.
        is_glue: GLUE's data, not your own.
        renamed_columns: column in the file -> name used here, where the two differ.
        label_names: label id as text -> label. "" means that the example is not labeled.
        separator: text between the labels of an example. None: the text is a single label.
        vector_size: number of elements of each label, if labels are vectors of 0 and 1. 0: they are names. None: not
            known yet.
    """

    text_columns: tuple[str, ...]
    label_column: str = "label"
    is_glue: bool = False
    renamed_columns: dict[str, str] = {}
    label_names: dict[str, str] = {}
    separator: str | None = None
    vector_size: int | None = None

    def read_label(self, value: object, where: str) -> str | list[str] | None:
        """Converts a cell to a label, or to a list of labels if examples can have several. None: not labeled.

        Args:
            value: the cell.
            where: the source and row, for messages.

        Raises:
            InputError: the cell has neither a label nor a list of labels, or a label is not valid Unicode.
        """
        if isinstance(value, str) and not self.is_glue:
            value = self._read_cell(clean_label(value), where)
        if isinstance(value, list):
            if self.is_glue:
                raise InputError(f"{where}: the label is a list. Expected a single label.")
            labels = [_read_name(part, where) for part in value]
            return [self.label_names.get(label, label) for label in labels if label]
        label = _read_name(value, where)
        return (self.label_names.get(label, label) if self.is_glue else label) or None

    def _read_cell(self, text: str, where: str) -> str | list[Any]:
        values = _read_list(text, where)
        if values is None and self.separator is not None:
            return [part for part in text.split(self.separator) if clean_label(part)]
        return text if values is None else values


def _read_name(value: object, where: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str | int | float):
        raise InputError(f"{where}: the label is a {type(value).__name__}. Expected text or a number.")
    return check_unicode(clean_label(str(value)), f"{where}: the label")


def _read_list(text: str, where: str) -> list[Any] | None:
    """Reads a list that was written as text: JSON, or a list, tuple or set of Python, or NumPy's array.

    Args:
        text: the cell.
        where: the source and row, for messages.

    Returns:
        The elements. None: a name.

    Raises:
        InputError: it is in square brackets, but not a list of quoted names or numbers; in a call such as array(...);
            or a dictionary.
    """
    brackets = text[:1] + text[-1:]
    if brackets == "[]":
        try:
            return parse_json(text)
        except ValueError:
            pass  # Python's and NumPy's lists are not JSON
    is_list = brackets in PAIRS and LIST.fullmatch(text) is not None
    if is_list and (brackets != "()" or "," in text or text == "()"):  # "(1)" is no tuple
        elements = (match[0] for match in re.finditer(ELEMENT, text))
        try:
            return [ast.literal_eval(element) if element[0] in "'\"" else element for element in elements]
        except (ValueError, SyntaxError):
            pass  # a broken escape
    if brackets == "[]" or WRAPPED_LIST.fullmatch(text) or DICTIONARY.fullmatch(text):
        raise InputError(
            f'{where}: the label {text[:50]!r} is not a list that can be read. Write lists as ["joy", "love"], and '
            "names without brackets."
        )
    return None


def make_layout(
    data_args: GlueDataArguments,
    rows: Iterable[tuple[int, Mapping[str, object]]],
    class_names: tuple[str, ...],
    source: str,
    trained_columns: Sequence[str] = (),
) -> Layout:
    """Chooses the columns of the text and the label.

    Args:
        data_args: the task, or the column names of your own data.
        rows: number and values of each row. The first rows are inspected if the text columns were not given.
        class_names: the dataset's class names in the order of their ids; empty if it has none.
        source: the file or dataset, for messages.
        trained_columns: the text columns of the checkpoint, to use if the rows have them.

    Raises:
        InputError: too many text columns were given, predictions would have another column of the same name, or see
            [`find_text_columns`].
    """
    task = data_args.task
    if task is not None:
        # GLUE's labels are ids or names. An id of -1 means that the example is not labeled.
        label_names = {"-1": "", "-1.0": "", **{str(i): name for i, name in enumerate(task.labels)}}
        return Layout(task.text_columns, is_glue=True, renamed_columns=task.renamed_columns, label_names=label_names)
    label_column = data_args.label_column_name or "label"
    if data_args.text_column_names is not None:
        text_columns = tuple(name.strip() for name in data_args.text_column_names.split(","))
        if len(text_columns) > 2:
            raise InputError(f"--text_column_names: expected one or two columns, not {len(text_columns)}.")
    else:
        first_rows = [values for _, values in islice(rows, ROWS_TO_INSPECT)]
        text_columns = find_text_columns(first_rows, label_column, source, trained_columns)
        label = f", label column {label_column!r}" if label_column in first_rows[0] else ""
        logger.info("%s: text %s%s", source, describe_columns(text_columns), label)
    if taken := set(PREDICTED_COLUMNS) & set(text_columns):
        raise InputError(f"{source}: the text column {min(taken)!r} has the name of a prediction. Rename the column.")
    label_names = {str(i): name for i, name in enumerate(class_names)}
    return Layout(text_columns, label_column, label_names=label_names, separator=data_args.label_separator)


def describe_columns(names: Sequence[str]) -> str:
    """Describes columns for messages: "columns 'title' and 'body'"."""
    return f"column{'s' if len(names) > 1 else ''} {' and '.join(map(repr, names))}"


def find_text_columns(
    first_rows: list[Mapping[str, object]], label_column: str, source: str, trained_columns: Sequence[str] = ()
) -> tuple[str, ...]:
    """Finds the text column, or the two columns of a pair, in your own data, as `run_glue.py` does.

    These are `trained_columns` or sentence1 and sentence2 if they exist. Otherwise they are the first one or two
    columns with text, except the label. In a text column at most half of the filled cells are numbers.

    Args:
        first_rows: values of the first rows.
        label_column: the column of the label.
        source: the file or dataset, for messages.
        trained_columns: the text columns that a checkpoint was trained on.

    Raises:
        InputError: there is no row, or no text column.
    """
    if not first_rows:
        raise InputError(f"{source}: no examples.")
    names = list(first_rows[0])
    for known in (trained_columns, ("sentence1", "sentence2")):
        if known and all(name in names for name in known):
            return tuple(known)

    def holds_text(name: str) -> bool:
        cells = [str(values[name]).strip() for values in first_rows if values.get(name) is not None]
        filled = [cell for cell in cells if cell and cell != "nan"]
        return 2 * sum(NUMBER.fullmatch(cell) is not None for cell in filled) <= len(filled) > 0

    text_columns = [name for name in names if name != label_column and holds_text(name)][:2]
    if not text_columns:
        raise InputError(
            f"{source}: no text column besides the label {label_column!r}. Columns: {', '.join(names)}. "
            "Set --text_column_names and --label_column_name."
        )
    return tuple(text_columns)
