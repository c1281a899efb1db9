"""The arguments of `snugbert evaluate`. Any masked language model of transformers can be scored, to compare models."""

from dataclasses import dataclass

from snugbert.cli.arguments import SEED, OverwriteArguments, argument, check_ranges, complete_lists
from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.data_arguments import ValidationArguments
from snugbert.errors import InputError


@dataclass
class EvaluatedModelArguments(ModelArguments):
    """Which model to evaluate, and in which precision."""

    bf16: bool = argument(False, "Compute in bfloat16 (autocast): faster, but the scores are less exact.")

    def __post_init__(self):
        if self.model_name_or_path is not None and self.config_name is not None:
            raise InputError(
                "--config_name (random weights) cannot be combined with --model_name_or_path. Remove one flag."
            )
        super().__post_init__()


@dataclass
class EvaluationArguments(OverwriteArguments):
    """Which minimal pairs to score, and where to write the results."""

    pairs_file: list[str] = argument(
        [], "Minimal pairs, files or glob patterns: .jsonl, .json, .csv, .tsv, .txt (also .gz, .zst)."
    )
    good_column_name: str = argument("sentence_good", "Column of the acceptable sentence.")
    bad_column_name: str = argument("sentence_bad", "Column of the unacceptable sentence.")
    output_dir: str | None = argument(None, "Folder for the results. Default: only print them.")
    seed: int = argument(42, "Seed of the random weights (--config_name).", range=SEED, advanced=True)

    def __post_init__(self):
        complete_lists(self)
        check_ranges(self)


@dataclass(kw_only=True)
class HeldOutTextArguments(ValidationArguments):
    """The held-out text, its examples, and the text that gives the token frequencies of the baseline.

    Names and defaults are the same as in `snugbert pretrain`, so both commands report the same metrics.
    """

    train_file: list[str] = argument(
        [], "Text for the token frequencies of the baseline. Default: --validation_file.", opens_urls=True
    )

    def __post_init__(self):
        super().__post_init__()
        if (self.train_file or self.dataset_name is not None) and not self.validation_file:
            raise InputError(
                "--validation_file is missing. --train_file and --dataset_name are only for the token frequencies of "
                "the baseline."
            )
