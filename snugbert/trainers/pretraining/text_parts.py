"""The parts of a text."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snugbert.errors import InputError
from snugbert.trainers.documents import (
    dataset_version,
    find_files,
    read_dataset_documents,
    read_documents,
)
from snugbert.trainers.text_arguments import TextArguments

MOST_PARTS = 256  # each is a file to open and map
PART_BYTES = 2**26  # of text files to a part, as long as that makes no more than MOST_PARTS


@dataclass(frozen=True)
class Part:
    """What one file of a prepared corpus is made from: some of the text files, or a share of a dataset.

    Attributes:
        number, of: its place among the parts.
        text: where the text is found.
        files: those of this part, none for a dataset.
        keeps: which of its documents, by number.
    """

    number: int
    of: int
    text: TextArguments
    files: tuple[Path, ...]
    keeps: Callable[[int], bool]

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"part-{self.number:05d}-of-{self.of:05d}.arrow"

    @property
    def names(self) -> list[str]:
        """Where its text is found: paths, or the dataset."""
        return [str(file.resolve()) for file in self.files] or [f"dataset {self.text.dataset_name}"]

    def documents(self) -> Iterator[tuple[int, list[str]]]:
        """Its documents with their numbers."""
        documents: Iterable[tuple[int, list[str]]]
        if self.files:
            documents = enumerate(read_documents(self.files, self.text.text_column_name))
        else:  # every machine streams the whole dataset
            everything = enumerate(read_dataset_documents(self.text))
            documents = (document for document in everything if document[0] % self.of == self.number)
        return ((number, document) for number, document in documents if self.keeps(number))

    def sources(self, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Name and digest of its files or dataset.

        Args:
            known: what this gave an earlier time. A file that nothing has touched since is not read again.
        """
        if not self.files:
            return [{"name": self.names[0], "digest": dataset_version(self.text)}]
        digests = {tuple(source.get("identity", ())): source["digest"] for source in known}
        return [_describe_source(file, digests) for file in self.files]


def _describe_source(file: Path, digests: dict[tuple, str]) -> dict[str, Any]:
    stat = file.stat()
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    digest = digests.get(identity)
    if digest is None:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:32]
    return {"name": str(file.resolve()), "digest": digest, "identity": identity}


def keep_all(number: int) -> bool:
    """Keeps all documents."""
    return True


def plan_parts(text: TextArguments, shards: int = 1, keeps: Callable[[int], bool] = keep_all) -> list[Part]:
    """Divides text into parts, at least one for each of `shards` machines: files that follow each other make a part.

    Args:
        text: files or a dataset.
        shards: how many machines share the work.
        keeps: which documents of a part are wanted, by number.

    Raises:
        InputError: there is no text, or there are fewer files than shards.
    """
    if text.dataset_name is not None:
        return [Part(number, shards, text, (), keeps) for number in range(shards)]
    files = find_files(text.train_file)
    if not files:
        raise InputError("there is no text; name it with --train_file or --dataset_name.")
    if len(files) < shards:
        raise InputError(f"{len(files)} files cannot be shared among {shards} shards; split the text into more files.")
    sizes = [file.stat().st_size for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / shards))
    # A file goes where its middle falls.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < shards:
        places = np.arange(len(files)) * shards // len(files)
    groups = [
        tuple(file for file, at in zip(files, places, strict=True) if at == place) for place in sorted(set(places))
    ]
    return [Part(number, len(groups), text, group, keeps) for number, group in enumerate(groups)]
