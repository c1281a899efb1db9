"""Arguments of `snugbert glue` that select and read the data."""

from dataclasses import dataclass, field
from typing import Literal

from snugbert.cli.ranges import Range, check_ranges
from snugbert.data.glue import GLUE_ON_THE_HUB, TASKS, GlueTask
from snugbert.data.sources import DataArguments, check_sources
from snugbert.errors import InputError
from snugbert_arguments import explain_choice

# The metrics of --tune_thresholds, for two classes and for several labels per example.
BINARY_METRICS = ("f1", "accuracy", "matthews_correlation")
LABEL_SET_METRICS = ("micro_f1", "macro_f1", "subset_accuracy")
METRICS_WITH_THRESHOLDS = BINARY_METRICS + LABEL_SET_METRICS


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
    dataset_name: str | None = field(
        default=None, metadata={"help": "Dataset on the Hub, or a folder that the datasets library can load."}
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"advanced": True, "help": "Configuration of the dataset."}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Training examples: .tsv, .csv, .json or .jsonl, also .gz or .zst."}
    )
    unlabeled_file: str | None = field(
        default=None,
        metadata={"help": "Training examples for --teacher_name_or_path to label. Labels in the file are ignored."},
    )
    validation_file: str | None = field(default=None, metadata={"help": "Examples to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "Examples to predict, with or without labels."})
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
            "help": "Choose thresholds on the validation examples for a metric: f1, accuracy or matthews_correlation "
            "(two labels), micro_f1, macro_f1 or subset_accuracy (several labels per example).",
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
    overwrite_cache: bool = field(
        default=False, metadata={"advanced": True, "help": "Accepted and ignored: nothing is cached."}
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
        if self.tune_thresholds not in (None, *METRICS_WITH_THRESHOLDS):
            raise InputError(explain_choice("--tune_thresholds", self.tune_thresholds, METRICS_WITH_THRESHOLDS))
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
        check_sources(self.files, self.dataset_name or default_dataset, self.unlabeled_file)

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
