"""Reads texts and pairs of texts with their labels from rows.

Examples are kept in memory. GLUE's largest task, MNLI, has 393,000 training examples.
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.data.tables import clean_label
from snugbert.errors import InputError, format_count, shorten
from snugbert.files import check_unicode
from snugbert.tasks.layout import NUMBER, Layout, describe_columns

logger = logging.getLogger(__name__)

# Columns with the example's own index: in GLUE's TSV files, in QQP's, and in datasets on the Hub.
INDEX_COLUMNS = ("index", "id", "idx")
MAX_LISTED_ROWS = 5  # in a message
# Elements of a label vector, as JSON, Python and NumPy write them.
BITS = {
    **dict.fromkeys(("0", "0.0", "0.", "False", "false"), 0),
    **dict.fromkeys(("1", "1.0", "1.", "True", "true"), 1),
}


@dataclass
class TextSplit:
    """The examples of a split.

    Attributes:
        name: "train", "unlabeled", "validation", "test", or another split of GLUE.
        source: the file or dataset, for messages.
        data: the columns that [`read_examples`] returns.
        layout: the columns in the source.
        labeled: whether every example is labeled.
        class_names: the dataset's class names in the order of their ids; empty if it has none.
        split_in_dataset: the name of the split in the dataset. None for a file.
        limit: maximum number of examples to use, from the start. Labels are collected from all. None: all.
        references: what [`encode_labels`] returns for the examples to use. None: not labeled, or labels are not chosen
            yet.
    """

    name: str
    source: str
    data: Dataset
    layout: Layout
    labeled: bool = False
    class_names: tuple[str, ...] = ()
    split_in_dataset: str | None = None
    limit: int | None = None
    references: np.ndarray | None = None

    @property
    def num_examples(self) -> int:
        """The number of examples to use."""
        return len(self.data) if self.limit is None else min(self.limit, len(self.data))

    @property
    def multi_label(self) -> bool:
        """Whether an example can have several labels."""
        return isinstance(self.data.features["label"], List)

    @property
    def vector_size(self) -> int:
        """The number of elements of each label, if labels are vectors of 0 and 1. 0: they are names."""
        return self.layout.vector_size or 0


def list_class_names(data: Path | Dataset, column: str) -> tuple[str, ...]:
    """Returns the class names of a dataset's label column. Empty if it has none."""
    label = data.features.get(column) if isinstance(data, Dataset) else None
    label = label.feature if isinstance(label, List) else label
    return tuple(clean_label(name) for name in label.names) if isinstance(label, ClassLabel) else ()


def read_examples(
    rows: Iterable[tuple[int, Mapping[str, object]]], source: str, layout: Layout, labeled: bool
) -> tuple[Dataset, Layout]:
    """Converts the rows from [`read_rows`] to examples. Warns about empty texts.

    Args:
        rows: number and values of each row.
        source: the file or dataset, for messages.
        layout: the columns of a row.
        labeled: whether every example must have a label.

    Returns:
        A dataset with the columns below, and the layout, with the size of the label vectors.

        - text and, for pairs, text_pair.
        - label: text, or a list of texts if examples can have several labels, or a list of 0 and 1 if labels are
          vectors. None: not labeled.
        - index: the index of a GLUE example in its source, otherwise its position.
        - row: the row in the source, for messages.

    Raises:
        InputError: there are no rows, a column is missing, a row has no text or no required label, single labels and
            lists of labels are mixed, or see [`read_vectors`]. The message names source and row.
    """
    names = ("text", "text_pair")[: len(layout.text_columns)]
    examples: dict[str, list[Any]] = {name: [] for name in (*names, "label", "index", "row")}
    empty = []
    label_type: type = str
    for row, original in rows:
        values = {layout.renamed_columns.get(name, name): value for name, value in original.items()}
        if not examples["row"]:
            _check_columns(values, layout, source, labeled)
        for name, column in zip(names, layout.text_columns, strict=True):
            examples[name].append(_read_text(values, column, f"{source}, row {row}"))
        if not all(examples[name][-1].strip() for name in names):
            empty.append(row)
        label = layout.read_label(values.get(layout.label_column), f"{source}, row {row}")
        if label is None and labeled:
            advice = "Add it, or remove the row."
            if layout.label_column not in values:
                advice = f"Columns: {', '.join(values)}."
            raise InputError(f"{source}, row {row}: no label in column {layout.label_column!r}. {advice}")
        if label is not None and not isinstance(label, label_type):
            if any(earlier is not None for earlier in examples["label"]):
                raise InputError(
                    f"{source}, row {row}: single labels and lists of labels are mixed. Write all of them as lists."
                )
            label_type = type(label)
        examples["label"].append(label)
        indices = [values[name] for name in INDEX_COLUMNS if layout.is_glue and name in values]
        index = str(indices[0] if indices else len(examples["row"]))
        examples["index"].append(check_unicode(index, f"{source}, row {row}: the index"))
        examples["row"].append(row)
    if not examples["row"]:
        raise InputError(f"{source}: no examples.")
    if empty:
        listed = ", ".join(map(str, empty[:MAX_LISTED_ROWS])) + " and more" * (len(empty) > MAX_LISTED_ROWS)
        count = format_count(len(empty), "row")
        logger.warning("%s: empty text in %s: %s. All rows are kept.", source, count, listed)
    text = Value("string")
    label_feature: Any = text
    if label_type is list:
        label_feature = List(text)
        if not layout.label_names:  # ids of known classes are not vectors
            layout = layout._replace(vector_size=find_vector_size(examples["label"], layout.vector_size))
        if layout.vector_size:
            label_feature = List(Value("int8"))
            examples["label"] = read_vectors(examples["label"], examples["row"], source, layout.vector_size)
        else:
            _refuse_numbers(examples["label"], examples["row"], source)
    features = dict.fromkeys(examples, text) | {"row": Value("int64"), "label": label_feature}
    return Dataset.from_dict(examples, Features(features)), layout


