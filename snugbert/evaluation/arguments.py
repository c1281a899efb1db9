"""Arguments of `snugbert evaluate`.

`--help` imports this module, so it does not import datasets or matplotlib, which take seconds.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from snugbert.configuration_snugbert import SIZES
from snugbert.errors import InputError
from snugbert.models import ModelArguments
from snugbert.trainers.ranges import check_ranges


@dataclass
class EvaluatedModelArguments(ModelArguments):
    """Which model to evaluate."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Any masked language model of transformers: a folder or Hub name."}
    )
    config_name: str | None = field(
        default=None,
        metadata={"help": f"Evaluate random weights instead: {', '.join(SIZES)}, or a config folder."},
    )


@dataclass
class PairsArguments:
    """Which minimal pairs to score."""

    pairs_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Minimal pairs, files or glob patterns: .jsonl, .json, .csv, .tsv (also .gz, .zst)."},
    )
    good_column_name: str = field(default="sentence_good", metadata={"help": "Column of the acceptable sentence."})
    bad_column_name: str = field(default="sentence_bad", metadata={"help": "Column of the unacceptable sentence."})

    def __post_init__(self):
        if not self.pairs_file:
            raise InputError("no data. Give --pairs_file.")


@dataclass
class EvaluationArguments:
    """What to write.

    Raises:
        InputError: the seed is out of range.
    """

    help_group: ClassVar[str] = "output"

    output_dir: str | None = field(
        default=None, metadata={"help": "Folder for results and plots. Default: only print the results."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the results in --output_dir."})
    update_card: bool = field(
        default=False, metadata={"help": "Add the results to the header of the model's card (README.md)."}
    )
    seed: int = field(default=42, metadata={"advanced": True, "help": "Seed of random weights (--config_name)."})

    def __post_init__(self):
        check_ranges(self)
