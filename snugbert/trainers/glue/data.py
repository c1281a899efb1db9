"""Examples of GLUE's TSV files, of one's own files, or of a datasets name.

Examples are held in memory, 393,000 at most in GLUE (MNLI).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.errors import InputError
from snugbert.trainers.glue.arguments import GlueDataArguments
from snugbert.trainers.glue.benchmark import GLUE_ON_THE_HUB, SETS, GlueTask
from snugbert.trainers.glue.layout import Layout, make_layout
from snugbert.trainers.rows import read_rows
from snugbert.trainers.splits import load_dataset_splits

# Where examples have their number: GLUE's TSV files, QQP's, and the datasets of the Hub.
INDEX_COLUMNS = ("index", "id", "idx")


class GlueSplit(NamedTuple):
    """The examples of training, or of a set that is scored or predicted."""

    source: str  # the file or data set they come from, for messages
    data: Dataset  # as [`read_examples`] makes it
    labels: tuple[str, ...] = ()  # in the order of their ids, where the source tells

    @property
    def labelled(self) -> bool:
        """Whether the label of every example is told."""
        return None not in self.data["label"][:]

    @property
    def multi_label(self) -> bool:
        """Whether an example may have any number of labels."""
        return isinstance(self.data.features["label"], List)


def load_splits(data_args: GlueDataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, GlueSplit]:
    """Reads the examples that the arguments name.

    Args:
        data_args: what to read.
        wanted: those of "train", "validation" and "test" to read; None: train and validation, as far as there are any,
            and a test file.
        download: goes to `datasets.load_dataset`.

    Returns:
        What there is of the sets that `SETS` has for `wanted`, by their names there and in that order.

    Raises:
        InputError: a file, folder or data set does not exist or is not what was wanted; or as in [`read_examples`].
    """
    found = _find_files(data_args) or _find_dataset(data_args, wanted, **download)
    if wanted is None:
        # A test file would not have been named for nothing. A data set or a folder just has one.
        parts = ("train", "validation", *(("test",) if data_args.test_file is not None else ()))
        wanted = tuple(part for part in parts if any(name in found for name in SETS[part]))
        if not wanted:
            raise InputError("there is nothing to train on and nothing to score; name it with --train_file.")
    splits = {}
    layout = None
    for part in wanted:
        if not any(name in found for name in SETS[part]):
            where = f" in {data_args.data_dir}" if data_args.data_dir is not None else ""
            raise InputError(f"there are no {part} examples{where}; name a file of them with --{part}_file.")
        for name in SETS[part]:
            if name not in found:
                continue
            data = found[name]
            dataset = data_args.dataset_name or GLUE_ON_THE_HUB
            source = str(data) if isinstance(data, Path) else f"the {name} examples of {dataset}"
            labels = () if isinstance(data, Path) else _class_names(data, data_args.label_column_name or "label")
            # What was the text in training is the text of the others, too.
            layout = layout or make_layout(data_args, _rows(data, data_args.task), labels, source)
            examples = read_examples(_rows(data, data_args.task), source, layout, labelled=part != "test")
            splits[name] = GlueSplit(source, examples, labels)
    return splits


def missing_files(data_dir: str, task: GlueTask, wanted: tuple[str, ...]) -> list[Path]:
    """The files that `wanted` needs of a task's own folder in `data_dir`, and that are not there."""
    found = _glue_files(Path(data_dir) / task.folder, task)
    missing = [part for part in wanted if not any(name in found for name in SETS[part])]
    return [Path(data_dir) / task.folder / f"{task.files[part][0]}.tsv" for part in missing]


def _glue_files(folder: Path, task: GlueTask) -> dict[str, Path]:
    found = {}
    for name, stems in task.files.items():
        files = [folder / f"{stem}.tsv{suffix}" for stem in stems for suffix in ("", ".gz")]
        there = [file for file in files if file.is_file()]
        if there:
            found[name] = there[0]
    return found


def _find_files(data_args: GlueDataArguments) -> dict[str, Path]:
    found = {}
    if data_args.data_dir is not None:
        task = data_args.task
        if task is None:
            raise InputError("--data_dir: say with --task_name which task of GLUE the folder holds.")
        folder = Path(data_args.data_dir)
        folder = folder / task.folder if (folder / task.folder).is_dir() else folder
        found = _glue_files(folder, task)
        if not found:
            files = " or ".join(f"{task.files[part][0]}.tsv" for part in SETS)
            raise InputError(f"--data_dir: there is no {files} in {folder}.")
    for name in SETS:
        file = getattr(data_args, f"{name}_file")
        if file is not None:
            if not Path(file).is_file():
                raise InputError(f"--{name}_file: there is no file {file}.")
            found[name] = Path(file)
    if found and data_args.dataset_name is not None:
        raise InputError("--dataset_name: give either the name of a data set or files, not both.")
    return found


