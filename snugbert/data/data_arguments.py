"""Arguments that select text, split it into sentences, and choose the folder of the prepared corpus."""

from dataclasses import dataclass
from typing import Literal

from snugbert.cli.arguments import COUNT, OverwriteArguments, ShardArguments, argument, check_ranges, complete_lists
from snugbert.data.languages import DEFAULT, check_language
from snugbert.errors import InputError

OnBadText = Literal["error", "skip", "replace"]
Deduplication = Literal["documents", "lines"]
CACHE_GB = 20.0  # size of the local cache for blocks of a corpus in a bucket


@dataclass(kw_only=True)
class TextArguments:
    """Where a command finds its text: in files, or in a dataset."""

    train_file: list[str] = argument(
        [], "Text files, URLs or glob patterns: .txt, .jsonl (also .gz, .zst), .parquet.", opens_urls=True
    )
    dataset_name: str | None = argument(
        None, "Dataset (Hub name or folder) instead of --train_file. Each row is a document."
    )
    dataset_config_name: str | None = argument(None, "Configuration of the dataset.", advanced=True)
    dataset_split: str = argument("train", "Split of the dataset.")
    text_column_name: str = argument("text", "Text column of .jsonl, .parquet and datasets.")
    on_bad_text: OnBadText = argument("error", "Invalid UTF-8 and rows without text: error, skip, or replace bytes.")
    # None: pretraining takes it from the tokenizer, the corpus or the checkpoint, or uses "en".
    language: str | None = argument(
        None, "Language code for splitting into sentences. Default: the stored code, or en."
    )

    def __post_init__(self):
        complete_lists(self)
        check_ranges(self)
        if self.train_file and self.dataset_name is not None:
            raise InputError("--train_file and --dataset_name cannot be combined. Remove one flag.")
        if self.language is not None:
            check_language(self.language)


@dataclass(kw_only=True)
class PreparationArguments(TextArguments):
    """The text, and how to split it into sentences."""

    lines_are_sentences: bool = argument(
        False, "Each line is one sentence. By default, lines are split into sentences."
    )
    preprocessing_num_workers: int | None = argument(
        None, "Number of processes for tokenizing. Default: one per core.", range=COUNT
    )
    deduplicate: Deduplication | None = argument(
        None, "Leave out later copies of documents or of lines. Default: only report them."
    )

    @property
    def sentence_language(self) -> str | None:
        """The language for splitting text into sentences. None if each line is a sentence."""
        return None if self.lines_are_sentences else self.language or DEFAULT


@dataclass(kw_only=True)
class ValidationArguments(PreparationArguments):
    """Text to evaluate on, and how to make examples from it."""

    validation_file: list[str] = argument(
        [], "Text to evaluate on: .txt, .jsonl (also .gz, .zst), .parquet.", opens_urls=True
    )
    max_seq_length: int = argument(128, "Maximum tokens per example.")
    no_nsp: bool = argument(False, "Use full sentences without pairs, as with --objective mlm.")
    sentence_order: bool = argument(
        False, "Predict the order of segments instead of the next sentence, as with --objective mlm+order."
    )
    max_eval_samples: int | None = argument(
        None, "Maximum number of examples to evaluate on. Default: all.", range=COUNT
    )


@dataclass(kw_only=True)
class OutputArguments(OverwriteArguments, ShardArguments):
    """Where to write the corpus, and which shard of it to prepare."""

    output_dir: str | None = argument(None, "Folder or URL for the prepared corpus.", opens_urls=True)
    store_words: bool = argument(
        False, "Store word boundaries for --masking words or spans. WordPiece does not need them."
    )
