"""Reads examples from GLUE's TSV files, from your own files, or from a dataset.

Examples are kept in memory. GLUE's largest task, MNLI, has 393,000 training examples.
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.data.glue import GLUE_ON_THE_HUB, GLUE_SPLITS, GlueTask
from snugbert.data.sources import SPLITS, choose_splits, load_dataset_splits
from snugbert.data.tables import clean_label, read_rows
from snugbert.errors import InputError, format_count, shorten
from snugbert.files import check_unicode
from snugbert.tasks.classification_arguments import GlueDataArguments
from snugbert.tasks.layout import NUMBER, Layout, describe_columns, make_layout

logger = logging.getLogger(__name__)

# Columns with the example's own index: in GLUE's TSV files, in QQP's, and in datasets on the Hub.
INDEX_COLUMNS = ("index", "id", "idx")
MAX_LISTED_ROWS = 5  # in a message
# Elements of a label vector, as JSON, Python and NumPy write them.
BITS = {
    **dict.fromkeys(("0", "0.0", "0.", "False", "false"), 0),
    **dict.fromkeys(("1", "1.0", "1.", "True", "true"), 1),
}


class GlueSplit(NamedTuple):
    """The examples of a split.

    Attributes:
        source: the file or dataset, for messages.
        data: the columns that [`read_examples`] returns.
        layout: the columns in the source.
        class_names: the dataset's class names in the order of their ids; empty if it has none.
        name: the name of the split in the dataset; None for a file.
    """

    source: str
    data: Dataset
    layout: Layout
    class_names: tuple[str, ...] = ()
    name: str | None = None

    @property
    def labeled(self) -> bool:
        """Whether every example is labeled."""
        return None not in self.data["label"][:]

    @property
    def multi_label(self) -> bool:
        """Whether an example can have several labels."""
        return isinstance(self.data.features["label"], List)

    @property
    def vector_size(self) -> int:
        """The number of elements of each label, if labels are vectors of 0 and 1. 0: they are names."""
        return self.layout.vector_size or 0


def load_splits(
    data_args: GlueDataArguments,
    wanted: tuple[str, ...] | None,
    trained_columns: Sequence[str] = (),
    **download: Any,
) -> dict[str, GlueSplit]:
    """Reads the splits that the arguments select.

    Args:
        data_args: the data to read.
        wanted: which of "train", "validation" and "test" to read. None: train and validation if they exist, and
            test if a test file was given.
        trained_columns: the text columns that the checkpoint was trained on. Without training examples, they are
            preferred.
        download: passed on to `datasets.load_dataset`.

    Returns:
        The splits that exist among `GLUE_SPLITS[name]` of each wanted name, in that order. "train" includes
        "unlabeled", the examples that only a teacher labels.

    Raises:
        InputError: a split, folder or dataset does not exist; or see [`read_examples`].
    """
    found: dict[str, Path | Dataset] = dict(_find_files(data_args))
    if not found and (data_args.dataset_name or data_args.task_name):
        found.update(_find_dataset(data_args, wanted, **download))
    if data_args.unlabeled_file is not None:
        found["unlabeled"] = Path(data_args.unlabeled_file)
    available = [split for split in SPLITS if any(name in found for name in GLUE_SPLITS[split])]
    wanted = choose_splits(wanted, available, data_args.test_file is not None, "examples")
    splits = {}
    layout = None
    for split in wanted:
        for name in GLUE_SPLITS[split]:
            if name not in found:
                continue
            data = found[name]
            class_names: tuple[str, ...] = ()
            split_name = None
            if isinstance(data, Path):
                source = str(data)
            else:
                source = f"{data_args.dataset_name or GLUE_ON_THE_HUB} ({name})"
                class_names = _class_names(data, data_args.label_column_name or "label")
                split_name = str(data.split)
            # All splits use the text columns of the first split.
            if layout is None:
                preferred = () if split == "train" else trained_columns
                layout = make_layout(data_args, _read_rows(data, data_args.task), class_names, source, preferred)
            # A column of labels in an unlabeled file is not read.
            used = layout._replace(label_column="") if name == "unlabeled" else layout
            labeled = name != "unlabeled" and split != "test"
            examples, used = read_examples(_read_rows(data, data_args.task), source, used, labeled)
            splits[name] = GlueSplit(source, examples, used, class_names, split_name)
            # The first labels decide whether all are vectors.
            layout = layout._replace(vector_size=used.vector_size)
    return splits


def missing_files(data_dir: str, task: GlueTask, wanted: tuple[str, ...]) -> list[Path]:
    """Lists the files of the `wanted` splits that do not exist in the task's folder under `data_dir`."""
    found = _find_task_files(Path(data_dir) / task.folder, task)
    missing = [split for split in wanted if not any(name in found for name in GLUE_SPLITS[split])]
    return [Path(data_dir) / task.folder / f"{task.files[split][0]}.tsv" for split in missing]


def _find_task_files(folder: Path, task: GlueTask) -> dict[str, Path]:
    found = {}
    for name, stems in task.files.items():
        candidates = [folder / f"{stem}.tsv{suffix}" for stem in stems for suffix in ("", ".gz")]
        existing = [file for file in candidates if file.is_file()]
        if existing:
            found[name] = existing[0]
    return found


def _find_files(data_args: GlueDataArguments) -> dict[str, Path]:
    found = {}
    task = data_args.task
    if data_args.data_dir is not None and task is not None:
        folder = Path(data_args.data_dir)
        folder = folder / task.folder if (folder / task.folder).is_dir() else folder
        found = _find_task_files(folder, task)
        if not found:
            expected = ", ".join(f"{task.files[split][0]}.tsv" for split in SPLITS)
            raise InputError(f"--data_dir: no {task.folder} files in {folder}. Expected {expected}.")
    return found | data_args.files


def _find_dataset(data_args: GlueDataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, Dataset]:
    if data_args.dataset_name is not None:
        splits = load_dataset_splits(data_args.dataset_name, data_args.dataset_config_name, **download)
    else:
        splits = load_dataset_splits(GLUE_ON_THE_HUB, data_args.task_name, **download)
    names = ("train", "validation", "validation_mismatched", "test", "test_mismatched")
    found = {name: splits[n] for name in names for n in (f"{name}_matched", name) if n in splits}
    if data_args.dataset_name is None and data_args.task_name == "mnli" and "test" in (wanted or ()):
        found["diagnostic"] = load_dataset_splits(GLUE_ON_THE_HUB, "ax", **download)["test"]
    return found


def _class_names(dataset: Dataset, column: str) -> tuple[str, ...]:
    label = dataset.features.get(column)
    label = label.feature if isinstance(label, List) else label
    return tuple(clean_label(name) for name in label.names) if isinstance(label, ClassLabel) else ()


def _read_rows(source: Path | Dataset, task: GlueTask | None) -> Iterator[tuple[int, Mapping[str, object]]]:
    return read_rows(source) if task is None else read_rows(source, task.headerless_columns, task.skips_torn_rows)


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
        A dataset with the columns

        - text and, for pairs, text_pair.
        - label: text, or a list of texts if examples can have several labels, or a list of 0 and 1 if labels are
          vectors. None: not labeled.
        - index: the index of a GLUE example in its source, otherwise its position.
        - row: the row in the source, for messages.

        Also returns the layout, with the size of the label vectors.

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
