"""`snugbert prepare`: text -> a prepared corpus, once, on one machine or shared among several.

`snugbert pretrain` prepares its text by itself, in a cache. This command is for a corpus that is prepared on other
machines than those that train, or that takes one machine alone too long:

    snugbert prepare --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared --shard 1/4
    snugbert pretrain --corpus prepared ...
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub.constants import HF_HOME
from transformers import PreTrainedTokenizerBase

from snugbert.trainers.command_line import InputError, parse_arguments
from snugbert.trainers.models import TokenizerArguments, load_tokenizer
from snugbert.trainers.pretraining.corpus import (
    Corpus,
    digest_of,
    digest_of_tokenizer,
    every,
    open_corpus,
    parts_of,
    prepare_corpus,
)
from snugbert.trainers.pretraining.documents import TextArguments


@dataclass(kw_only=True)
class PreparationArguments(TextArguments):
    """Which text, and how it is cut into sentences."""

    lines_are_sentences: bool = field(
        default=False, metadata={"help": "Each line is one sentence; otherwise lines are split into sentences."}
    )
    language: str = field(default="en", metadata={"help": "Language code, for splitting into sentences."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize; default: one for each core."}
    )

    def __post_init__(self):
        super().__post_init__()
        if self.preprocessing_num_workers is not None and self.preprocessing_num_workers < 1:
            raise InputError(f"--preprocessing_num_workers {self.preprocessing_num_workers} must be at least 1.")


@dataclass(kw_only=True)
class OutputArguments:
    """Where the corpus goes, and which share of the work is this machine's."""

    output_dir: str = field(metadata={"help": "Folder for the prepared corpus."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace what was prepared there from another text or with other settings."}
    )
    shard: str = field(
        default="1/1", metadata={"help": "Prepare share i of n, as i/n; the machines may share the folder or not."}
    )

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard {self.shard!r} must be i/n with i from 1 to n, such as 1/4.")
        self.shard_number, self.shards = int(match[1]), int(match[2])


def main(argv: list[str]) -> None:
    """Runs `snugbert prepare` with the arguments `argv`.

    Raises:
        InputError: what the user gave cannot be used, see [`parts_of`] and [`prepare_corpus`].
    """
    tokenizer_args, text_args, output_args = parse_arguments(
        (TokenizerArguments, PreparationArguments, OutputArguments),
        argv,
        prog="snugbert prepare",
        description="Tokenizes a corpus once, to pretrain on it many times.",
    )
    if tokenizer_args.tokenizer_name is None:
        raise InputError("which tokenizer? Give --tokenizer_name.")
    tokenizer = load_tokenizer(tokenizer_args)
    parts = parts_of(text_args, output_args.shards)
    folder = Path(output_args.output_dir)
    prepare_corpus(
        folder,
        parts[output_args.shard_number - 1 :: output_args.shards],
        tokenizer,
        None if text_args.lines_are_sentences else text_args.language,
        num_workers=text_args.preprocessing_num_workers,
        replace=output_args.overwrite_output_dir,
    )
    missing = [part.name for part in parts if not (folder / part.name).exists()]
    if missing:
        print(
            f"Shard {output_args.shard} is in {folder}. {len(missing)} of {len(parts)} parts are not there yet: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    else:
        print(f"{folder}: {open_corpus(folder, tokenizer)}")
        print(
            f"Next: snugbert pretrain --tokenizer_name {shlex.quote(tokenizer_args.tokenizer_name)} "
            f"--corpus {shlex.quote(str(folder))} --config_name mini --output_dir pretrained"
        )


def prepare_in_cache(
    text: TextArguments,
    tokenizer: PreTrainedTokenizerBase,
    language: str | None,
    cache_dir: str | None,
    num_workers: int | None = None,
    keeps: Callable[[int], bool] = every,
    documents: str = "all",
    show_progress: bool = True,
) -> tuple[Path, Corpus]:
    """The prepared corpus of a text, from the cache if it is there and the text has not changed.

    Args:
        text: files or a dataset.
        tokenizer, language, num_workers, documents, show_progress: as in [`prepare_corpus`].
        cache_dir: the folder of the cache; default: `HF_HOME`.
        keeps: as in [`parts_of`].

    Returns:
        The folder, `snugbert/<digest of names and settings>` in the cache, and what it holds.

    Raises:
        InputError: as in [`parts_of`] and [`prepare_corpus`].
    """
    parts = parts_of(text, keeps=keeps)
    dataset = [text.dataset_name, text.dataset_config_name, text.dataset_split]
    names = [str(file.resolve()) for part in parts for file in part.files]
    key = digest_of([dataset, names, text.text_column_name, digest_of_tokenizer(tokenizer), language, documents])
    folder = Path(cache_dir or HF_HOME) / "snugbert" / key
    prepare_corpus(folder, parts, tokenizer, language, documents, num_workers, True, show_progress)
    return folder, open_corpus(folder, tokenizer)
