"""Arguments of `snugbert ner` about the data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from snugbert.trainers.finetuning.arguments import ExampleLimits
from snugbert.trainers.splits import check_sources

DOCUMENT_COLUMNS = ("document_id", "doc_id", "doc")  # of JSON and data sets


@dataclass
class NerDataArguments(ExampleLimits):
    """Which data to use, and how to read them. The names are those of `run_ner.py`; the last four are new.

    Raises:
        InputError: a value out of range, a file that does not exist, or both files and a data set, or neither.
    """

    task_name: str = field(default="ner", metadata={"help": "The tags are in column <task_name>_tags."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set of the Hub, or a folder that the datasets library reads."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of that data set."})
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "Sentences to train on: .json or .jsonl, or any other name for CoNLL columns; also .gz, .zst."
        },
    )
    validation_file: str | None = field(default=None, metadata={"help": "Sentences to score the model on."})
    test_file: str | None = field(default=None, metadata={"help": "Sentences to tag, with or without tags."})
    text_column_name: str | None = field(
        default=None,
        metadata={"help": "Column of the words; default: tokens, in CoNLL files the first. A name or 1, 2 ..."},
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Column of the tags; default: ner_tags or tags, in CoNLL files the last."}
    )
    # 128 was the default of run_ner.py while it had one (transformers 3). Only 5 of CoNLL-2003's 20,744 sentences are
    # longer. A higher limit costs nothing where nothing is padded, and pays with --document_context.
    max_seq_length: int = field(
        default=128, metadata={"help": "Word pieces of a window; longer sentences are read in windows that overlap."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Accepted; nothing is cached."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Accepted; the tokenizer uses all cores."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Train on all pieces of a word, B- on the first and I- on the others."}
    )
    return_entity_level_metrics: bool = field(
        default=False, metadata={"help": "Show the figures of each type during training and on the last line, too."}
    )
    tag_scheme: Literal["auto", "bio", "iob1", "iobes", "bilou"] = field(
        default="auto", metadata={"help": "The scheme of all files; auto: the one that fits the tags best."}
    )
    on_bad_tag: Literal["stop", "repair"] = field(
        default="stop",
        metadata={"help": "What to do with tags that break the scheme: stop, or read them as conlleval does."},
    )
    document_context: bool = field(
        default=False, metadata={"help": "Fill windows with the neighbouring sentences of the same document."}
    )
    document_column_name: str | None = field(
        default=None, metadata={"help": f"Column that tells documents apart; default: {', '.join(DOCUMENT_COLUMNS)}."}
    )

    def __post_init__(self):
        # [CLS] and [SEP], and two pieces, so that half a window is one.
        self.check_least(max_seq_length=4)
        check_sources({split: [file] for split, file in self.files.items()}, self.dataset_name)

    @property
    def files(self) -> dict[str, Path]:
        """The file of each split that has one."""
        names = {"train": self.train_file, "validation": self.validation_file, "test": self.test_file}
        return {split: Path(name) for split, name in names.items() if name is not None}
