"""Arguments of `snugbert squad` about the data, and its settings of training."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from snugbert.trainers.finetuning.arguments import ExampleLimits, FineTuningArguments
from snugbert.trainers.splits import check_sources


@dataclass
class SquadDataArguments(ExampleLimits):
    """Which questions to use, and how to read and answer them. The names are those of `run_qa.py`.

    Windows, lengths and the number of answers: the defaults of the original release's `run_squad.py`.

    Raises:
        InputError: a value out of range, a file that does not exist, or both files and a data set.
    """

    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set of the Hub, or a folder that the datasets library reads."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of that data set."})
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Questions to train on: SQuAD's JSON or JSON lines, also .gz or .zst; one or more files."},
    )
    validation_file: str | None = field(default=None, metadata={"help": "Questions to score the model on."})
    test_file: str | None = field(default=None, metadata={"help": "Questions to answer, with or without answers."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Some questions have no answer, as in SQuAD v2.0."}
    )
    on_bad_answer: Literal["stop", "skip"] = field(
        default="stop",
        metadata={"help": "What to do if an answer is not in its paragraph where it should be: stop, or go on."},
    )
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a window of question and paragraph."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a paragraph have in common."})
    max_query_length: int = field(
        default=64, metadata={"help": "Longest question in tokens; a longer one loses its end."}
    )
    n_best_size: int = field(default=20, metadata={"help": "Answers to a question to weigh, and to write down."})
    max_answer_length: int = field(default=30, metadata={"help": "Longest answer in tokens."})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={"help": "No answer is given if its score is so much above that of the best answer (v2.0)."},
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Accepted; nothing is cached."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Accepted; the tokenizer uses all cores."}
    )

    def __post_init__(self):
        self.check_least(max_query_length=1, doc_stride=0, n_best_size=1, max_answer_length=1)
        check_sources(self.files, self.dataset_name)

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files of each split that has any."""
        named = {
            "train": self.train_file or [],
            "validation": [self.validation_file] if self.validation_file else [],
            "test": [self.test_file] if self.test_file else [],
        }
        return {split: [Path(name) for name in names] for split, names in named.items() if names}


@dataclass
class SquadTrainingArguments(FineTuningArguments):
    """[`FineTuningArguments`] with the paper's learning rate for SQuAD (Devlin et al., 2018, section 4.2)."""

    learning_rate: float = field(default=5e-5, metadata={"help": "The peak learning rate."})
