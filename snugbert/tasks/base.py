"""The base class of tasks: how rows become features, logits become answers, and answers become scores and files.

    find_sources -> read_splits -> choose_labels -> encode -> a model -> decode -> measure -> score
                                                                         decode -> to_columns, write

Fine-tuning, distillation, prediction, export and the benchmarks call these methods. A new task is a subclass of
[`Task`] in a new module. docs/decisions/tasks.md lists the other changes that a new head needs.

Shapes: N examples, W windows (rows of model inputs; a long example has several), L tokens, C labels.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from datasets import Dataset
from transformers import DataCollator, DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from snugbert.cli.arguments import InitSignature
from snugbert.data.sources import (
    SPLITS,
    DataArguments,
    DataSource,
    choose_splits,
    describe_source,
    load_dataset_splits,
)
from snugbert.errors import InputError
from snugbert.reports.cards import Head
from snugbert.reports.score_tables import LabelScores
from snugbert.tasks.outputs import Logits, Output

logger = logging.getLogger(__name__)

Problem = Literal["regression", "single_label_classification", "multi_label_classification"]  # transformers' names
Sources = Mapping[str, Sequence[Path | Dataset]]  # split -> the files or the dataset that contain its rows


class Baseline(NamedTuple):
    """The metrics of the same simple answer to every example."""

    answer: str  # as displayed: "always 'positive'"
    metrics: dict[str, float]


class Split(Protocol):
    """The examples of a split, as a task stores them."""

    @property
    def name(self) -> str:
        """A split in `SPLITS` or in the task's `set_names`, or "unlabeled", which only a teacher labels."""

    @property
    def labeled(self) -> bool:
        """Whether the examples can be scored."""

    @property
    def num_examples(self) -> int:
        """Number of examples that are encoded. Limits such as `max_eval_samples` are applied."""


@dataclass
class Features:
    """Model inputs of the examples of a split. Subclasses add facts about the windows that `decode` needs.

    `inputs` has W rows with the tokenizer's columns. If the split is labeled and a model can compute a loss on it, the
    rows also have the label columns of the task's output.
    """

    inputs: Dataset


SplitT = TypeVar("SplitT", bound=Split)
FeaturesT = TypeVar("FeaturesT", bound=Features)
Answers = TypeVar("Answers")