def _find_dataset(data_args: GlueDataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, Dataset]:
    if data_args.dataset_name is not None:
        splits = load_dataset_splits(data_args.dataset_name, data_args.dataset_config_name, **download)
    elif data_args.task is not None:
        splits = load_dataset_splits(GLUE_ON_THE_HUB, data_args.task_name, **download)
    else:
        raise InputError("there are no data; give --train_file, or --task_name with --data_dir, or --dataset_name.")
    sets = ("train", "validation", "validation_mismatched", "test", "test_mismatched")
    found = {name: splits[n] for name in sets for n in (f"{name}_matched", name) if n in splits}
    if data_args.dataset_name is None and data_args.task_name == "mnli" and "test" in (wanted or ()):
        found["diagnostic"] = load_dataset_splits(GLUE_ON_THE_HUB, "ax", **download)["test"]
    return found


def _class_names(dataset: Dataset, column: str) -> tuple[str, ...]:
    label = dataset.features.get(column)
    label = label.feature if isinstance(label, List) else label
    return tuple(label.names) if isinstance(label, ClassLabel) else ()


def _rows(source: Path | Dataset, task: GlueTask | None) -> Iterator[tuple[int, dict[str, Any]]]:
    return read_rows(source) if task is None else read_rows(source, task.unnamed, task.torn_rows)


def read_examples(rows: Iterable[tuple[int, dict[str, Any]]], source: str, layout: Layout, labelled: bool) -> Dataset:
    """Examples of the rows that [`read_rows`] yields.

    Args:
        rows: number and values of each row.
        source: where they are from, for messages.
        layout: what their columns mean.
        labelled: whether every example must have a label.

    Returns:
        The columns text, text_pair (of pairs), label (text, or a list of texts if an example may have several; None
        where it is not told), index (the source's own number of an example, or its place) and row (in the source).

    Raises:
        InputError: there are no rows, a column is missing, or a row lacks a sentence or a needed label or has another
            kind of label than the row before; with source and row.
    """
    names = ("text", "text_pair")[: len(layout.sentences)]
    examples: dict[str, list[Any]] = {name: [] for name in (*names, "label", "index", "row")}
    kind: type = str
    for row, values in rows:
        values = {layout.renamed.get(name, name): value for name, value in values.items()}
        if not examples["row"]:
            _check_columns(values, layout, source, labelled)
        for name, column in zip(names, layout.sentences, strict=True):
            if not isinstance(values.get(column), str | int | float):
                raise InputError(f"{source}, row {row}: no text in column {column!r} of {', '.join(values)}.")
            examples[name].append(str(values[column]))
        _check_label(values.get(layout.label), layout, f"{source}, row {row}")
        label = layout.find_label(values.get(layout.label))
        if label is None and labelled:
            raise InputError(f"{source}, row {row}: no label in column {layout.label!r} of {', '.join(values)}.")
        if label is not None and not isinstance(label, kind):
            if any(told is not None for told in examples["label"]):
                raise InputError(f"{source}, row {row}: one label and lists of labels in the same file.")
            kind = type(label)
        examples["label"].append(label)
        numbers = [values[name] for name in INDEX_COLUMNS if layout.of_task and name in values]
        examples["index"].append(str(numbers[0] if numbers else len(examples["row"])))
        examples["row"].append(row)
    if not examples["row"]:
        raise InputError(f"{source} holds no examples.")
    features = {name: Value("string") for name in examples} | {"row": Value("int64")}
    return Dataset.from_dict(
        examples, Features(features | {"label": List(Value("string")) if kind is list else Value("string")})
    )


def _check_columns(values: dict[str, Any], layout: Layout, source: str, labelled: bool) -> None:
    found = f"found are {', '.join(values)}"
    if labelled and layout.label not in values and not layout.of_task:
        # Not a word of the columns of text: unless they were named, one of them may be the label's.
        raise InputError(f"{source}: there is no column {layout.label} (--label_column_name names another); {found}.")
    expected = [*layout.sentences, *([layout.label] if labelled else [])]
    missing = [name for name in expected if name not in values]
    if missing:
        remedy = "" if layout.of_task else " (--text_column_names and --label_column_name name others)"
        raise InputError(
            f"{source}: there is no column {' and no column '.join(missing)}; expected are {', '.join(expected)}"
            f"{remedy}, {found}."
        )


def _check_label(value: Any, layout: Layout, where: str) -> None:
    if isinstance(value, list) and layout.of_task:
        raise InputError(f"{where}: the label is a list, not one label.")
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, str | int | float) and part is not None:
            raise InputError(f"{where}: the label is a {type(part).__name__}, not text or a number.")
