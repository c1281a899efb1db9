"""Which splits to read, from which files or dataset, and what to call them."""

import os
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugbert.errors import InputError

if TYPE_CHECKING:
    from datasets import DatasetDict

SPLITS = ("train", "validation", "test")


def load_dataset_splits(name: str, config_name: str | None, **download: Any) -> "DatasetDict":
    """The splits of a data set of the Hub, or of a folder that the datasets library reads.

    Args:
        name: of the data set, or the folder.
        config_name: of its configuration; None: the only one.
        download: goes to `datasets.load_dataset`.

    Raises:
        InputError: it cannot be loaded.
    """
    # Imported here because it takes seconds, and `--help` needs the rest of this module.
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    if name.startswith(("/", ".", "~")) and not Path(name).exists():
        raise InputError(f"--dataset_name: there is no folder {name}.")
    try:
        return load_dataset(name, config_name, **download)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        raise InputError(f"the data set {name} cannot be loaded: {error}") from error


def wanted_splits(
    wanted: tuple[str, ...] | None, found: Container[str], in_files: bool, examples: str
) -> tuple[str, ...]:
    """The splits to read.

    Args:
        wanted: those that must be there; None: as many as there are.
        found: those that are there.
        in_files: whether they are files that the user has named. Then test examples are wanted, too: they would not
            have been named for nothing. A data set just has some.
        examples: what they are called, for messages.

    Raises:
        InputError: one is not there, or none is.
    """
    if wanted is None:
        wanted = tuple(split for split in SPLITS if split in found and (split != "test" or in_files))
        if not wanted:
            raise InputError("there is nothing to train on and nothing to score; name it with --train_file.")
    for split in wanted:
        if split not in found:
            raise InputError(f"there are no {split} {examples}; name a file of them with --{split}_file.")
    return wanted


def check_sources(files: Mapping[str, Iterable[Path]], dataset_name: str | None) -> None:
    """Makes sure that the user named either files that are there, by their split, or a data set.

    Raises:
        InputError: a file is not there; both were named, or neither.
    """
    for split, of_split in files.items():
        for file in of_split:
            if not file.is_file():
                raise InputError(f"--{split}_file: there is no file {file}.")
    if files and dataset_name is not None:
        raise InputError("--dataset_name: give either the name of a data set or files, not both.")
    if not files and dataset_name is None:
        raise InputError("there are no data; give --train_file, --validation_file or --dataset_name.")


def hub_id(dataset_name: str | None) -> str | None:
    """The name of a data set as one of the Hub; None if it is a folder, or there is none."""
    return None if dataset_name is None or Path(dataset_name).exists() else dataset_name


def describe_dataset(name: str) -> str:
    """The name of a dataset in results and cards: its Hub id, or the last part of a folder's path."""
    return Path(name).resolve().name if os.path.isabs(name) or Path(name).exists() else name


def describe_file(file: Path) -> str:
    """What a file of examples is about: its name without ending, or its folder's if it is called train or the like."""
    stem = re.sub(r"(\.(json|jsonl|csv|tsv|txt|conll))?(\.(gz|zst))?$", "", file.name)
    usual = ("train", "training", "dev", "development", "valid", "validation", "test")
    return file.resolve().parent.name if stem.lower() in usual else stem
