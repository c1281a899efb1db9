"""Chooses the columns of text to predict from."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from snugbert.errors import InputError, list_columns
from snugbert.tasks.labeled_texts import describe_columns, find_text_columns

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """A task, or a class that predicts with a model of sentence-transformers. [`Task`] describes the attributes."""

    default_columns: ClassVar[tuple[tuple[str, ...], ...]]
    any_columns: ClassVar[bool]
    predicted_columns: ClassVar[tuple[str, ...]]


def choose_columns(
    reader: Reader,
    given: Sequence[str] | None,
    source: str,
    first_rows: Sequence[Mapping[str, Any]],
    trained_columns: tuple[str, ...],
    argument: str = "--text_column_names",
) -> Sequence[str]:
    """Returns the given columns, the columns the model was trained on, or the first default columns that exist.

    Args:
        reader: the task or class that reads the columns.
        given: the columns that the user named. None: choose them.
        source: the name of the input, for messages.
        first_rows: the rows to inspect. Without rows, the columns are not checked.
        trained_columns: the columns that the model was trained on. Empty if it stores no columns.
        argument: the argument that names columns, for messages.

    Raises:
        InputError: a given column or a text column is missing, or the choice of columns is ambiguous.
    """
    numbers: Sequence[int] = sorted({len(names) for names in reader.default_columns})
    present = list(dict.fromkeys(name for values in first_rows for name in values))
    if given is not None:
        if len(given) not in numbers:
            expected = " or ".join(map(str, numbers))
            raise InputError(f"{argument}: this model reads {expected} text columns, not {len(given)}.")
        missing = [name for name in given if first_rows and name not in present]
        if missing:
            raise InputError(f"{source}: no column {missing[0]!r}. {list_columns(present)}")
        return given
    if not first_rows:
        return ("text",) * numbers[0]
    defaults, trained = reader.default_columns, ""
    if len(trained_columns) in numbers:
        trained = f" The model was trained on the {describe_columns(trained_columns)}."
        numbers = (len(trained_columns),)
        defaults = (trained_columns, *(names for names in defaults if len(names) in numbers))
    for names in defaults:
        if all(name in first_rows[0] for name in names):
            return names
    if not reader.any_columns:
        expected = " or ".join(dict.fromkeys(map(describe_columns, defaults)))
        raise InputError(f"{source}: no {expected}. {list_columns(present)} Set {argument}.")
    try:
        found, others = find_text_columns(list(first_rows), "label", source)
    except InputError as error:
        raise InputError(f"{source}: no text column. {list_columns(present)} Set {argument}.") from error
    if others or len(found) != numbers[0]:
        found = (*found, *others)
        problem = "several text columns" if len(found) > numbers[0] else "this model needs two text columns, found"
        raise InputError(f"{source}: {problem}: {', '.join(map(repr, found))}.{trained} Set {argument}.")
    logger.info("%s: text %s", source, describe_columns(found))
    return found
