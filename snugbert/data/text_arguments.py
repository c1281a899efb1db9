"""The arguments that select the text for `snugbert vocabulary`, `prepare` and `pretrain`.

`--help` imports this module, so it does not import Trainer or datasets, which take seconds.
"""

from dataclasses import dataclass, field
from typing import Literal

from snugbert.errors import InputError

OnBadText = Literal["error", "skip", "replace"]


@dataclass(kw_only=True)
class TextArguments:
    """Where a command finds its text: in files, or in a dataset.

    Raises:
        InputError: both files and a dataset are given.
    """

    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text files or glob patterns: .txt, .jsonl (also .gz, .zst), .parquet."},
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
        if self.train_file and self.dataset_name is not None:
            raise InputError("--train_file and --dataset_name exclude each other. Give one of them.")
