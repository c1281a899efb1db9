"""The arguments of `snugbert evaluate` for held-out text.

`--help` imports this module, so it does not import datasets, which takes seconds.
"""

from dataclasses import dataclass, field

from snugbert.trainers.corpus.arguments import PreparationArguments


@dataclass(kw_only=True)
class HeldOutTextArguments(PreparationArguments):
    """The held-out text, its examples, and the text that gives the token frequencies of the baseline.

    Names and defaults are those of `snugbert pretrain`, so both commands report the same metrics.

    Raises:
        InputError: a value is out of range.
    """

    validation_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Held-out text to score: .txt, .jsonl (also .gz, .zst), .parquet."},
    )
    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text that gives the token frequencies of the baseline. Default: --validation_file."},
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset (Hub name or folder) instead of --train_file."}
    )
    max_seq_length: int = field(default=128, metadata={"help": "Maximum tokens per example of held-out text."})
    no_nsp: bool = field(
        default=False, metadata={"help": "Score full sentences without pairs, even if the model predicts pairs."}
    )
    sentence_order: bool = field(
        default=False, metadata={"help": "The model predicts the order of segments instead of the next sentence."}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "Maximum number of held-out examples."})
