"""Arguments of `snugbert squad` that select and read the data."""

from dataclasses import dataclass, field
from typing import Literal

from snugbert.cli.ranges import check_ranges
from snugbert.data.data_arguments import complete_lists
from snugbert.data.sources import DataArguments, check_sources


@dataclass
class SquadDataArguments(DataArguments):
    """Which questions to use, and how to read and answer them.

    The names come from transformers' `run_qa.py`. The defaults for windows, lengths and the number of answers come
    from the original release's `run_squad.py`.
    """

    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub, or a folder that the datasets library can load."}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"advanced": True, "help": "Configuration of the dataset."}
    )
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training questions in SQuAD's JSON or JSON lines, also .gz or .zst. One or more files."},
    )
    unlabeled_file: str | None = field(
        default=None,
        metadata={"help": "Training questions for --teacher_name_or_path to answer. Given answers are ignored."},
    )
    validation_file: str | None = field(default=None, metadata={"help": "Questions to evaluate on."})
    test_file: str | None = field(
        default=None, metadata={"help": "Questions to predict answers to. Reference answers are optional."}
    )
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Allow questions without an answer (SQuAD v2.0)."}
    )
    on_bad_answer: Literal["stop", "skip"] = field(
        default="stop",
        metadata={"help": "If an answer is not at its position: stop, or skip it in training."},
    )
    max_seq_length: int = field(default=384, metadata={"help": "Maximum tokens of a window: question and context."})
    doc_stride: int | None = field(
        default=None,
        metadata={"help": "Tokens that neighboring windows share. Default: 128, or a third of a window below 256."},
    )
    max_query_length: int = field(
        default=64,
        metadata={"advanced": True, "help": "Maximum tokens of a question. Longer questions are truncated."},
    )
    n_best_size: int = field(
        default=20, metadata={"advanced": True, "help": "Number of candidate answers per question."}
    )
    max_answer_length: int = field(default=30, metadata={"help": "Maximum tokens of an answer."})
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={"help": 'Predict "no answer" if it scores this much higher than the best answer.'},
    )
    overwrite_cache: bool = field(
        default=False, metadata={"advanced": True, "help": "Accepted and ignored: nothing is cached."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"advanced": True, "help": "Accepted and ignored: the tokenizer uses all cores."}
    )

    def __post_init__(self):
        complete_lists(self)
        check_ranges(self)
        check_sources(self.files, self.dataset_name, self.unlabeled_file)
