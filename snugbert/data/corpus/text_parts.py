"""The parts of a corpus before they are prepared: which text each part reads."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from snugbert.data.corpus.part_files import DATASET, part_name
from snugbert.data.data_arguments import Deduplication, TextArguments
from snugbert.data.documents import (
    count_dataset_files,
    count_dataset_rows,
    dataset_version,
    find_files,
    name_files,
    read_dataset_documents,
    read_documents,
)
from snugbert.data.repeated_text import RepeatedText
from snugbert.data.sources import name_dataset
from snugbert.data.text_lines import ReadingLog, RemoteText, TextFile, measure_file
from snugbert.errors import InputError

MOST_PARTS = 256  # each part is a file to open and map
PART_BYTES = 2**26  # bytes of text files per part, unless there would be more than MOST_PARTS parts
Keeps = Callable[[int], bool] | None  # whether to keep a document, by its index in the part's text


@dataclass(frozen=True)
class Part:
    """The text of one part of a corpus: some of the text files, some files of a dataset, or every nth document."""

    number: int  # from 0
    num_parts: int
    text: TextArguments
    files: tuple[TextFile, ...]  # of this part. Empty for a dataset
    # Names of the files, relative to the common folder of all text files of the corpus. For a dataset, `dataset` and
    # its name. Names are the same on every machine.
    names: tuple[str, ...]
    keeps: Keeps  # None: all
    # Which copies to leave out. If set, each part reads all files and keeps every nth document, because finding a copy
    # requires all text before it.
    deduplicate: Deduplication | None = None

    @property
    def name(self) -> str:
        """Name of the part's file."""
        return part_name(self.number, self.num_parts)

    @property
    def size(self) -> int | None:
        """Bytes of text files, or rows of a dataset, that the part reads. None if the number is unknown."""
        if self.files:
            return sum(map(measure_file, self.files))
        reads_all = self.deduplicate is not None or self.num_parts == 1
        return count_dataset_rows(self.text) if reads_all else None

    def read_documents(self, log: ReadingLog, report: RepeatedText) -> Iterator[tuple[int, list[str]]]:
        """Reads the documents of the part, each with its index in the part's text.

        `report` also counts documents that are not kept.
        """
        if self.files:
            documents = read_documents(self.files, self.text.text_column_name, log)
        else:
            shard = (self.number, self.num_parts) if self.deduplicate is None else (0, 1)
            documents = read_dataset_documents(self.text, log, shard)
        step = 1 if self.deduplicate is None else self.num_parts
        for number, document in report.follow(enumerate(documents)):
            if number % step == self.number % step and (self.keeps is None or self.keeps(number)):
                yield number, document

    def identify(self) -> list[str]:
        """Returns a string for each file, or one for a dataset. It changes when the text changes."""
        if not self.files:
            return [dataset_version(self.text)]
        return [_identify(file) for file in self.files]

    def describe_text(self) -> dict[str, str]:
        """Returns the digest of each text file, or of the dataset, by name. Digests are the same on every machine."""
        identities = self.identify()
        if not self.files:
            return {self.names[0]: identities[0]}
        digests = [_hash_text(file, identity) for file, identity in zip(self.files, identities, strict=True)]
        return dict(zip(self.names, digests, strict=True))


def _identify(file: TextFile) -> str:
    """Returns a string that changes when a file changes.

    For a file in a bucket, the string comes from the listing, or from the file if the listing has no version.
    """
    if isinstance(file, RemoteText):
        return f"{file.size} {file.version}" if file.version else _hash_file(file)
    stat = file.stat()
    return str([stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns])


@cache  # a file is read again only if its identity changes
def _hash_text(file: TextFile, identity: str) -> str:
    return _hash_file(file)


def _hash_file(file: TextFile) -> str:
    # Text in a bucket is read twice, for the digest and for the tokens. If the digest were the store's version, the
    # same text in a different place would make different parts. Reading is much faster than tokenizing.
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]


def plan_parts(
    text: TextArguments,
    num_shards: int = 1,
    keeps: Keeps = None,
    deduplicate: Deduplication | None = None,
) -> list[Part]:
    """Divides text into parts of consecutive files, at least one part per shard.

    The parts are the same on every machine. Shard i of n has the parts i - 1, i - 1 + n, and so on. The number of
    parts depends on the sizes of the files, and on the number of shards if the files are few or small.
    """
    files = [] if text.dataset_name is not None else find_files(text.train_file)
    if not files and text.dataset_name is None:
        raise InputError("no text. Pass --train_file or --dataset_name.")
    # A folder is stored as "./name", which is not a name on the Hub.
    hub_id, name = name_dataset(text.dataset_name)
    dataset = hub_id or f"./{name}"
    names = tuple(name_files(files)) or (f"{DATASET}{dataset}",)
    if deduplicate is None and num_shards > 1:
        num_files = len(files) or count_dataset_files(text)
        if num_files < num_shards:
            raise InputError(f"--shard: more shards ({num_shards}) than text files ({num_files}). Use fewer shards.")
    if not files or deduplicate is not None:
        every = range(num_shards)
        return [Part(number, num_shards, text, tuple(files), names, keeps, deduplicate) for number in every]
    sizes = [measure_file(file) for file in files]
    part_bytes = max(sum(sizes) / MOST_PARTS, min(PART_BYTES, sum(sizes) / num_shards))
    # The middle of a file decides which part it belongs to.
    places = ((np.cumsum(sizes) - np.array(sizes) / 2) / max(part_bytes, 1)).astype(int)
    if len(set(places)) < num_shards:
        places = np.arange(len(files)) * num_shards // len(files)
    groups = [np.flatnonzero(places == place) for place in sorted(set(places))]
    return [
        Part(number, len(groups), text, tuple(files[at] for at in group), tuple(names[at] for at in group), keeps)
        for number, group in enumerate(groups)
    ]
