"""Arguments of the tasks' commands that select and read the data.

`--help` imports this module, so it imports neither models nor datasets, which take seconds.
"""

from dataclasses import dataclass, field
from typing import Literal

from snugbert.cli.ranges import Range, check_ranges
from snugbert.data.data_arguments import complete_lists
from snugbert.data.glue import GLUE_ON_THE_HUB, TASKS, GlueTask
from snugbert.data.sources import DataArguments, check_sources
from snugbert.errors import InputError, explain_choice

# The metrics of --tune_thresholds.
BINARY_METRICS = ("f1", "accuracy")
LABEL_SET_METRICS = ("macro_f1",)
DOCUMENT_COLUMNS = ("document_id", "doc_id", "doc")  # in JSON files and datasets


@dataclass
class GlueDataArguments(DataArguments):
    """Which data to use and how to read them.

    The names come from transformers' `run_glue.py` and `run_classification.py`. `data_dir` is new.
    """

    task_name: str | None = field(
        default=None, metadata={"help": f"GLUE task ({', '.join(TASKS)}), or all for every task."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of GLUE TSV files: the task's folder or its parent."}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Training examples: .tsv, .csv, .json or .jsonl, also .gz or .zst."}
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "Text column of your own data. For pairs, two columns, such as title,text."}
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Label column of your own data. Default: label."}
    )
    label_separator: str | None = field(
        default=None,
        metadata={"help": "Separator of several labels in one cell. JSON lists need no separator."},
    )
    on_missing_label: Literal["error", "skip"] = field(
        default="error",
        metadata={"advanced": True, "help": "Training and validation examples without a label: error, or skip them."},
    )
    # The default is None, but HfArgumentParser accepts `--do_regression` without a value only for the type `bool`.
    do_regression: bool = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Predict a number (true) or a class (false). Default: a number if labels have decimals."},
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Maximum tokens of a text or window. Default: 128, or the model's windows."},
    )
    doc_stride: int | None = field(
        default=None,
        metadata={"help": "Read whole texts, in windows that share this many tokens. Default: truncate texts."},
    )
    tune_thresholds: str | None = field(
        default=None,
        metadata={
            "advanced": True,
            "help": "Choose thresholds on the validation examples for a metric: f1 or accuracy (two labels), or "
            "macro_f1 (several labels per example).",
        },
    )
    calibrate: bool = field(
        default=False,
        metadata={
            "advanced": True,
            "help": "Choose a temperature on the validation examples, so that probabilities match the accuracy.",
        },
    )
    abstain_below: float | None = field(
        default=None,
        metadata={"advanced": True, "help": "Predict no label below this probability, as in snugbert predict."},
    )

    def __post_init__(self):
        if self.task_name is not None:
            given = self.task_name
            self.task_name = given.lower().replace("-", "")  # "SST-2" is the folder, "sst2" the task
            if self.task_name not in (*TASKS, "all"):
                raise InputError(explain_choice("--task_name", given, (*TASKS, "all")))
            own_data = ("text_column_names", "label_column_name", "label_separator", "do_regression")
            self._refuse("is only for your own data", *own_data)
        if self.task_name == "all":
            reason = "is for a single task. The data of all tasks come from --data_dir or the Hub"
            self._refuse(reason, "dataset_name", "train_file", "unlabeled_file", "validation_file", "test_file")
        known = (*BINARY_METRICS, *LABEL_SET_METRICS)
        if self.tune_thresholds not in (None, *known):
            raise InputError(explain_choice("--tune_thresholds", self.tune_thresholds, known))
        if self.task_name == "all" and (self.calibrate or self.tune_thresholds is not None):
            raise InputError(
                "--calibrate and --tune_thresholds need classes. STS-B has no classes. Set --task_name to one task."
            )
        if self.doc_stride is not None and self.task is not None and len(self.task.text_columns) == 2:
            self._refuse("cannot read pairs of texts", "doc_stride")
        # A pair has three special tokens. With a smaller limit the tokenizer would not truncate at all.
        check_ranges(self, max_seq_length=Range(3))
        if self.data_dir is not None and self.task_name is None:
            raise InputError("--task_name is missing. Name the GLUE task whose files are in --data_dir.")
        if self.data_dir is not None and self.dataset_name is not None:
            raise InputError("--dataset_name and --data_dir cannot be combined. Remove --dataset_name or --data_dir.")
        default_dataset = GLUE_ON_THE_HUB if self.task_name is not None and not self.files else None
        check_sources(self.files, self.dataset_name or default_dataset)

    def _refuse(self, reason: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} {reason}. Remove --{name}, or --task_name {self.task_name}.")

    @property
    def task(self) -> GlueTask | None:
        """The GLUE task. None: your own data."""
        return TASKS[self.task_name] if self.task_name else None

    @property
    def given_columns(self) -> tuple[str, ...]:
        """The text columns of the GLUE task, or the columns in `text_column_names`. Empty if neither is given."""
        names = self.text_column_names or ""
        return self.task.text_columns if self.task else tuple(name.strip() for name in names.split(",") if names)


@dataclass
class SquadDataArguments(DataArguments):
    """Which questions to use, and how to read and answer them.

    The names come from transformers' `run_qa.py`. The defaults for windows, lengths and the number of answers come
    from the original release's `run_squad.py`.
    """

    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training questions in SQuAD's JSON or JSON lines, also .gz or .zst. One or more files."},
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

    def __post_init__(self):
        complete_lists(self)
        super().__post_init__()


@dataclass
class NerDataArguments(DataArguments):
    """Which data to use and how to read them.

    The names come from transformers' `run_ner.py`. The last four are new.
    """

    task_name: str = field(
        default="ner",
        metadata={"advanced": True, "help": "Name of the tagging task. Its tags are in column <task_name>_tags."},
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": "Training sentences: .json, .jsonl, or CoNLL (any other suffix), also .gz or .zst."},
    )
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
        super().__post_init__()

    @property
    def tag_columns(self) -> tuple[str, ...]:
        """The possible columns of tags in JSON files and datasets."""
        return (self.label_column_name,) if self.label_column_name else (f"{self.task_name}_tags", "tags")