class Task(ABC, Generic[SplitT, FeaturesT, Answers]):
    """A task, such as question answering: how to read, encode, answer and score examples.

    To connect a task with a model, call `choose_labels` or `use_checkpoint`, then `use_tokenizer`. Use a copy of the
    task for each model. `args` sets how to read the data, and how to answer. Default: made from `settings`.
    """

    __signature__ = InitSignature()
    arguments: ClassVar[type[DataArguments]]
    head: ClassVar[str]  # head of the models, such as "ForTokenClassification"
    output: ClassVar[Output]
    padding_collator: ClassVar[Callable[..., DataCollator]] = DataCollatorWithPadding
    noun: ClassVar[str] = "examples"  # in messages
    # Split -> name of the evaluation set, the prefix of metrics and files: "eval..." or "predict...".
    set_names: ClassVar[dict[str, str]] = {"validation": "eval", "test": "predict"}
    paper_learning_rate: ClassVar[float] = 3e-5  # the learning rate of BERT-base in the BERT paper
    perfect_score: ClassVar[int] = 1  # 1 for fractions, 100 for percent
    default_columns: ClassVar[tuple[tuple[str, ...], ...]]  # to predict from, by priority, if the user names none
    any_columns: ClassVar[bool] = False  # whether to look for other columns with text if no default column exists
    predicted_columns: ClassVar[tuple[str, ...]]  # the columns that `to_columns` may return

    main_metric: str  # selects the best model or setting
    # Metrics in the summary, to which a run adds its own. `list_label_metrics` may also select the best model.
    metrics: tuple[str, ...]
    training_metrics: tuple[str, ...] | None = None  # metrics to log during training. None: all
    labels: list[str] | None = None  # in the order of their ids. None: the task has no classes
    problem: Problem = "single_label_classification"
    # Maximum tokens of a window, and tokens that neighbors share, if windows are averaged.
    windows: tuple[int, int] | None = None
    chooses_decisions: bool = False  # whether a run chooses thresholds or a temperature after training
    tokenizer: PreTrainedTokenizerBase
    max_length: int

    def __init__(self, args: DataArguments | None = None, **settings: Any):
        self.args: Any = self.arguments(**settings) if args is None else args
        self.thresholds: dict[int, float] = {}  # label id -> lowest probability at which the label is predicted

    def copy(self, **settings: Any) -> Self:
        """Returns a task with the same arguments, except for `settings`. It is not connected with a model."""
        return type(self)(replace(self.args, **settings))

    @property
    @abstractmethod
    def name(self) -> str:
        """The display name, such as "SST-2". Needs labels."""

    @property
    def card_head(self) -> Head:
        """The text about the head in model cards. Needs labels."""
        return Head(self.head)

    # --- data ---------------------------------------------------------------------------------------------------

    def find_sources(self, wanted: tuple[str, ...] | None, **download: Any) -> Sources:
        """Finds the data that the arguments select.

        `wanted`: which of "train", "validation" and "test" to use. None: all files, or train and validation of a
        dataset. Splits with a suffix, such as "validation_mismatched", follow the split without a suffix.
        """
        found = dict(self.find_files() or self.find_datasets(wanted, **download))
        if self.args.unlabeled_file is not None:
            found["unlabeled"] = [Path(self.args.unlabeled_file)]
        split_of = {name: name.partition("_")[0] for name in found}
        chosen = choose_splits(wanted, split_of.values(), "test" in self.args.files, self.noun)
        return {name: found[name] for split in chosen for name in found if split_of[name] == split}

    def find_files(self) -> Sources:
        """Returns the files of the splits."""
        return self.args.files

    def find_datasets(self, wanted: tuple[str, ...] | None, **download: Any) -> Sources:
        """Loads the splits of the dataset, if the arguments name a dataset. For the arguments see [`find_sources`]."""
        if self.args.dataset_name is None:
            return {}
        splits = load_dataset_splits(self.args.dataset_name, self.args.dataset_config_name, **download)
        return {split: [splits[split]] for split in SPLITS if split in splits}

    def describe_place(self, data: Path | Dataset, split: str) -> str:
        """Returns the name of a file or dataset in messages."""
        return str(data) if isinstance(data, Path) else f"{self.args.dataset_name or 'the dataset'} ({split})"

    @abstractmethod
    def read_splits(self, sources: Sources, trained_columns: tuple[str, ...] = ()) -> dict[str, SplitT]:
        """Reads and checks the examples of all splits, for example with [`read_rows`], up to `args.max_samples` each.

        Training and validation examples need labels. The labels of the split "unlabeled" are not read.

        `trained_columns`: the text columns that the checkpoint was trained on; empty if it stores none.
        """

    def choose_labels(
        self,
        splits: Mapping[str, SplitT],
        config: PreTrainedConfig,
        teacher: "Task[Any, Any, Any] | None" = None,
        is_teacher: bool = False,
    ) -> None:
        """Sets `labels`, `problem` and metrics for the data, and stores the labels in the configuration.

        Models that classify texts also need the configuration's `problem_type`. Tasks without classes do nothing.

        Args:
            config: the configuration of the checkpoint. If it has the labels of the data, their order is kept.
            teacher: the task of a teacher. Its labels replace the checkpoint's. The data may lack some of them.
            is_teacher: whether the checkpoint is a teacher, which must have been fine-tuned for the data.
        """
        return

    def check_decisions(self, split: SplitT | None) -> None:
        """Checks that a run can choose thresholds and a temperature, if `chooses_decisions` is true."""
        return

    def describe_sources(self, split: SplitT) -> list[DataSource]:
        """Describes the files or datasets of a split, for results and model cards. Empty files are left out."""
        args = self.args
        (source, *_) = args.files.get(split.name, [args.dataset_name])
        if split.name == "unlabeled" and args.unlabeled_file is not None:
            source = Path(args.unlabeled_file)
        if source is None:  # in memory
            return [DataSource("dataset", split.name, split.num_examples)]
        return [describe_source(source, args.dataset_config_name, split.name, split.num_examples)]

    @property
    def given_columns(self) -> tuple[str, ...]:
        """The text columns that the arguments name. Empty if the arguments name no columns."""
        return ()

    @abstractmethod
    def text_columns(self, splits: Mapping[str, SplitT]) -> tuple[str, ...]:
        """Returns the text columns, which the configuration of a fine-tuned model stores."""

    @abstractmethod
    def list_texts(self, split: SplitT) -> tuple[Sequence[Sequence[str]], Sequence[Any]]:
        """Returns all texts and labels, to find copies. Example: lists of questions and of contexts, and the answers.

        Labels may have any type that can be compared, and are None if unknown.
        """

    # --- model inputs and outputs -------------------------------------------------------------------------------

    def use_tokenizer(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """Sets `tokenizer` and `max_length`."""
        self.tokenizer, self.max_length = tokenizer, max_length

    @abstractmethod
    def encode(self, split: SplitT) -> FeaturesT:
        """Returns the model inputs of the examples.

        The label columns of an "unlabeled" split contain `UNLABELED`, or NaN for regression and multi-label tasks.
        """

    @abstractmethod
    def decode(self, logits: Logits, split: SplitT, features: FeaturesT) -> Answers:
        """Returns the answers to all examples.

        `logits`: one row per window, in the form of the task's output. The values of padding do not matter.
        """

    # --- scores -------------------------------------------------------------------------------------------------

    @abstractmethod
    def measure(self, split: SplitT, answers: Answers) -> np.ndarray:
        """Returns the numbers that the metrics need for each example, such as correct answers. *Shape:* (N, K)"""

    def list_label_metrics(self, split: SplitT) -> tuple[str, ...]:
        """Returns the metrics of each label and their means. `score` computes them if `metrics` names them."""
        return ()

    @abstractmethod
    def score(self, split: SplitT, rows: np.ndarray, counts: np.ndarray | None = None) -> dict[str, float]:
        """Returns the metrics. Undefined metrics are NaN.

        The same function computes the scores of a run and, on resampled examples, their intervals.

        Args:
            rows: from [`measure`], of all examples in their order, or distinct rows in ascending order.
            counts: how often each row counts. None: once. With counts, metrics without an interval may be left out.
                *Shape:* (rows,)
        """

    @abstractmethod
    def baseline(self, split: SplitT, train: SplitT | None) -> Baseline | None:
        """Scores a simple answer to every example. None: the task has no baseline."""

    def score_labels(self, split: SplitT, answers: Answers) -> LabelScores | None:
        """Scores each label if the metrics hide differences between labels. Otherwise returns None."""
        return None

    @abstractmethod
    def metric_features(self) -> dict[str, Any]:
        """Returns the types of `predictions` and `references`, the inputs of [`TaskMetric`]."""

    @abstractmethod
    def pair(self, references: list[Any], predictions: list[Any]) -> tuple[SplitT, Answers]:
        """Returns labeled examples and answers made from the inputs of [`TaskMetric`]. Texts are not needed."""

    def select(self, split: SplitT, indices: np.ndarray, name: str) -> SplitT:
        """Returns some labeled examples as a split with the given `name`. `--folds` also needs `rate_labels`."""
        raise InputError("--folds is for snugbert glue with labels, and for ner without --document_context.")

    # --- files --------------------------------------------------------------------------------------------------

    def list_prediction_files(self, split: SplitT) -> list[str]:
        """Returns the names of the prediction files that [`write`] creates for an evaluation set."""
        name = self.set_names[split.name]
        return ["predictions.jsonl" if name == "predict" else f"{name}_predictions.jsonl"]

    @abstractmethod
    def write(self, split: SplitT, answers: Answers, folder: Path) -> None:
        """Writes the predictions for an evaluation set. May also draw plots if the set is labeled."""

    # --- prediction ---------------------------------------------------------------------------------------------

    def describe_truncation(self, columns: Sequence[str]) -> str | None:
        """Returns a sentence about the texts of `columns` that were longer than `max_length`, or None."""
        return None

    def use_checkpoint(self, config: PreTrainedConfig) -> None:
        """Sets labels and problem from the configuration of a fine-tuned model."""
        self.labels = list_labels(config)

    @abstractmethod
    def read(self, values: Mapping[str, Any], columns: Sequence[str]) -> Any:
        """Returns the inputs of an example from a row, without its label."""

    @abstractmethod
    def make_split(self, examples: list[Any]) -> SplitT:
        """Returns a split without labels, named "test", of examples from [`read`]."""

    @abstractmethod
    def to_columns(self, split: SplitT, answers: Answers) -> list[dict[str, Any]]:
        """Returns the answer to each example as columns to add to its row, with values that JSON can represent."""


def check_teacher_labels(found: list[str], expected: list[str] | None, normalize: Callable[[str], str] = str) -> None:
    """Checks that a teacher was fine-tuned for the labels of the data.

    `found` are the teacher's labels. If they are LABEL_0 and so on, no names are stored, and only their number is
    compared. `expected`: the labels of the data, in the order that the teacher must have. None: the labels are
    numbers. `normalize` returns the same text for equal labels.
    """
    unnamed = found == [f"LABEL_{i}" for i in range(len(found))]
    same = {normalize(label) for label in found} == {normalize(label) for label in expected or ()}
    needed = "numbers" if expected is None else ", ".join(expected)
    if len(found) != len(expected or [""]) or not (unnamed or same):
        raise InputError(
            f"--teacher_name_or_path: the labels do not match. The teacher predicts {', '.join(found)}. The data "
            f"contain {needed}. Choose a teacher that was fine-tuned for this task."
        )
    if expected is not None and not same:
        logger.warning("--teacher_name_or_path: the teacher stores no label names. Assuming the order %s.", needed)


def list_labels(config: PreTrainedConfig) -> list[str]:
    """Returns the labels in a model's configuration, in the order of their ids."""
    return [label for _, label in sorted((config.id2label or {}).items())]


def store_labels(config: PreTrainedConfig, labels: list[str]) -> None:
    """Stores the labels in a model's configuration."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
