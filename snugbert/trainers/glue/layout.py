"""The columns of a row of GLUE, or of one's own data."""

import logging
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from snugbert.errors import InputError
from snugbert.trainers.glue.arguments import GlueDataArguments

logger = logging.getLogger(__name__)

NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
ROWS_TO_LOOK_AT = 100  # to tell columns of text from those of numbers


class Layout(NamedTuple):
    """What the columns of a row mean; names are those after renaming."""

    sentences: tuple[str, ...]  # the column of the sentence, or the two of the pair
    label: str = "label"
    of_task: bool = False  # of GLUE; otherwise of one's own data
    renamed: dict[str, str] = {}  # columns that have another name in the file
    label_names: dict[str, str] = {}  # of labels that may be told by their id; "" for what tells nothing
    separator: str | None = None  # what stands between the labels of an example; None: a text is one label

    def find_label(self, value: Any) -> str | list[str] | None:
        """The label, or the list of labels where there may be several; None: not told."""
        if self.separator is not None and isinstance(value, str):
            value = [part.strip() for part in value.split(self.separator) if part.strip()]
        if isinstance(value, list):
            return [self.label_names.get(str(part), str(part)) for part in value if part is not None]
        told = "" if value is None else str(value)
        return (self.label_names.get(told, told) if self.of_task else told) or None


def make_layout(
    data_args: GlueDataArguments, rows: Iterator[tuple[int, dict[str, Any]]], labels: tuple[str, ...], source: str
) -> Layout:
    """What the columns mean.

    Args:
        data_args: with the task, or with what is told of one's own data.
        rows: number and values of each row; the first are looked at if nothing else tells the columns of text.
        labels: in the order of their ids, where the data set tells.
        source: where the rows are from, for messages.

    Raises:
        InputError: as in [`sentence_columns`].
    """
    task = data_args.task
    if task is not None:
        # GLUE's labels are ids or names, and -1 where they are not told.
        label_names = {"-1": "", "-1.0": "", **{str(i): name for i, name in enumerate(task.labels)}}
        return Layout(task.sentences, of_task=True, renamed=task.renamed, label_names=label_names)
    label = data_args.label_column_name or "label"
    if data_args.text_column_names is not None:
        sentences = tuple(name.strip() for name in data_args.text_column_names.split(","))
        if len(sentences) > 2:
            raise InputError(f"--text_column_names: an example has one text or two, not {len(sentences)}.")
    else:
        first = [values for _, values in islice(rows, ROWS_TO_LOOK_AT)]
        sentences = sentence_columns(first, label, source)
    label_names = {str(i): name for i, name in enumerate(labels)}
    return Layout(sentences, label, label_names=label_names, separator=data_args.label_separator)


def sentence_columns(first: list[dict[str, Any]], label: str, source: str) -> tuple[str, ...]:
    """The column of the sentence, or the two of the pair, of one's own data; chosen as in `run_glue.py`.

    They are sentence1 and sentence2, or else the first one or two that are not the label and hold text. Such a column
    may have a number here and there, and one of numbers an "NA".

    Args:
        first: the first rows.
        label: the column of the label.
        source: where they are from, for messages.

    Raises:
        InputError: there is no row, or no such column.
    """
    if not first:
        raise InputError(f"{source} holds no examples.")
    names = list(first[0])
    if "sentence1" in names and "sentence2" in names:
        return ("sentence1", "sentence2")

    def holds_text(name: str) -> bool:
        cells = [str(values[name]).strip() for values in first if values.get(name) is not None]
        told = [cell for cell in cells if cell and cell != "nan"]
        return 2 * sum(NUMBER.fullmatch(cell) is not None for cell in told) <= len(told) > 0

    columns = [name for name in names if name != label and holds_text(name)][:2]
    if not columns:
        raise InputError(
            f"{source} has no column of text beside the label {label!r}; its columns are {', '.join(names)} "
            "(--text_column_names and --label_column_name name others)."
        )
    texts = f"column {columns[0]!r} holds" if len(columns) == 1 else f"columns {columns[0]!r} and {columns[1]!r} hold"
    logger.info("%s: %s the text, %r the label", source, texts, label)
    return tuple(columns)
