"""Arguments of `snugbert glue` about the data."""

from dataclasses import dataclass, field

from snugbert.errors import InputError
from snugbert.trainers.finetuning.arguments import ExampleLimits
from snugbert.trainers.glue.benchmark import TASKS, GlueTask


@dataclass
class GlueDataArguments(ExampleLimits):
    """Which data to use. The names are those of `run_glue.py` and `run_classification.py`, and `data_dir`."""

    task_name: str | None = field(
        default=None, metadata={"help": f"A GLUE task: {', '.join(TASKS)}; or all for all of them."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "A folder of GLUE TSV files: the task's own, or the one that holds it."}
    )
    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set of the Hub, or a folder that the datasets library reads."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "The configuration of that data set."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training examples: .tsv, .csv, .json or .jsonl, also .gz."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Examples to score the model on."})
    test_file: str | None = field(default=None, metadata={"help": "Examples to predict, with or without labels."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "Of one's own data: the column of the text, or the two of a pair: title,text."}
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Of one's own data: the column of the label; default: label."}
    )
    label_separator: str | None = field(
        default=None,
        metadata={"help": "What separates labels, if an example may have several. A list in JSON needs nothing."},
    )
    # None, too; but HfArgumentParser lets nothing but a `bool` stand without a value.
    do_regression: bool = field(  # type: ignore[assignment]
        default=None,
        metadata={
            "help": "Of one's own data: predict the label as a number, or (false) take it for the name of a class; "
            "default: a number where all are numbers and not all whole ones."
        },
    )
    max_seq_length: int = field(
        default=128, metadata={"help": "Longest example in tokens; a longer one loses the end of its longer sentence."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Accepted; nothing is cached."})

    def __post_init__(self):
        if self.task_name is not None:
            known, given = ", ".join((*TASKS, "all")), self.task_name
            self.task_name = given.lower().replace("-", "")  # SST-2 is the folder, sst2 the task
            if self.task_name not in (*TASKS, "all"):
                raise InputError(f"--task_name: there is no task {given!r}; the tasks are {known}.")
            own = ("text_column_names", "label_column_name", "label_separator", "do_regression")
            self._refuse("is for one's own data", *own)
        if self.task_name == "all":
            files = ("train_file", "validation_file", "test_file")
            self._refuse("is of one task; all of them are in --data_dir or on the Hub", "dataset_name", *files)
        # A pair has three special tokens; below that the tokenizer does not truncate at all.
        self.check_least(max_seq_length=3)

    def _refuse(self, reason: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} {reason}; leave it out with --task_name {self.task_name}.")

    @property
    def task(self) -> GlueTask | None:
        """The GLUE task; None: one's own data."""
        return TASKS[self.task_name] if self.task_name else None
