"""The splits of a task's data: which splits to read, from files or a dataset, and how to name the data.

This module imports `datasets` and the model's files only when a dataset is loaded or named, so that `--help` is fast.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from snugbert.cli.arguments import COUNT, Range, argument, check_ranges, complete_lists
from snugbert.errors import InputError, join_lines

if TYPE_CHECKING:
    from datasets import DatasetDict

SPLITS = ("train", "validation", "test")


@dataclass
class DataArguments:
    """Arguments of every task: its data, and limits on the number of examples. Names as in transformers' scripts."""

    train_file: Any = None  # one or more paths. Subclasses give it a type and a help text
    dataset_name: str | None = argument(None, "Dataset on the Hub, or a folder that the datasets library can load.")
    dataset_config_name: str | None = argument(None, "Configuration of the dataset.", advanced=True)
    unlabeled_file: str | None = argument(
        None, "Training examples for --teacher_name_or_path to label. Labels in the file are ignored."
    )
    validation_file: str | None = argument(None, "Examples to evaluate on.")
    test_file: str | None = argument(None, "Examples to predict, with or without labels.")
    max_train_samples: int | None = argument(
        None, "Train on at most this many labeled examples. Default: all.", range=COUNT
    )
    max_eval_samples: int | None = argument(None, "Evaluate on at most this many examples. Default: all.", range=COUNT)
    max_predict_samples: int | None = argument(
        None, "Predict on at most this many examples. Default: all.", range=COUNT
    )

    def __post_init__(self):
        complete_lists(self)
        check_ranges(self)
        if self.files and self.dataset_name is not None:
            raise InputError("--dataset_name cannot be combined with files. Pass either the dataset or the files.")

    @property
    def max_samples(self) -> dict[str, int | None]:
        """The maximum number of training, validation and test examples. None: all."""
        return {"train": self.max_train_samples, "validation": self.max_eval_samples, "test": self.max_predict_samples}

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each split that was given as files."""
        names = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {
            split: [Path(name) for name in ([given] if isinstance(given, str | Path) else given)]
            for split, given in names.items()
            if given
        }


@dataclass
class ExampleArguments(DataArguments):
    """Arguments that choose the examples, for a task that needs no other data arguments."""

    train_file: str | None = argument(None, "Training examples: .tsv, .csv, .json or .jsonl, also .gz or .zst.")
    on_missing_label: Literal["error", "skip"] = argument(
        "error", "Training and validation examples without a label: error, or skip them.", advanced=True
    )
    # BERT's limit. Batches have no padding, so a high limit costs nothing if all texts are shorter. A pair has three
    # special tokens. With a limit below 3, the tokenizer would not truncate at all.
    max_seq_length: int = argument(
        512, "Maximum tokens of a text or pair. Longer texts are truncated.", range=Range(3)
    )


def load_dataset_splits(name: str, config_name: str | None, **download: Any) -> "DatasetDict":
    """Loads the splits of a dataset."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        return load_dataset(name, config_name, **download)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        # The outermost error may only state that an error occurred.
        raise InputError(
            f"the dataset {name} cannot be loaded ({join_lines(error.__cause__ or error)}). Check its name, its files "
            "and the connection to the Hub."
        ) from error


def choose_splits(
    requested: tuple[str, ...] | None, available: Container[str], from_files: bool, examples: str
) -> tuple[str, ...]:
    """Chooses the splits to read: the `requested` splits, or by default all, except the test split of a dataset.

    If the run trains and there are unlabeled examples, "unlabeled" follows "train", or replaces a missing "train".
    """
    trains = requested is None or "train" in requested
    if requested is None:
        requested = tuple(split for split in SPLITS if split in available and (split != "test" or from_files))
    if trains and "unlabeled" in available:
        train = ("train",) if "train" in available else ()
        requested = (*train, "unlabeled", *(split for split in requested if split != "train"))
    if not requested:
        raise InputError("no data to train or evaluate on. Pass --train_file, --validation_file or --dataset_name.")
    for split in requested:
        if split not in available:
            raise InputError(f"no {split} {examples}. Pass --{split}_file.")
    return requested


class DataSource(NamedTuple):
    """A file or a split of a dataset, as results and cards name it."""

    name: str
    split: str  # for a file, its use: "train", "unlabeled", "validation" or "test"
    num_examples: int
    hub_id: str | None = None  # None if the data are not from the Hub
    config_name: str | None = None


def describe_source(source: Path | str, config_name: str | None, split: str, num_examples: int) -> DataSource:
    """Names the examples of a split."""
    if isinstance(source, Path):
        name = describe_file(source)  # the folder's name, if the file's name is generic
        file = source.name if source.name.startswith(name) else f"{name}/{source.name}"
        return DataSource(file, split, num_examples)
    hub_id, name = name_dataset(source)
    return DataSource(name + (f" ({config_name})" if config_name else ""), split, num_examples, hub_id, config_name)


def name_dataset(name: str | None) -> tuple[str | None, str]:
    """Returns the Hub name of a dataset, and its name in results and cards: the Hub name, or the name of the folder.

    The Hub name is None if the dataset is a folder, which users may move, or if `name` is None.
    """
    from snugbert.card_snugbert import find_base_model  # names of models follow the same rules

    return find_base_model(name)


def describe_file(file: Path) -> str:
    """The name of a file in results and cards: its stem, or the folder's name if the stem is `train` or similar."""
    stem = re.sub(r"\.(json|jsonl|csv|tsv|txt|conll)$", "", uncompressed_name(file))
    generic = ("train", "training", "dev", "development", "valid", "validation", "test")
    return file.resolve().parent.name if stem.lower() in generic else stem


def uncompressed_name(file: Path) -> str:
    """The name of a file without the suffix .gz or .zst."""
    return re.sub(r"\.(gz|zst)$", "", file.name)
