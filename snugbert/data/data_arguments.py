"""Arguments that select text, split it into sentences, and choose the folder of the prepared corpus.

`--help` imports this module, so it does not import Trainer or datasets, which take seconds.
"""

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from snugbert.cli.ranges import check_ranges
from snugbert.data.languages import DEFAULT, check_language
from snugbert.errors import InputError

OnBadText = Literal["error", "skip", "replace"]
Deduplication = Literal["documents", "lines"]
CACHE_GB = 20.0  # size of the local cache for blocks of a corpus in a bucket


def complete_lists(arguments: Any) -> None:
    """Converts one path, or another iterable of paths, to a list of strings in each argument that takes a list."""
    for each in fields(arguments):
        value = getattr(arguments, each.name)
        if "list[str]" in str(each.type) and value is not None:
            values = [value] if isinstance(value, str | Path) else value
            setattr(arguments, each.name, [str(part) for part in values])


@dataclass(kw_only=True)
class TextArguments:
    """Where a command finds its text: in files, or in a dataset."""

    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text files, URLs or glob patterns: .txt, .jsonl (also .gz, .zst), .parquet."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset (Hub name or folder) instead of files. Each row is a document."}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"advanced": True, "help": "Configuration of the dataset."}
    )
    dataset_split: str = field(default="train", metadata={"help": "Split of the dataset."})
    text_column_name: str = field(default="text", metadata={"help": "Text column of .jsonl, .parquet and datasets."})
    on_bad_text: OnBadText = field(
        default="error",
        metadata={"help": "Invalid UTF-8 and rows without text: error, skip, or replace bytes."},
    )

    def __post_init__(self):
        complete_lists(self)
        if self.train_file and self.dataset_name is not None:
            raise InputError("--train_file and --dataset_name cannot be combined. Remove one flag.")


@dataclass(kw_only=True)
class PreparationArguments(TextArguments):
    """The text, and how to split it into sentences.

    Attributes:
        language: the code. None: the command takes it from the tokenizer, the corpus or the checkpoint, or uses "en".
    """

    lines_are_sentences: bool = field(
        default=False, metadata={"help": "Each line is one sentence. By default, lines are split into sentences."}
    )
    language: str | None = field(
        default=None, metadata={"help": "Language code for splitting into sentences. Default: the stored code, or en."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Number of processes for tokenizing. Default: one per core."}
    )
    deduplicate: Deduplication | None = field(
        default=None, metadata={"help": "Leave out later copies of documents or of lines. Default: only report them."}
    )

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self)
        if self.language is not None:
            check_language(self.language)

    @property
    def sentence_language(self) -> str | None:
        """The language for splitting text into sentences. None if each line is a sentence."""
        return None if self.lines_are_sentences else self.language or DEFAULT


@dataclass(kw_only=True)
class OutputArguments:
    """Where to write the corpus, and which shard of it to prepare."""

    output_dir: str | None = field(default=None, metadata={"help": "Folder or URL for the prepared corpus."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the corpus in --output_dir if its text or settings differ."}
    )
    shard: str = field(
        default="1/1",
        metadata={"help": "Prepare only shard i of n, written i/n, to divide the work among machines."},
    )
    store_words: bool = field(
        default=False,
        metadata={"help": "Store word boundaries for --masking words or spans. WordPiece does not need them."},
    )
    check: bool = field(
        default=False,
        metadata={"help": "Only verify the corpus. --shard 1/n also lists the shards to repeat."},
    )

    def __post_init__(self):
        self.shard_number, self.num_shards = parse_shard(self.shard)


def parse_shard(shard: str) -> tuple[int, int]:
    """Returns `i` and `n` of a shard "i/n"."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {shard!r} must be i/n with i from 1 to n, such as 1/4.")
    return int(match[1]), int(match[2])
