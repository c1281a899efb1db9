"""Arguments of `snugbert ner` that select and read the data."""

from dataclasses import dataclass, field
from typing import Literal

from snugbert.cli.ranges import Range, check_ranges
from snugbert.data.sources import DataArguments, check_sources

DOCUMENT_COLUMNS = ("document_id", "doc_id", "doc")  # in JSON files and datasets


@dataclass
class NerDataArguments(DataArguments):
    """Which data to use and how to read them.

    The names come from transformers' `run_ner.py`. The last four are new.
    """

    task_name: str = field(
        default="ner",
        metadata={"advanced": True, "help": "Name of the tagging task. Its tags are in column <task_name>_tags."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub, or a folder that the datasets library can load."}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"advanced": True, "help": "Configuration of the dataset."}
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": "Training sentences: .json, .jsonl, or CoNLL (any other suffix), also .gz or .zst."},
    )
    unlabeled_file: str | None = field(
        default=None,
        metadata={"help": "Training sentences for --teacher_name_or_path to tag. Tags in the file are ignored."},
    )
    validation_file: str | None = field(default=None, metadata={"help": "Sentences to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "Sentences to tag, with or without tags."})
    text_column_name: str | None = field(
        default=None,
        metadata={"help": "Column of the words: a name, or a number for CoNLL. Default: tokens, or the first."},
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Column of the tags. Default: ner_tags or tags, or the last for CoNLL."}
    )
    # 128 was the default of run_ner.py while it had one (transformers 3). Only 5 of CoNLL-2003's 20,744 sentences are
    # longer. Without padding a higher limit costs nothing, and --document_context benefits from it.
    max_seq_length: int = field(
        default=128, metadata={"help": "Maximum tokens of a window. Longer sentences take several windows."}
    )
    overwrite_cache: bool = field(
        default=False, metadata={"advanced": True, "help": "Accepted and ignored: nothing is cached."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"advanced": True, "help": "Accepted and ignored: the tokenizer uses all cores."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"advanced": True, "help": "Label all sub-tokens of a word, not only the first."}
    )
    return_entity_level_metrics: bool = field(
        default=False, metadata={"advanced": True, "help": "Log the metrics of each entity type during training."}
    )
    tag_scheme: Literal["auto", "bio", "iob1", "iobes", "bilou", "bmes"] = field(
        default="auto", metadata={"help": "Tagging scheme of the files. auto: the scheme that fits best."}
    )
    on_bad_tag: Literal["stop", "repair"] = field(
        default="stop",
        metadata={"help": "stop at invalid tags, or repair them as conlleval does."},
    )
    document_context: bool = field(
        default=False, metadata={"help": "Fill windows with neighboring sentences of the document."}
    )
    document_column_name: str | None = field(
        default=None,
        metadata={"advanced": True, "help": f"Column of document ids. Default: {', '.join(DOCUMENT_COLUMNS)}."},
    )

    def __post_init__(self):
        # [CLS], [SEP] and two other tokens: half of the room must be at least one token.
        check_ranges(self, max_seq_length=Range(4))
        check_sources(self.files, self.dataset_name, self.unlabeled_file)

    @property
    def tag_columns(self) -> tuple[str, ...]:
        """The possible columns of tags in JSON files and datasets."""
        return (self.label_column_name,) if self.label_column_name else (f"{self.task_name}_tags", "tags")
