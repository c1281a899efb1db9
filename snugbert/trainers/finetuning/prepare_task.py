"""Prepares a run: connects a task with a checkpoint, reads its data, and encodes them."""

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import transformers
from datasets import Dataset, concatenate_datasets
from transformers import DataCollator, PreTrainedModel, PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SIZES, SnugBertConfig
from snugbert.data.corpus.corpus import warn_of_unknown_tokens
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.sources import DataArguments, DataSource, name_dataset
from snugbert.data.tables import make_source
from snugbert.errors import InputError
from snugbert.families.loading import (
    forget_decisions,
    get_text_columns,
    limit_length,
    load_config,
    load_model,
    load_tokenizer,
    remember_windows,
)
from snugbert.families.reading import HEADS_BY_CLASS
from snugbert.families.students import choose_student_layers, make_student
from snugbert.modeling_snugbert import AUTO_CLASSES
from snugbert.reports.results import TaskFacts
from snugbert.reports.score_tables import set_title
from snugbert.tasks.base import Sources, Task
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.copies import ExampleCopies
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments

CHECK_TEXT = "Check its language, and that accented letters are single characters (Unicode NFC)."


@dataclass
class SoftTargets:
    """A teacher's logits for the training examples."""

    teacher: str  # a digest of the teacher
    # The logits of all items. In question answering, an item has a start and an end score. *Shape:* (items, C)
    logits: np.ndarray
    first_items: np.ndarray  # each example's first item, and the end. *Shape:* (examples + 1,)


@dataclass
class PreparedTask:
    """A task that is connected with a checkpoint, and its examples."""

    task: Task[Any, Any, Any]
    model_args: FineTunedModelArguments  # the checkpoint
    config: SnugBertConfig  # configuration of the models, with the task's labels
    student_layers: list[int] | None  # the layers of the checkpoint that the models keep. None: all
    train_features: Dataset | None  # None: the run only scores and predicts
    evaluation_sets: list[EvaluationSet[Any]]  # the first validation set is scored during training
    data: dict[str, list[DataSource]]  # where the examples of "train" and of each evaluation set come from
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the data, by argument name, as JSON values
    copies: ExampleCopies = field(default_factory=ExampleCopies)  # copies among the examples
    soft_targets: SoftTargets | None = None  # None: no teacher
    is_teacher: bool = False  # whether the model is the teacher of a student
    train_split: Any = None  # the labeled training examples. None: no such examples

    @property
    def validation_set(self) -> EvaluationSet[Any] | None:
        """The set that is scored during training and selects the best model. None: no validation set."""
        return next((s for s in self.evaluation_sets if s.name.startswith("eval")), None)

    @property
    def trains(self) -> bool:
        """Whether the model is trained. A teacher only labels the training examples."""
        return self.train_features is not None and not self.is_teacher

    @property
    def has_classes(self) -> bool:
        """Whether each item has exactly one class."""
        return self.task.labels is not None and self.task.problem == "single_label_classification"

    @property
    def facts(self) -> TaskFacts:
        """The facts about the task that reports show."""
        files = [file for each in self.evaluation_sets for file in self.task.list_prediction_files(each.split)]
        base_model = self.model_args.model_name_or_path
        return TaskFacts(self.task.name, self.task.card_head, self.task.labels, tuple(files), base_model)

    def make_model(self) -> PreTrainedModel:
        """Returns a new model with a head, or the model in memory. A new head depends only on the seed."""
        if self.model_args.model is not None:
            return self._adapt(self.model_args.model)
        model = load_model(
            getattr(transformers, f"AutoModel{self.task.head}"),
            self.model_args,
            copy.deepcopy(self.config),
            trained=not self.trains,
            ignore_mismatched_sizes=self.model_args.ignore_mismatched_sizes,
        )
        return model if self.student_layers is None else make_student(model, self.student_layers)

    def _adapt(self, model: PreTrainedModel) -> PreTrainedModel:
        """Stores the labels of the data in the configuration of a model in memory."""
        if model.config.num_labels != self.config.num_labels:
            raise InputError(
                f"model: the model has {model.config.num_labels} labels, but the data have {self.config.num_labels}. "
                f"Load the model with num_labels={self.config.num_labels}, or pass the name or folder of a checkpoint."
            )
        if self.train_features is not None:
            forget_decisions(model.config)
        for name in ("id2label", "label2id", "problem_type", "text_columns", "document_windows"):
            if hasattr(self.config, name):
                setattr(model.config, name, getattr(self.config, name))
        return model

    def make_collator(self, pad_to_max_length: bool) -> DataCollator:
        """Returns a collator that packs the examples of a batch, or pads all of them to `max_length`."""
        if not pad_to_max_length:
            return SnugBertDataCollatorWithPacking()
        task = self.task
        return task.padding_collator(task.tokenizer, padding="max_length", max_length=task.max_length)


