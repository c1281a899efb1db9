"""`snugbert evaluate`: scores a masked language model on minimal pairs and held-out text.

    snugbert evaluate --model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz' --output_dir scores
    snugbert evaluate --model_name_or_path pretrained --validation_file held_out.txt

Any masked language model of transformers can be scored, so that models can be compared.

`--help` imports this module, so it does not import datasets or matplotlib, which take seconds.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from snugbert.cli.model_arguments import SIZE_NAMES, ModelArguments
from snugbert.cli.ranges import check_ranges
from snugbert.data.data_arguments import PreparationArguments, complete_lists
from snugbert.errors import InputError


@dataclass
class EvaluatedModelArguments(ModelArguments):
    """Which model to evaluate, and in which precision."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Any masked language model of transformers: a folder or Hub name."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Score random weights: {', '.join(SIZE_NAMES)}, or a config folder."},
    )
    bf16: bool = field(
        default=False, metadata={"help": "Compute in bfloat16 (autocast): faster, but the scores are less exact."}
    )

    def __post_init__(self):
        if self.model_name_or_path is not None and self.config_name is not None:
            raise InputError(
                "--config_name (random weights) cannot be combined with --model_name_or_path. Remove one of these "
                "flags."
            )
        super().__post_init__()


@dataclass
class PairsArguments:
    """Which minimal pairs to score."""

    pairs_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Minimal pairs, files or glob patterns: .jsonl, .json, .csv, .tsv, .txt (also .gz, .zst)."},
    )
    good_column_name: str = field(default="sentence_good", metadata={"help": "Column of the acceptable sentence."})
    bad_column_name: str = field(default="sentence_bad", metadata={"help": "Column of the unacceptable sentence."})

    def __post_init__(self):
        complete_lists(self)


@dataclass(kw_only=True)
class HeldOutTextArguments(PreparationArguments):
    """The held-out text, its examples, and the text that gives the token frequencies of the baseline.

    Names and defaults are the same as in `snugbert pretrain`, so both commands report the same metrics.
    """

    validation_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Held-out text to score: .txt, .jsonl (also .gz, .zst), .parquet."},
    )
    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text for the token frequencies of the baseline. Default: --validation_file."},
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

    def __post_init__(self):
        super().__post_init__()
        if (self.train_file or self.dataset_name is not None) and not self.validation_file:
            raise InputError(
                "--validation_file is missing. --train_file and --dataset_name are only for the token frequencies of "
                "the baseline."
            )


@dataclass
class EvaluationArguments:
    """What to write."""

    help_group: ClassVar[str] = "output"

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for results and plots. Default: only print the results."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the results in --output_dir."})
    update_card: bool = field(
        default=False, metadata={"help": "Add the results to the header of the model's card (README.md)."}
    )
    seed: int = field(default=42, metadata={"advanced": True, "help": "Seed of the random weights (--config_name)."})

    def __post_init__(self):
        check_ranges(self)
