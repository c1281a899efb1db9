"""Divides text into parts. Each part becomes one file of a prepared corpus."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from snugbert.data.documents import (
    count_dataset_rows,
    dataset_version,
    find_files,
    read_dataset_documents,
    read_documents,
)
from snugbert.data.part_files import Source
from snugbert.data.text_arguments import TextArguments
from snugbert.data.text_lines import ReadingLog
from snugbert.errors import InputError

MOST_PARTS = 256  # each is a file to open and map
PART_BYTES = 2**26  # of text files per part, unless that makes more than MOST_PARTS


def part_name(number: int, num_parts: int) -> str:
    """Returns the name of a part's file."""
    return f"part-{number:05d}-of-{num_parts:05d}.arrow"


def keep_all(number: int) -> bool:
    """Keeps every document."""
    return True


@dataclass(frozen=True)
class Part:
    """The text of one file of a corpus: some of the text files, or a share of a dataset.

    Attributes:
        number, num_parts: index of the part, and the number of parts.
        text: where the text is.
        files: the text files of this part. Empty for a dataset.
        keeps: returns whether to keep a document, by its index in the part's text.
    """

    number: int
    num_parts: int
    text: TextArguments
    files: tuple[Path, ...]
    keeps: Callable[[int], bool]

    @property
    def name(self) -> str:
        """Name of the part's file."""
        return part_name(self.number, self.num_parts)

    @property
    def size(self) -> int | None:
        """Bytes of the text files, or rows of the dataset, which each part reads. None if it is unknown."""
        return sum(file.stat().st_size for file in self.files) if self.files else count_dataset_rows(self.text)

    @property
    def source_names(self) -> list[str]:
        """Paths of the text files, or `dataset` and its name."""
        return [str(file.resolve()) for file in self.files] or [f"dataset {self.text.dataset_name}"]

    def read_documents(self, log: ReadingLog) -> Iterator[tuple[int, list[str]]]:
        """Reads the documents of the part, each with its index in the part's text."""
        documents: Iterable[tuple[int, list[str]]]
        if self.files:
            documents = enumerate(read_documents(self.files, self.text.text_column_name, log))
        else:  # each machine streams the whole dataset
            everything = enumerate(read_dataset_documents(self.text, log))
            documents = (document for document in everything if document[0] % self.num_parts == self.number)
        return ((number, document) for number, document in documents if self.keeps(number))

    def describe_sources(self, known: Sequence[Source]) -> list[Source]:
        """Returns the names and digests of the part's text files, or of the dataset.

        Args:
            known: an earlier result. Files that have not changed since are not read again.
        """
        if not self.files:
            return [{"name": self.source_names[0], "digest": dataset_version(self.text)}]
        digests = {tuple(source.get("identity", ())): source["digest"] for source in known}
        return [_describe_file(file, digests) for file in self.files]


def _describe_file(file: Path, digests: Mapping[tuple[int, ...], str]) -> Source:
    stat = file.stat()
    identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    digest = digests.get(identity)
    if digest is None:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()[:32]
    return {"name": str(file.resolve()), "digest": digest, "identity": identity}


def plan_parts(text: TextArguments, num_shards: int = 1, keeps: Callable[[int], bool] = keep_all) -> list[Part]:
    """Divides text into parts of consecutive files, at least one part per shard.

    Args:
        text: files or a dataset.
        num_shards: number of machines that share the work.
        keeps: returns whether to keep a document, by its index in its part's text.

    Raises:
        InputError: there is no text, or there are fewer files than shards.
    """
    if text.dataset_name is not None:
        return [Part(number, num_shards, text, (), keeps) for number in range(num_shards)]
    files = find_files(text.train_file)
    if not files:
        raise InputError("no text. Give --train_file or --dataset_name.")
    if len(files) < num_shards:
        raise InputError(f"--shard: more shards ({num_shards}) than text files ({len(files)}). Use fewer shards.")
    sizes = [file.stat().st_size for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / num_shards))
    # The middle of a file decides which part it belongs to.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < num_shards:
        places = np.arange(len(files)) * num_shards // len(files)
    groups = [
        tuple(file for file, at in zip(files, places, strict=True) if at == place) for place in sorted(set(places))
    ]
    return [Part(number, len(groups), text, group, keeps) for number, group in enumerate(groups)]
