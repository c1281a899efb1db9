"""The GLUE tasks and where their examples come from: GLUE's TSV files, one's own files, or a datasets name.

Examples are held in memory, 393,000 at most in GLUE (MNLI).
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, load_dataset

from snugbert.trainers.command_line import InputError
from snugbert.trainers.files import read_rows

logger = logging.getLogger(__name__)

INTEGER = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
SPLITS = ("train", "validation", "test")
GLUE_ON_THE_HUB = "nyu-mll/glue"


class Task(NamedTuple):
    """A GLUE task: where its sentences and labels stand."""

    folder: str  # in a folder of GLUE data
    sentences: tuple[str, ...]  # columns, by their names in the datasets library
    labels: tuple[str, ...] = ()  # in the order of their ids in the datasets library; none: a number is predicted
    renamed: dict[str, str] = {}  # columns that the TSV files call otherwise
    unnamed: tuple[str, ...] = ()  # the columns of TSV files without a header


# Names and orders: the data set "nyu-mll/glue" of the Hub; TSV columns: the files of gluebenchmark.com.
TASKS = {
    "cola": Task(
        "CoLA", ("sentence",), ("unacceptable", "acceptable"), unnamed=("source", "label", "star", "sentence")
    ),
    "mnli": Task(
        "MNLI",
        ("premise", "hypothesis"),
        ("entailment", "neutral", "contradiction"),
        {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"},
    ),
    "mrpc": Task(
        "MRPC",
        ("sentence1", "sentence2"),
        ("not_equivalent", "equivalent"),
        {"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
    ),
    "qnli": Task("QNLI", ("question", "sentence"), ("entailment", "not_entailment")),
    "qqp": Task("QQP", ("question1", "question2"), ("not_duplicate", "duplicate"), {"is_duplicate": "label"}),
    "rte": Task("RTE", ("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "sst2": Task("SST-2", ("sentence",), ("negative", "positive")),
    "stsb": Task("STS-B", ("sentence1", "sentence2"), (), {"score": "label"}),
    "wnli": Task("WNLI", ("sentence1", "sentence2"), ("not_entailment", "entailment")),
}


@dataclass
class DataArguments:
    """Which data to use. The names are those of `run_glue.py`, and `data_dir`."""

    task_name: str | None = field(default=None, metadata={"help": f"A GLUE task: {', '.join(TASKS)}."})
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
    max_seq_length: int = field(
        default=128, metadata={"help": "Longest example in tokens; a longer one loses the end of its longer sentence."}
    )
    # run_glue.py pads by default. No model needs that padding, and all of them pay for it.
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to max_seq_length instead of to the longest example of a batch."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Accepted; nothing is cached."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Score the first so many examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many examples."})

    def __post_init__(self):
        if self.task_name is not None:
            known, given = ", ".join(TASKS), self.task_name
            self.task_name = given.lower().replace("-", "")  # SST-2 is the folder, sst2 the task
            if self.task_name not in TASKS:
                raise InputError(f"--task_name: there is no task {given!r}; the tasks are {known}.")
        # A pair has three special tokens; below that the tokenizer does not truncate at all.
        smallest = {"max_seq_length": 3, "max_train_samples": 1, "max_eval_samples": 1, "max_predict_samples": 1}
        for name, least in smallest.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise InputError(f"--{name} must be at least {least}, not {number}.")

    @property
    def task(self) -> Task | None:
        """The GLUE task; None: one's own data."""
        return TASKS[self.task_name] if self.task_name else None


class Split(NamedTuple):
    """The examples of training, validation or test."""

    source: str  # the file or data set they come from, for messages
    data: Dataset  # columns: text, text_pair (of pairs), label (text, or None where not told), row (in the source)
    labels: tuple[str, ...] = ()  # in the order of their ids, where the source tells


