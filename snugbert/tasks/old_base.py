"""Goes when every caller uses `base.Task`: the parts of a task that a run needs: model, examples, and functions to decode, score and write predictions."""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from datasets import Dataset
from transformers import DataCollator, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.checkpoints.loading import load_model
from snugbert.checkpoints.students import choose_student_layers, make_student
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.sources import DataSource
from snugbert.errors import InputError
from snugbert.reports.intervals import Interval
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments
from snugbert.trainers.finetuning.soft_targets import SoftTargets

logger = logging.getLogger(__name__)

Logits = np.ndarray | tuple[np.ndarray, ...]
Predictions = TypeVar("Predictions")


class Baseline(NamedTuple):
    """The metrics of one simple answer to every example.

    Attributes:
        answer: the answer, as displayed: "always 'positive'".
        metrics: metric -> value.
    """

    answer: str
    metrics: dict[str, float]


@dataclass
class EvaluationSet(Generic[Predictions]):
    """Examples to score or to predict.

    `decode` runs once per evaluation. Its result goes to `score`, and at the end of a run to `write`.

    Attributes:
        name: prefix of metrics and files. It starts with "eval" for validation sets and "predict" for test sets.
        features: inputs of the model. Columns that the model does not accept are dropped.
        num_examples: number of sentences or questions.
        decode: turns the logits for `features`, as [`FineTuningTrainer`] returns them, into predictions, such as
            labels or answers.
        score: returns the metrics of predictions, without a prefix. None: the examples have no labels.
        write: writes predictions and plots into a folder.
        predictions_files: the files of predictions that `write` creates.
        baseline: metrics to compare with.
        training_metrics: the metrics to log during training. None: all.
        estimate_intervals: returns 95 % intervals of the overall metrics of predictions. None: there are none.
    """

    name: str
    features: Dataset
    num_examples: int
    decode: Callable[[Logits], Predictions]
    score: Callable[[Predictions], dict[str, float]] | None
    write: Callable[[Predictions, Path], None]
    predictions_files: tuple[str, ...] = ()
    baseline: Baseline | None = None
    training_metrics: tuple[str, ...] | None = None
    estimate_intervals: Callable[[Predictions], dict[str, Interval]] | None = None
    _decoded: tuple[Logits, Predictions] | None = field(default=None, init=False, repr=False, compare=False)

    def decode_once(self, logits: Logits) -> Predictions:
        """Returns the result of `decode`. Keeps the last one, because the last evaluation also scores the model."""
        if self._decoded is None or self._decoded[0] is not logits:
            self._decoded = None  # frees its memory first
            self._decoded = logits, self.decode(logits)
        return self._decoded[1]

    def score_in_training(self, logits: Logits) -> dict[str, float]:
        """Returns the metrics to log during training; none if the examples have no labels."""
        metrics = {} if self.score is None else self.score(self.decode_once(logits))
        return {name: metrics[name] for name in self.training_metrics or metrics if name in metrics}


@dataclass
class FineTuningTask:
    """A task, its examples and how it is scored.

    Attributes:
        name: display name, such as "SST-2" or "Question answering".
        make_model: returns a new model with a head. The initial head depends only on the seed.
        tokenizer: the model's tokenizer.
        data_collator: makes batches: packed ones, or padded ones if the user asked for them.
        train_features: inputs to train on. None: the run only scores and predicts.
        evaluation_sets: the first validation set is scored during training.
        main_metric: the metric that selects the best model or setting.
        metrics: all metrics that may select it, and that the summary shows.
        pipeline_tag: the Hub's name for the task: "text-classification", "token-classification" or
            "question-answering".
        data: the files or splits that the examples come from, for "train" and for each evaluation set. Training
            examples may come from several files.
        labels: in the order of their ids. None: the task has no classes.
        multi_label: whether an example may have several labels.
        text_pairs: whether an example is a pair of texts.
        perfect_score: the value of a perfect score in the metrics: 1 for fractions, 100 for percent.
        settings: data settings, by argument name, as JSON values.
        soft_targets: a teacher's logits for the training examples. None: no teacher.
        teacher_digest: a digest of the teacher.
        compare: measures teacher and student. Every process must call it. Returns a function that makes the rows of a
            table from the results of a run.
    """

    name: str
    make_model: Callable[[], PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    data_collator: DataCollator
    train_features: Dataset | None
    evaluation_sets: list[EvaluationSet[Any]]
    main_metric: str
    metrics: tuple[str, ...]
    pipeline_tag: str
    data: dict[str, list[DataSource]]
    labels: list[str] | None = None
    multi_label: bool = False
    text_pairs: bool = False
    perfect_score: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    soft_targets: SoftTargets | None = None
    teacher_digest: str | None = None
    compare: Callable[[], Callable[[Mapping[str, Any]], list[dict[str, Any]]]] | None = None

    @property
    def validation_set(self) -> EvaluationSet[Any] | None:
        """The set that is scored during training and selects the best model. None: there is no validation set."""
        return next((s for s in self.evaluation_sets if s.name.startswith("eval")), None)


def model_maker(
    auto_class: Any, model_args: FineTunedModelArguments, config: SnugBertConfig, trained: bool
) -> Callable[[], PreTrainedModel]:
    """Returns a function that loads a new model, each with its own copy of the configuration.

    With `num_student_layers`, the model has only these layers of the checkpoint.

    Args:
        auto_class: the Auto class of the head.
        model_args: the checkpoint.
        config: the configuration from [`load_config`], with the task's labels.
        trained: the checkpoint must contain all weights, because the run does not train.

    Raises:
        InputError: the checkpoint does not have these layers, or the run does not train.
    """
    layers = None
    if model_args.num_student_layers is not None:
        if trained:
            raise InputError("--num_student_layers needs training examples. Remove it to score the whole model.")
        layers = choose_student_layers(
            config.num_hidden_layers, model_args.num_student_layers, model_args.student_layers
        )

    def make_model() -> PreTrainedModel:
        model = load_model(
            auto_class,
            model_args,
            copy.deepcopy(config),
            trained=trained,
            ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
        )
        return model if layers is None else make_student(model, layers)

    return make_model


def check_teacher_labels(found: list[str], expected: list[str] | None, ignore_case: bool = True) -> None:
    """Checks that a teacher was fine-tuned for the labels of the data.

    Args:
        found: the teacher's labels. Names such as LABEL_0 mean that it stores none. Then only the number is compared.
        expected: the labels of the data, in the order that the teacher must have. None: numbers.
        ignore_case: whether labels may differ in case.

    Raises:
        InputError: they differ.
    """
    unnamed = found == [f"LABEL_{i}" for i in range(len(found))]
    normalize = str.lower if ignore_case else str
    same = {normalize(label) for label in found} == {normalize(label) for label in expected or ()}
    if len(found) == len(expected or [""]) and (unnamed or same):
        if unnamed and expected is not None:
            names = ", ".join(expected)
            logger.warning("--teacher_name_or_path: the teacher stores no label names. Assuming the order %s.", names)
        return
    needed = "numbers" if expected is None else ", ".join(expected)
    raise InputError(
        f"--teacher_name_or_path: the labels do not match. The teacher predicts {', '.join(found)}. The data contain "
        f"{needed}. Choose a teacher that was fine-tuned for this task."
    )
