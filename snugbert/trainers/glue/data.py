"""The GLUE tasks and where their examples come from: GLUE's TSV files, one's own files, or a datasets name.

Examples are held in memory, 393,000 at most in GLUE (MNLI).
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.errors import InputError
from snugbert.trainers.finetuning.arguments import ExampleLimits
from snugbert.trainers.rows import read_rows
from snugbert.trainers.splits import load_dataset_splits

logger = logging.getLogger(__name__)

INTEGER = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
ROWS_TO_LOOK_AT = 100  # to tell columns of text from those of numbers
LABELS_TO_TELL = 10  # in a message
GLUE_ON_THE_HUB = "nyu-mll/glue"
# What is read to train, to score and to predict. MNLI has two sets of sentences from other sources, and its model
# predicts the diagnostic set, too.
SETS = {
    "train": ("train",),
    "validation": ("validation", "validation_mismatched"),
    "test": ("test", "test_mismatched", "diagnostic"),
}
# Where examples have their number: GLUE's TSV files, QQP's, and the datasets of the Hub.
INDEX_COLUMNS = ("index", "id", "idx")


class GlueTask(NamedTuple):
    """A GLUE task: where its sentences and labels stand, and what its results are called."""

    folder: str  # in a folder of GLUE data
    sentences: tuple[str, ...]  # columns, by their names in the datasets library
    labels: tuple[str, ...] = ()  # in the order of their ids in the datasets library; none: a number is predicted
    main_metric: str = "accuracy"  # the figure of Devlin et al. (2018), table 1
    renamed: dict[str, str] = {}  # columns that the TSV files call otherwise
    unnamed: tuple[str, ...] = ()  # the columns of TSV files without a header
    torn_rows: bool = False  # whether TSV files have rows that lack columns
    in_digits: bool = False  # whether the TSV files, and so the leaderboard, name a label by its id
    # Without .tsv: the files of each set, the first that is there, and the leaderboard's of each of SETS["test"].
    files: dict[str, tuple[str, ...]] = {"train": ("train",), "validation": ("dev",), "test": ("test",)}
    leaderboard: dict[str, str] = {}  # that of the folder, unless it is told here


# Names and orders: the data set "nyu-mll/glue" of the Hub; columns and files: those of gluebenchmark.com.
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        main_metric="matthews_correlation",
        unnamed=("source", "label", "star", "sentence"),
        in_digits=True,
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        renamed={
            **{"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
            **{"Premise": "premise", "Hypothesis": "hypothesis", "Label": "label"},  # diagnostic-full
        },
        files={
            "train": ("train",),
            "validation": ("dev_matched",),
            "validation_mismatched": ("dev_mismatched",),
            "test": ("test_matched",),
            "test_mismatched": ("test_mismatched",),
            # The same examples in the same order; diagnostic-full has their labels.
            "diagnostic": (
                *("diagnostic-full", "../diagnostic/diagnostic-full"),
                *("diagnostic", "../diagnostic/diagnostic", "../AX/AX"),
            ),
        },
        leaderboard={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
    ),
    "mrpc": GlueTask(
        "MRPC",
        ("sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        main_metric="f1",
        renamed={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
        in_digits=True,
    ),
    "qnli": GlueTask("QNLI", ("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        main_metric="f1",
        renamed={"is_duplicate": "label"},
        torn_rows=True,  # of questions with a line break within
        in_digits=True,
    ),
    "rte": GlueTask("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "sst2": GlueTask("SST-2", ("sentence",), ("negative", "positive"), in_digits=True),
    "stsb": GlueTask("STS-B", ("sentence1", "sentence2"), main_metric="spearmanr", renamed={"score": "label"}),
    "wnli": GlueTask("WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment"), in_digits=True),
}


@dataclass
class GlueDataArguments(ExampleLimits):
    """Which data to use. The names are those of `run_glue.py` and `run_classification.py`, and `data_dir`."""

    task_name: str | None = field(
        default=None, metadata={"help": f"A GLUE task: {', '.join(TASKS)}; or all for all of them."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "A folder of GLUE TSV files: the task's own, or the one that holds it."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set of the Hub, or a folder that the datasets library reads."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of that data set."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training examples: .tsv, .csv, .json or .jsonl, also .gz."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Examples to score the model on."})
    test_file: str | None = field(default=None, metadata={"help": "Examples to predict, with or without labels."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "Of one's own data: the column of the text, or the two of a pair: title,text."}
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Of one's own data: the column of the label; default: label."}
    )
    label_separator: str | None = field(
        default=None,
        metadata={"help": "What separates labels, if an example may have several. A list in JSON needs nothing."},
    )
    # None, too; but HfArgumentParser lets nothing but a `bool` stand without a value.
    do_regression: bool = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Of one's own data: predict the label as a number, or (false) take it for the name of a class; "
            "default: a number where all are numbers and not all whole ones."
        },
    )
    max_seq_length: int = field(
        default=128, metadata={"help": "Longest example in tokens; a longer one loses the end of its longer sentence."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Accepted; nothing is cached."})

    def __post_init__(self):
        if self.task_name is not None:
            known, given = ", ".join((*TASKS, "all")), self.task_name
            self.task_name = given.lower().replace("-", "")  # SST-2 is the folder, sst2 the task
            if self.task_name not in (*TASKS, "all"):
                raise InputError(f"--task_name: there is no task {given!r}; the tasks are {known}.")
            own = ("text_column_names", "label_column_name", "label_separator", "do_regression")
            self._refuse("is for one's own data", *own)
        if self.task_name == "all":
            files = ("train_file", "validation_file", "test_file")
            self._refuse("is of one task; all of them are in --data_dir or on the Hub", "dataset_name", *files)
        # A pair has three special tokens; below that the tokenizer does not truncate at all.
        self.check_least(max_seq_length=3)

    def _refuse(self, reason: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} {reason}; leave it out with --task_name {self.task_name}.")

    @property
    def task(self) -> GlueTask | None:
        """The GLUE task; None: one's own data."""
        return TASKS[self.task_name] if self.task_name else None


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