def load_splits(data_args: DataArguments, wanted: tuple[str, ...] | None, **download: Any) -> dict[str, Split]:
    """Reads the examples that the arguments name.

    Args:
        data_args: what to read.
        wanted: those of "train", "validation" and "test" to read; None: train and validation as far as there are any.
        download: goes to `datasets.load_dataset`.

    Raises:
        InputError: a file, folder or data set does not exist or is not what was wanted; or as in [`read_examples`].
    """
    task = data_args.task
    found = _find_files(data_args) or _find_dataset(data_args, **download)
    if wanted is None:
        wanted = tuple(split for split in ("train", "validation") if split in found)
        if not wanted:
            raise InputError("there is nothing to train on and nothing to score; name it with --train_file.")
    columns = task.sentences if task else ()
    splits = {}
    for split in wanted:
        if split not in found:
            raise InputError(f"there are no {split} examples; name a file of them with --{split}_file.")
        data = found[split]
        name = data_args.dataset_name or GLUE_ON_THE_HUB
        source = str(data) if isinstance(data, Path) else f"the {split} examples of {name}"
        rows = partial(read_rows, data, task.unnamed if task else ())
        columns = columns or sentence_columns(next(rows(), (0, {}))[1], source)
        label = None if isinstance(data, Path) else data.features.get("label")
        labels = tuple(label.names) if isinstance(label, ClassLabel) else ()
        splits[split] = Split(source, read_examples(rows(), source, task, columns, split != "test"), labels)
    return splits


def _find_files(data_args: DataArguments) -> dict[str, Path]:
    found = {}
    if data_args.data_dir is not None:
        if data_args.task is None:
            raise InputError("--data_dir: say with --task_name which task of GLUE the folder holds.")
        folder = Path(data_args.data_dir)
        folder = folder / data_args.task.folder if (folder / data_args.task.folder).is_dir() else folder
        for split, stem in zip(SPLITS, ("train", "dev", "test"), strict=True):
            # MNLI has two of dev and test; a leaderboard's first is the matched one.
            for name in (f"{stem}.tsv", f"{stem}.tsv.gz", f"{stem}_matched.tsv", f"{stem}_matched.tsv.gz"):
                if split not in found and (folder / name).is_file():
                    found[split] = folder / name
        if not found:
            raise InputError(f"--data_dir: there is no train.tsv, dev.tsv or test.tsv in {folder}.")
    for split in SPLITS:
        file = getattr(data_args, f"{split}_file")
        if file is not None:
            if not Path(file).is_file():
                raise InputError(f"--{split}_file: there is no file {file}.")
            found[split] = Path(file)
    if found and data_args.dataset_name is not None:
        raise InputError("--dataset_name: give either the name of a data set or files, not both.")
    return found


def _find_dataset(data_args: DataArguments, **download: Any) -> dict[str, Dataset]:
    if data_args.dataset_name is not None:
        name, config_name = data_args.dataset_name, data_args.dataset_config_name
    elif data_args.task is not None:
        name, config_name = GLUE_ON_THE_HUB, data_args.task_name
    else:
        raise InputError("there are no data; give --train_file, or --task_name with --data_dir, or --dataset_name.")
    try:
        splits = load_dataset(name, config_name, **download)
    except (OSError, ValueError) as error:
        raise InputError(f"the data set {name} cannot be loaded: {error}") from error
    return {split: splits[n] for split in SPLITS for n in (f"{split}_matched", split) if n in splits}


def sentence_columns(values: dict[str, Any], source: str) -> tuple[str, ...]:
    """The column of the sentence, or the two of the pair, of one's own data; chosen as in `run_glue.py`.

    They are sentence1 and sentence2, or else the first one or two that are not the label and hold no number.

    Args:
        values: the first row.
        source: where it is from, for messages.

    Raises:
        InputError: there is no row, or no such column.
    """
    if not values:
        raise InputError(f"{source} holds no examples.")
    if "sentence1" in values and "sentence2" in values:
        return ("sentence1", "sentence2")
    columns = [name for name, value in values.items() if name != "label" and not NUMBER.fullmatch(str(value))][:2]
    if not columns:
        raise InputError(f"{source} has no column of text beside the label; its columns are {', '.join(values)}.")
    logger.info("%s: column %s holds the text, 'label' the label", source, " and ".join(map(repr, columns)))
    return tuple(columns)