def prepare_task(
    task: Task[Any, Any, Any],
    model_args: FineTunedModelArguments,
    sources: Sources,
    teacher: PreparedTask | None = None,
    is_teacher: bool = False,
) -> PreparedTask:
    """Reads the data of a task and encodes them for a checkpoint. With `is_teacher`, the checkpoint is not trained.

    If a `teacher` is given, the labels have its order.
    """
    task = task.copy()
    tokenizer = load_tokenizer(model_args) if model_args.tokenizer is None else model_args.tokenizer
    given, expected = model_args.model, AUTO_CLASSES[f"AutoModel{task.head}"]
    if given is not None and not isinstance(given, expected):
        raise InputError(
            f"model: expected a {expected.__name__}, or the name or folder of a checkpoint, not a "
            f"{type(given).__name__}."
        )
    config: Any = load_config(model_args, tokenizer) if given is None else copy.deepcopy(given.config)
    task.tokenizer = tokenizer  # finds the words of texts with entities
    splits = task.read_splits(sources, get_text_columns(config.to_dict()))
    training = [splits[name] for name in ("train", "unlabeled") if name in splits]
    trains = bool(training) and not is_teacher
    if trains:
        config.text_columns = list(task.text_columns(splits))
        forget_decisions(config)
    elif given is None:  # a model in memory was checked above
        _check_head(config, task.head, model_args)
    student_layers = None
    if model_args.num_student_layers is not None:
        if not trains:
            raise InputError(
                "--num_student_layers needs training examples. To score the whole model, remove the flag."
            )
        student_layers = choose_student_layers(
            config.num_hidden_layers, model_args.num_student_layers, model_args.student_layers
        )
    task.choose_labels(splits, config, None if teacher is None else teacher.task, is_teacher)
    task.use_tokenizer(tokenizer, limit_length(config, tokenizer, task.args.max_seq_length))
    if trains:
        remember_windows(config, task.windows)
    copies = ExampleCopies()
    if not is_teacher:  # before a teacher labels the examples
        validation = (split for name, split in splits.items() if name.startswith("validation"))
        task.check_decisions(next(validation, None) if training else None)
        copies.count(task, splits)
    train_features = [task.encode(split).inputs for split in training]
    evaluation_sets = [
        EvaluationSet(task, splits[name], splits.get("train")) for name in task.set_names if name in splits
    ]
    if not is_teacher:
        inputs = [("training", features) for features in train_features]
        inputs += [(set_title(each.name), each.features.inputs) for each in evaluation_sets]
        for name, features in inputs:
            share = _share_of_unknown_tokens(features, tokenizer)
            warn_of_unknown_tokens(share, tokenizer, f"{name} {task.noun}", CHECK_TEXT)
    data = {"train": [source for split in training for source in task.describe_sources(split)]} if training else {}
    data |= {each.name: task.describe_sources(each.split) for each in evaluation_sets}
    return PreparedTask(
        task=task,
        model_args=model_args,
        config=config,
        student_layers=student_layers,
        train_features=concatenate_datasets(train_features) if training else None,
        evaluation_sets=evaluation_sets,
        data=data,
        settings=collect_data_settings(task.args),
        copies=copies,
        is_teacher=is_teacher,
        train_split=splits.get("train"),
    )


def _share_of_unknown_tokens(features: Dataset, tokenizer: PreTrainedTokenizerBase) -> float:
    token_ids = features.with_format("arrow")[:]["input_ids"]
    while pa.types.is_list(token_ids.type) or pa.types.is_large_list(token_ids.type):
        token_ids = pc.list_flatten(token_ids)
    return pc.mean(pc.equal(token_ids, tokenizer.unk_token_id)).as_py() or 0


def _check_head(config: Any, head: str, model_args: FineTunedModelArguments) -> None:
    """Refuses a model with the head of another task. Its weights are checked later, when they are loaded."""
    class_name = (config.architectures or [""])[0]
    if HEADS_BY_CLASS.get(class_name, head) != head:
        raise InputError(
            f"{model_args.model_name_or_path}: the architecture {class_name} has no head for this task. Choose a "
            "model that was trained for this task, or fine-tune this model first."
        )


def name_model(
    model: str | Path | PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase | None = None, role: str = "model"
) -> FineTunedModelArguments:
    """Returns the arguments that name a model: a folder, a Hub name, a size, or a SnugBERT model in memory."""
    if model is None:
        raise InputError(f"{role} is missing. Pass a Hub name or a folder.")
    if isinstance(model, PreTrainedModel):
        args = FineTunedModelArguments(model_name_or_path="")
        args.model = model  # type: ignore[misc]
        args.model_name_or_path = model.config._name_or_path or None  # the folder may be gone
    elif str(model) in SIZES and not Path(model).exists():
        args = FineTunedModelArguments(config_name=str(model), tokenizer_name="")
    else:
        args = FineTunedModelArguments(model_name_or_path=str(model))
    args.tokenizer = tokenizer  # type: ignore[misc]
    if tokenizer is None and (args.model is not None or args.config_name is not None):
        raise InputError("processing_class is missing. Pass the tokenizer of the model.")
    return args


def connect_data(task: Task[Any, Any, Any] | None, **datasets: Any) -> tuple[Task[Any, Any, Any], Sources]:
    """Returns a copy of the task, with datasets that are files as its file arguments, and the data of each split.

    The default task is [`TextClassification`]. Datasets that are None are left out.
    """
    splits = {"train_dataset": "train", "unlabeled_dataset": "unlabeled", "eval_dataset": "validation"}
    sources = {splits[name]: make_source(data, name) for name, data in datasets.items() if data is not None}
    if not sources:
        raise InputError("no data. Pass train_dataset or eval_dataset.")
    files = {f"{split}_file": str(each) if isinstance(each, Path) else None for split, each in sources.items()}
    return (task or TextClassification()).copy(**files), {split: [source] for split, source in sources.items()}


def collect_data_settings(data_args: DataArguments) -> dict[str, Any]:
    """Returns the data settings as JSON values. Paths are cut to file names, because results may be published."""
    settings = asdict(data_args)
    for name, given in settings.items():
        if given is not None and name == "dataset_name":
            settings[name] = name_dataset(given)[1]
        elif given is not None and name.endswith(("_file", "_dir")):
            settings[name] = [Path(file).name for file in given] if isinstance(given, list) else Path(given).name
    return settings
