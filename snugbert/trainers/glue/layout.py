"""Columns of a row: which hold the text and the label, in GLUE's data and in your own."""

import logging
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from snugbert.errors import InputError
from snugbert.trainers.glue.arguments import GlueDataArguments

logger = logging.getLogger(__name__)

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
ROWS_TO_INSPECT = 100  # to distinguish columns of text from columns of numbers


class Layout(NamedTuple):
    """The columns of a row and the form of its label.

    Attributes:
        text_columns: one column of sentences or two columns of pairs, after renaming.
        label_column: the column of the label, after renaming.
        is_glue: GLUE's data, not your own.
        renamed_columns: column in the file -> name used here, where the two differ.
        label_names: label id as text -> label. "" means that the example is not labeled.
        separator: text between the labels of an example. None: the text is a single label.
    """

    text_columns: tuple[str, ...]
    label_column: str = "label"
    is_glue: bool = False
    renamed_columns: dict[str, str] = {}
    label_names: dict[str, str] = {}
    separator: str | None = None

    def read_label(self, value: object) -> str | list[str] | None:
        """Converts a cell to a label, or to a list of labels if examples can have several. None: not labeled."""
        if self.separator is not None and isinstance(value, str):
            value = [part.strip() for part in value.split(self.separator) if part.strip()]
        if isinstance(value, list):
            return [self.label_names.get(str(part), str(part)) for part in value if part is not None]
        text = "" if value is None else str(value)
        return (self.label_names.get(text, text) if self.is_glue else text) or None


def make_layout(
    data_args: GlueDataArguments,
    rows: Iterable[tuple[int, Mapping[str, object]]],
    class_names: tuple[str, ...],
    source: str,
) -> Layout:
    """Chooses the columns of the text and the label.

    Args:
        data_args: the task, or the column names of your own data.
        rows: number and values of each row. The first rows are inspected if the text columns were not given.
        class_names: the dataset's class names in the order of their ids; empty if it has none.
        source: the file or dataset, for messages.

    Raises:
        InputError: too many text columns were given; or see [`find_text_columns`].
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
        text_columns = find_text_columns(first_rows, label_column, source)
    label_names = {str(i): name for i, name in enumerate(class_names)}
    return Layout(text_columns, label_column, label_names=label_names, separator=data_args.label_separator)


def find_text_columns(first_rows: list[Mapping[str, object]], label_column: str, source: str) -> tuple[str, ...]:
    """Finds the text column, or the two columns of a pair, in your own data, as `run_glue.py` does.

    These are sentence1 and sentence2 if both exist. Otherwise they are the first one or two columns with text, except
    the label. In a text column at most half of the filled cells are numbers.

    Args:
        first_rows: values of the first rows.
        label_column: the column of the label.
        source: the file or dataset, for messages.

    Raises:
        InputError: there is no row, or no text column.
    """
    if not first_rows:
        raise InputError(f"{source}: no examples.")
    names = list(first_rows[0])
    if "sentence1" in names and "sentence2" in names:
        return ("sentence1", "sentence2")

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
    label = f", label column {label_column!r}" if label_column in names else ""
    logger.info("%s: text column %s%s", source, " and ".join(map(repr, text_columns)), label)
    return tuple(text_columns)