def find_vector_size(labels: list[list[str] | None], known: int | None) -> int | None:
    """Returns the number of elements of label vectors. 0: the labels are lists of names. None: there are none.

    If all elements of all lists are 0 or 1, and a list has more than one, they are vectors. Then the first list that
    is not empty has the right size.

    Args:
        labels: the label of each example. None: not labeled.
        known: the result for earlier data.
    """
    given = [label for label in labels if label is not None]
    if known is not None or not any(given):
        return known
    vectors = max(map(len, given)) > 1 and all(part in BITS for label in given for part in label)
    return len(next(filter(None, given))) if vectors else 0


def read_vectors(labels: list[list[str] | None], rows: list[int], source: str, size: int) -> list[list[int] | None]:
    """Converts vectors to lists of the numbers 0 and 1.

    Args:
        labels: the label of each example. None: not labeled.
        rows: the row of each example, for messages.
        source: the file or dataset, for messages.
        size: the number of elements.

    Raises:
        InputError: a list is not a vector of this size.
    """
    for row, label in zip(rows, labels, strict=True):
        if label is not None and not (len(label) == size and all(part in BITS for part in label)):
            raise InputError(
                f"{source}, row {row}: expected a vector of {size} elements, each 0 or 1, as in the first labels. "
                f"Found {shorten(label) or 'no elements'}. If 0 and 1 are names of labels, rename them."
            )
    return [None if label is None else [BITS[part] for part in label] for label in labels]


def _refuse_numbers(labels: list[list[str] | None], rows: list[int], source: str) -> None:
    """Refuses lists of numbers that cannot be names, such as probabilities and counts."""
    for row, label in zip(rows, labels, strict=True):
        numbers = label is not None and all(NUMBER.fullmatch(part) for part in label)
        if label and numbers and (len(set(label)) < len(label) or any(not float(n).is_integer() for n in label)):
            raise InputError(
                f"{source}, row {row}: the label {shorten(label)} is not a list of different names. Write names, such "
                'as ["joy", "love"], in all rows and files, or vectors of 0 and 1.'
            )


def _read_text(values: Mapping[str, object], column: str, where: str) -> str:
    value = values.get(column)
    if column in values and (value is None or (isinstance(value, float) and math.isnan(value))):  # an empty cell
        return ""
    if not isinstance(value, str | int | float):
        raise InputError(f"{where}: no text in column {column!r}. Columns: {', '.join(values)}.")
    return check_unicode(str(value), f"{where}: column {column!r}")


def _check_columns(values: Mapping[str, object], layout: Layout, source: str, labeled: bool) -> None:
    columns = f"Columns: {', '.join(values)}."
    if len(values) == 1 and re.search(r"[,;|\t]", "".join(values)):
        columns += " Separate columns by tabs in .tsv files, and by commas, semicolons or tabs in .csv files."
    if labeled and layout.label_column not in values and not layout.is_glue:
        # The text columns are not mentioned: if they were not given, one of them may be the label.
        raise InputError(f"{source}: no column {layout.label_column!r}. {columns} Set --label_column_name.")
    expected = [*layout.text_columns, *([layout.label_column] if labeled else [])]
    for name in expected:
        check_unicode(name, f"{source}: the name of a column")
    missing = [name for name in expected if name not in values]
    if missing:
        advice = "Set --text_column_names and --label_column_name."
        advice = f"Expected: {', '.join(expected)}." if layout.is_glue else advice
        raise InputError(f"{source}: no {describe_columns(missing)}. {columns} {advice}")