def read_examples(
    rows: Iterable[tuple[int, dict[str, Any]]],
    source: str,
    task: Task | None,
    columns: tuple[str, ...],
    labelled: bool,
) -> Dataset:
    """Examples of the rows that [`read_rows`] yields.

    Args:
        rows: number and values of each row.
        source: where they are from, for messages.
        task: whose column and label names to expect; None: one's own data.
        columns: those of the sentence, or of the pair.
        labelled: whether every example must have a label.

    Returns:
        The columns of [`Split`]'s `data`.

    Raises:
        InputError: there are no rows, or one lacks a sentence or a needed label; with source and row.
    """
    names = ("text", "text_pair")[: len(columns)]
    renamed = task.renamed if task else {}
    # GLUE's labels are ids or names, and -1 where they are not told.
    label_names = {"-1": "", "-1.0": "", **{str(i): name for i, name in enumerate(task.labels)}} if task else {}
    examples: dict[str, list[Any]] = {name: [] for name in (*names, "label", "row")}
    for row, values in rows:
        values = {renamed.get(name, name): value for name, value in values.items()}
        if isinstance(values.get("label"), list | dict):
            raise InputError(f"{source}, row {row}: the label is a {type(values['label']).__name__}, not one label.")
        told = "" if values.get("label") is None else str(values["label"])
        label = label_names.get(told, told) or None
        for name, column in zip(names, columns, strict=True):
            if not isinstance(values.get(column), str | int | float):
                raise InputError(f"{source}, row {row}: no text in column {column!r} of {', '.join(values)}.")
            examples[name].append(str(values[column]))
        if labelled and label is None:
            raise InputError(f"{source}, row {row}: no label in column 'label' of {', '.join(values)}.")
        examples["label"].append(label)
        examples["row"].append(row)
    if not examples["row"]:
        raise InputError(f"{source} holds no examples.")
    return Dataset.from_dict(examples)


def choose_labels(task: Task | None, splits: dict[str, Split], known: list[str]) -> list[str] | None:
    """The labels in the order of their ids; None if a number is to be predicted.

    They are the task's, else those that the data set names, else those of the training examples, sorted. Training
    labels that are numbers, and not all whole ones, make a regression.

    Args:
        task: the task; None: one's own data.
        splits: what [`load_splits`] returned.
        known: the checkpoint's labels in the order of their ids. If the labels are the same ones but for upper and
            lower case, its order is kept, so that its classifier means what it meant. Without task and training
            examples they are the labels.

    Raises:
        InputError: the training examples all have the same label.
    """
    if task is not None:
        labels = list(task.labels)
    elif "train" not in splits:
        return known if len(known) > 1 else None
    elif splits["train"].labels:
        labels = list(splits["train"].labels)
    else:
        labels = sorted(set(splits["train"].data["label"]))
        if all(INTEGER.fullmatch(label) for label in labels):
            labels.sort(key=int)
        elif all(NUMBER.fullmatch(label) for label in labels):
            return None
        if len(labels) == 1:
            raise InputError(f"{splits['train'].source}: all examples have the label {labels[0]!r}; nothing to learn.")
    order = {label.lower(): i for i, label in enumerate(known)}
    if order.keys() == {label.lower() for label in labels}:
        labels.sort(key=lambda label: order[label.lower()])
    return labels or None


def encode_labels(split: Split, labels: list[str] | None) -> list[int] | list[float]:
    """The label of each example: its place in `labels`, or the number it is if `labels` is None.

    Raises:
        InputError: a label that is not one of `labels`, or no number; with source and row.
    """
    values = split.data["label"][:]
    ids = {label: i for i, label in enumerate(labels or ())}
    for row, value in zip(split.data["row"][:], values, strict=True):
        if labels and value not in ids:
            raise InputError(f"{split.source}, row {row}: unknown label {value!r}; known are {', '.join(labels)}.")
        if not labels and not NUMBER.fullmatch(value):
            raise InputError(f"{split.source}, row {row}: the label {value!r} is not a number.")
    return [ids[value] for value in values] if labels else [float(value) for value in values]
