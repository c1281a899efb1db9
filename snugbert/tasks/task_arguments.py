"""Arguments of the tasks' commands that select and read the data."""

from dataclasses import dataclass
from typing import Literal

from snugbert.cli.arguments import COUNT, NOT_NEGATIVE, POSITIVE_SHARE, Range, argument
from snugbert.data.glue import TASKS, GlueTask
from snugbert.data.sources import DataArguments, ExampleArguments
from snugbert.errors import InputError, explain_choice

# The metrics of --tune_thresholds.
BINARY_METRICS = ("f1", "accuracy")
LABEL_SET_METRICS = ("macro_f1",)
DOCUMENT_COLUMNS = ("document_id", "doc_id", "doc")  # in JSON files and datasets
# Columns with entities: ours and doccano's; Prodigy's; spaCy's; doccano's and Label Studio's; older doccano's.
SPAN_COLUMNS = ("entities", "spans", "ents", "label", "labels")


@dataclass
class GlueDataArguments(ExampleArguments):
    """Which data to use and how to read them.

    The names come from transformers' `run_glue.py` and `run_classification.py`. `data_dir` is new.
    """

    task_name: str | None = argument(
        None, f"GLUE task ({', '.join(TASKS)}), or all for every task. Default: your own data."
    )
    data_dir: str | None = argument(None, "Folder of GLUE TSV files: the task's folder or its parent.")
    text_column_names: str | None = argument(
        None, "Text column of your own data. For pairs, two columns, such as title,text."
    )
    label_column_name: str | None = argument(None, "Label column of your own data. Default: label.")
    label_separator: str | None = argument(
        None, "Separator of several labels in one cell. JSON lists need no separator."
    )
    do_regression: bool | None = argument(
        None, "Predict a number (true) or a class (false). Default: a number if labels have decimals."
    )
    max_seq_length: int | None = argument(  # type: ignore[assignment]
        None, "Maximum tokens of a text or window. Default: 128, or the model's windows.", range=Range(3)
    )
    doc_stride: int | None = argument(
        None, "Read whole texts in windows that share N tokens. Default: truncate texts.", range=NOT_NEGATIVE
    )
    tune_thresholds: str | None = argument(
        None,
        "Choose thresholds on the validation examples: for f1 or accuracy (two labels), or macro_f1 (label sets).",
        choices=(*BINARY_METRICS, *LABEL_SET_METRICS),
        advanced=True,
    )
    calibrate: bool = argument(
        False, "Choose a temperature on the validation examples, so that probabilities match accuracy.", advanced=True
    )
    abstain_below: float | None = argument(
        None, "Predict no label below this probability. Default: always predict.", range=POSITIVE_SHARE, advanced=True
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
            self._refuse("needs classes, but STS-B has none", "calibrate", "tune_thresholds")
        if self.task_name == "all" or (self.task is not None and len(self.task.text_columns) == 2):
            self._refuse("cannot read pairs of texts", "doc_stride")
        super().__post_init__()
        if self.data_dir is not None and (self.task_name is None or self.dataset_name is not None):
            raise InputError("--data_dir has the files of a GLUE task. Set --task_name, and remove --dataset_name.")

    def _refuse(self, reason: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(f"--{name} {reason}. Remove it, or choose another --task_name than {self.task_name}.")

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

    train_file: list[str] | None = argument(
        None, "Training questions in SQuAD's JSON or JSON lines, also .gz or .zst. One or more files."
    )
    version_2_with_negative: bool = argument(False, "Allow questions without an answer (SQuAD v2.0).")
    on_bad_answer: Literal["stop", "skip"] = argument(
        "stop", "If an answer is not at its position: stop, or skip it in training."
    )
    max_seq_length: int = argument(384, "Maximum tokens of a window: question and context.")
    doc_stride: int | None = argument(
        None, "Tokens that windows share. Default: 128, or a third of a window below 256.", range=NOT_NEGATIVE
    )
    max_query_length: int = argument(
        64, "Maximum tokens of a question. Longer questions are truncated.", range=COUNT, advanced=True
    )
    n_best_size: int = argument(20, "Number of candidate answers per question.", range=COUNT, advanced=True)
    max_answer_length: int = argument(30, "Maximum tokens of an answer.", range=COUNT)
    null_score_diff_threshold: float = argument(
        0.0, 'Predict "no answer" if it scores this much higher than the best answer.'
    )


@dataclass
class NerDataArguments(DataArguments):
    """Which data to use and how to read them.

    The names come from transformers' `run_ner.py`. The last four are new.
    """

    task_name: str = argument(
        "ner", "Name of the tagging task. Its tags are in column <task_name>_tags.", advanced=True
    )
    train_file: str | None = argument(
        None, "Training sentences: .json, .jsonl, or CoNLL (any other suffix), also .gz or .zst."
    )
    text_column_name: str | None = argument(
        None, "Column of the words: a name, or a number for CoNLL. Default: tokens or text, or the first."
    )
    label_column_name: str | None = argument(
        None, "Column of the tags or entities. Default: ner_tags, tags or entities, or the last for CoNLL."
    )
    # 128 was the default of run_ner.py in transformers 3. Only 5 of CoNLL-2003's 20,744 sentences are longer. Without
    # padding a higher limit costs nothing, and --document_context benefits from it. The minimum is [CLS], [SEP],
    # a token to label and a token of context.
    max_seq_length: int = argument(
        128, "Maximum tokens of a window. Longer sentences take several windows.", range=Range(4)
    )
    label_all_tokens: bool = argument(False, "Label all sub-tokens of a word, not only the first.", advanced=True)
    return_entity_level_metrics: bool = argument(
        False, "Log the metrics of each entity type during training.", advanced=True
    )
    tag_scheme: Literal["auto", "bio", "iob1", "iobes", "bilou", "bmes"] = argument(
        "auto", "Tagging scheme of the files. auto: the scheme that fits best."
    )
    on_bad_tag: Literal["stop", "repair"] = argument("stop", "Tags or entities that do not fit: stop, or repair them.")
    document_context: bool = argument(False, "Fill windows with neighboring sentences of the document.")
    document_column_name: str | None = argument(
        None, f"Column of document ids. Default: {', '.join(DOCUMENT_COLUMNS)}.", advanced=True
    )

    @property
    def tag_columns(self) -> tuple[str, ...]:
        """The possible columns of tags in JSON files and datasets."""
        return (self.label_column_name,) if self.label_column_name else (f"{self.task_name}_tags", "tags")

    @property
    def span_columns(self) -> tuple[str, ...]:
        """The possible columns of entities in JSON files and datasets with texts."""
        return (self.label_column_name,) if self.label_column_name else SPAN_COLUMNS
