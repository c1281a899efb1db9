"""The arguments of `snugbert prepare`. `snugbert pretrain` shares `PreparationArguments`.

`--help` imports this module, so it does not import Trainer or datasets, which take seconds.
"""

import re
from dataclasses import dataclass, field

from snugbert.data.languages import DEFAULT, check_language
from snugbert.data.text_arguments import TextArguments
from snugbert.errors import InputError
from snugbert.ranges import check_ranges

Names = list[str]  # `list` is a field of CacheArguments


@dataclass(kw_only=True)
class PreparationArguments(TextArguments):
    """The text, and how to split it into sentences.

    Raises:
        InputError: a value is out of range, or the language is not a code.

    Attributes:
        language: the code. None: the command takes it from the tokenizer, the corpus or the checkpoint, or uses "en".
    """

    lines_are_sentences: bool = field(
        default=False, metadata={"help": "Each line is one sentence. By default, lines are split into sentences."}
    )
    language: str | None = field(
        default=None, metadata={"help": "Language code for splitting into sentences. Default: the stored one, or en."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Number of processes for tokenizing. Default: one per core."}
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
    """Where to write the corpus, and which shard of it to prepare.

    Raises:
        InputError: `shard` is not `i/n` with `i` from 1 to `n`.

    Attributes:
        shard_number, num_shards: `i` and `n` of `shard`.
    """

    output_dir: str | None = field(default=None, metadata={"help": "Folder for the prepared corpus."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the corpus in --output_dir if its text or settings differ."}
    )
    shard: str = field(
        default="1/1",
        metadata={"help": "Prepare only shard i of n, written i/n, to divide the work among machines."},
    )

    def __post_init__(self):
        self.shard_number, self.num_shards = parse_shard(self.shard)


def parse_shard(shard: str) -> tuple[int, int]:
    """Returns `i` and `n` of a shard "i/n".

    Raises:
        InputError: it has another form, or `i` is not from 1 to `n`.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {shard!r} must be i/n with i from 1 to n, such as 1/4.")
    return int(match[1]), int(match[2])


@dataclass(kw_only=True)
class CacheArguments:
    """Arguments that list or clean the cache of prepared text."""

    clean: Names = field(
        default_factory=list,
        metadata={"help": "Remove prepared text from the cache, then stop: names from --list, or all."},
    )
    list: bool = field(default=False, metadata={"help": "List the prepared text in the cache, then stop."})
