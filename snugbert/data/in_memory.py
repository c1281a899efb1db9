"""Rows that users of Python pass: texts, dicts, datasets in any format, and DataFrames of pandas."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from datasets import Dataset, IterableDataset

from snugbert.data.tables import check_header, read_rows
from snugbert.errors import InputError


def load_rows(data: Any, name: str) -> Dataset:
    """Returns rows as a dataset."""
    if isinstance(data, Dataset):
        return data if data.format["type"] == "custom" else data.with_format(None)  # a transform makes the columns
    features = None
    if isinstance(data, IterableDataset):
        features, data = data.features, data.with_format(None)
    is_frame = _is_data_frame(data)
    if isinstance(data, str | Mapping) or not (is_frame or isinstance(data, Iterable)):
        expected = "a datasets.Dataset, a DataFrame or a list of dicts"
        advice = " Pass one of its splits." if isinstance(data, Mapping) else ""
        raise InputError(f"{name}: expected {expected}, not a {type(data).__name__}.{advice}")
    rows = [] if is_frame else [values for _, values in _check_rows(data, f"{name}, ", "a dict")]
    columns = dict.fromkeys(column for values in rows for column in values)
    try:
        if is_frame:
            check_header(name, [*data.columns])
            return Dataset.from_pandas(data, preserve_index=False)
        return Dataset.from_dict({column: [values.get(column) for values in rows] for column in columns}, features)
    except InputError:
        raise
    except (ValueError, TypeError, OverflowError) as error:  # from Arrow
        raise InputError(f"{name}: a column cannot be stored ({error}). Give its values one type.") from error


def number_rows(data: Any, text_column: str | None, expected: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields the number of each row to predict, counted from 1, and its values.

    Args:
        data: as in [`load_rows`], a single row, a text, or an iterable of texts.
        text_column: the column that a text without a column belongs to. None: texts are refused.
        expected: what a row may be, for messages.
    """
    if isinstance(data, Dataset | IterableDataset) or _is_data_frame(data):
        return read_rows(load_rows(data, "rows"))
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