def choose_labels(
    task: GlueTask | None, splits: dict[str, GlueSplit], known: list[str], regression: bool | None = None
) -> list[str] | None:
    """The labels in the order of their ids; None if a number is to be predicted.

    They are the task's, else those that the data set names, else those of the training examples, sorted. Training
    labels that are numbers, and not all whole ones, make a regression.

    Args:
        task: the task; None: one's own data.
        splits: what [`load_splits`] returned.
        known: the checkpoint's labels in the order of their ids. If the labels are the same ones but for upper and
            lower case, its order is kept, so that its classifier means what it meant. Without task and training
            examples they are the labels.
        regression: whether a number is to be predicted, whatever the labels are; None: as they are.

    Raises:
        InputError: the training examples have only one label; several labels are no number; most labels are numbers,
            not all whole ones, and some are not.
    """
    if regression:
        lists = [split.source for split in splits.values() if split.multi_label]
        if lists:
            raise InputError(f"--do_regression: {lists[0]} has lists of labels where a number should be.")
        return None
    if task is not None:
        labels = list(task.labels)
    elif "train" not in splits:
        return known if len(known) > 1 else None
    elif splits["train"].labels:
        labels = list(splits["train"].labels)
    else:
        train = splits["train"]
        values = train.data["label"][:]
        labels = sorted({label for value in values for label in value} if train.multi_label else set(values))
        if all(INTEGER.fullmatch(label) for label in labels):
            labels.sort(key=Decimal)  # `int` takes at most 4,300 digits
        elif regression is None and not train.multi_label and _are_numbers(train, values):
            return None
        if len(labels) < 2:
            only = f"the label {labels[0]!r}" if labels else "no label"
            raise InputError(f"{train.source}: all examples have {only}; nothing to learn.")
    order = {label.lower(): i for i, label in enumerate(known)}
    if order.keys() == {label.lower() for label in labels}:
        labels.sort(key=lambda label: order[label.lower()])
    return labels or None


def _are_numbers(train: GlueSplit, labels: list[str]) -> bool:
    """Whether the labels, not all of them whole numbers, are numbers to predict and not the names of classes."""
    numbers = [label for label in labels if NUMBER.fullmatch(label)]
    # Among names there may be a "3.5". Among numbers an "n/a" is an accident.
    if len(numbers) < len(labels) < 2 * len(numbers) and not all(INTEGER.fullmatch(label) for label in numbers):
        rows = zip(train.data["row"][:], labels, strict=True)
        row, label = next((row, label) for row, label in rows if not NUMBER.fullmatch(label))
        raise InputError(
            f"{train.source}, row {row}: the label {label!r} is not a number, as most others are; mend or remove "
            "such rows, or give --do_regression false if labels are names of classes."
        )
    return len(numbers) == len(labels)


def encode_labels(split: GlueSplit, labels: list[str] | None) -> list[int] | list[float] | list[list[float]]:
    """The label of each example.

    Returns:
        Its place in `labels`; where an example may have several, 1.0 at the place of each and 0.0 elsewhere; or the
        number that it is, if `labels` is None.

    Raises:
        InputError: a label that is not one of `labels`, or no number; with source and row.
    """
    values, multi_label = split.data["label"][:], split.multi_label
    ids = {label: i for i, label in enumerate(labels or ())}
    for row, value in zip(split.data["row"][:], values, strict=True):
        for label in value if multi_label else [value]:
            if labels and label not in ids:
                known = ", ".join(labels[:LABELS_TO_TELL])
                more = f" and {len(labels) - LABELS_TO_TELL} more" if len(labels) > LABELS_TO_TELL else ""
                raise InputError(
                    f"{split.source}, row {row}: the label {label!r} is unknown; known, by the task or from training, "
                    f"are {known}{more}; mend or remove the row."
                )
            if not labels and not (NUMBER.fullmatch(label) and math.isfinite(float(label))):
                raise InputError(
                    f"{split.source}, row {row}: {label[:50]!r} is not a finite number. Fix or remove the row."
                )
    if not labels:
        return [float(value) for value in values]
    if multi_label:
        return [[float(label in value) for label in labels] for value in values]
    return [ids[value] for value in values]
