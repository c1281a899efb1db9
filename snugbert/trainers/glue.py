"""`snugbert glue`: fine-tune on labelled sentences or sentence pairs, score the model, predict.

    arguments -> data (glue_data.py) -> model -> features -> metric (metrics/glue.py) -> Trainer

The flags are those of `TrainingArguments` and of transformers' `run_glue.py`: a command line for that works with this.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from snugbert.trainers.command_line import (
    claim_output_dir,
    clear_output_dir,
    parse_arguments,
    set_up,
)
from snugbert.trainers.glue_data import TASKS, DataArguments, Split, choose_labels, encode_labels, load_splits
from snugbert.trainers.metrics import GlueMetric
from snugbert.trainers.models import ModelArguments, load_config, load_model, load_tokenizer

logger = logging.getLogger(__name__)

Score = Callable[[Any, Any], dict[str, float]]


# --- arguments --------------------------------------------------------------------------------------------------


@dataclass
class ClassifierArguments(ModelArguments):
    """Which model to fine-tune."""

    ignore_mismatched_sizes: bool = field(
        default=False, metadata={"help": "Replace a classifier that was made for another number of labels."}
    )


@dataclass
class FineTuningArguments(TrainingArguments):
    """`TrainingArguments` with the paper's fine-tuning settings as defaults.

    Devlin et al. (2018), section 4.1: 3 epochs in batches of 32, learning rate the best of 5e-5, 4e-5, 3e-5, 2e-5 on
    the development set. The original release (`run_classifier.py`, `optimization.py`) adds warmup over the first 10 %
    of the steps, linear decay, and weight decay 0.01. The paper's batch is that of all devices together.
    """

    learning_rate: float = field(default=3e-5, metadata={"help": "The peak learning rate."})
    num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the training examples."})
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Examples of a device's batch."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Examples of a batch in evaluation."})
    warmup_steps: float = field(
        default=0.1, metadata={"help": "Steps of linear warmup; a number below 1 is a share of all steps."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay, not on biases and LayerNorm."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Replace the run that --output_dir holds already."}
    )

    def __post_init__(self):
        # With none of the three, all that the data allow is done. An eval_strategy means training with evaluation.
        if self.eval_strategy != "no":
            self.do_train = self.do_train or not (self.do_eval or self.do_predict)
            self.do_eval = True
        asked = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        self.wanted_splits = tuple(split for split in asked if asked[split]) or None
        super().__post_init__()


# --- model ------------------------------------------------------------------------------------------------------


def load_classifier(
    model_args: ClassifierArguments, config: PreTrainedConfig, labels: list[str] | None
) -> PreTrainedModel:
    """The checkpoint's model, or one of random weights, with a classifier.

    Args:
        model_args: which model.
        config: from [`load_config`]; the labels are written into it.
        labels: in the order of their ids; None: the model predicts a number.

    Raises:
        InputError: the weights cannot be opened or do not fit the configuration.
    """
    config.problem_type = "single_label_classification" if labels else "regression"
    config.id2label = dict(enumerate(labels or ["LABEL_0"]))
    config.label2id = {label: i for i, label in config.id2label.items()}
    return load_model(
        AutoModelForSequenceClassification,
        model_args,
        config,
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )


def longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> int:
    """`max_seq_length`, or what the model can take if that is less, in tokens."""
    limit = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", max_seq_length))
    if max_seq_length > limit:
        logger.warning("--max_seq_length %d is more than the model takes; examples end at %d", max_seq_length, limit)
    return min(max_seq_length, limit)


# --- features ---------------------------------------------------------------------------------------------------


def features_of(
    split: Split,
    labels: list[str] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    padding: str | bool,
    max_samples: int | None,
) -> Dataset:
    """What the model is given of each example.

    Returns:
        The first `max_samples` examples (None: all): input_ids, token_type_ids and attention_mask of at most
        `max_length` tokens, padded to that if `padding` is "max_length", and label, unless an example has none.

    Raises:
        InputError: as in [`encode_labels`].
    """
    examples = split.data.remove_columns("label")
    if None not in split.data["label"][:]:
        examples = examples.add_column("label", encode_labels(split, labels))
    examples = examples.select(range(min(max_samples or len(examples), len(examples))))

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        return tokenizer(
            batch["text"],
            batch.get("text_pair"),
            truncation="longest_first",
            max_length=max_length,
            padding=padding,
        )

    unneeded = [name for name in examples.column_names if name != "label"]
    return examples.map(tokenize, batched=True, remove_columns=unneeded, desc=f"tokenizing {split.source}")


# --- metric -----------------------------------------------------------------------------------------------------


def predicted(logits: Any, labels: list[str] | None) -> np.ndarray:
    """The label id of each example, or its number if `labels` is None; logits [N, labels] -> [N]."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits.argmax(axis=-1) if labels else logits.squeeze(-1)


def make_score(task_name: str | None, labels: list[str] | None) -> Score:
    """A function of predictions [N] and references [N], as [`predicted`] gives them: the official metric's figures.

    They are those of [`GlueMetric`], and their mean as combined_score if there are several. Without a task: accuracy,
    or the mean squared error of numbers.
    """
    metric = GlueMetric(task_name or ("classification" if labels else "regression"), keep_in_memory=True)
    # F1 is that of the task's label 1, whatever its id in this checkpoint.
    task_ids = np.array([TASKS[task_name].labels.index(label) for label in labels]) if task_name and labels else None

    def score(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        if task_ids is not None:
            predictions, references = task_ids[predictions], task_ids[references]
        figures = metric.compute(predictions=predictions, references=references)
        if len(figures) > 1:
            figures["combined_score"] = sum(figures.values()) / len(figures)
        return figures

    return score


# --- Trainer ----------------------------------------------------------------------------------------------------


def main(argv: list[str]) -> None:
    """Runs `snugbert glue` with the arguments `argv`.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (ClassifierArguments, DataArguments, FineTuningArguments), argv, "snugbert glue", __doc__ or ""
    )
    set_up(training_args)
    splits = load_splits(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    checkpoint = claim_output_dir(training_args, training_args.overwrite_output_dir) if "train" in splits else None

    set_seed(training_args.seed)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    labels = choose_labels(data_args.task, splits, [label for _, label in sorted((config.id2label or {}).items())])
    model = load_classifier(model_args, config, labels)

    max_length = longest(model, tokenizer, data_args.max_seq_length)
    padding = "max_length" if data_args.pad_to_max_length else False
    max_samples = {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }
    features = {
        name: features_of(split, labels, tokenizer, max_length, padding, max_samples[name])
        for name, split in splits.items()
    }
    score = make_score(data_args.task_name, labels)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=features.get("train"),
        eval_dataset=features.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda prediction: score(predicted(prediction.predictions, labels), prediction.label_ids),
    )
    if "train" in features:
        if checkpoint is None:
            clear_output_dir(training_args)
        train(trainer, checkpoint, len(features["train"]))
    if "validation" in features:
        evaluate(trainer, features["validation"], labels, score)
    if "test" in features:
        predict(trainer, features["test"], labels, score, data_args.task_name)


def train(trainer: Trainer, checkpoint: str | None, samples: int) -> None:
    """Trains on, from `checkpoint` or from the start, and saves model, tokenizer and figures in the output folder."""
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    metrics = {**result.metrics, "train_samples": samples}
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)
    trainer.save_state()


def evaluate(trainer: Trainer, features: Dataset, labels: list[str] | None, score: Score) -> None:
    """Scores the validation examples."""
    report(trainer, "eval", trainer.evaluate(), features, labels, score)


def predict(
    trainer: Trainer, features: Dataset, labels: list[str] | None, score: Score, task_name: str | None
) -> None:
    """Writes the predictions of the test examples to predict_results_<task>.txt; scores them if they have labels."""
    result = trainer.predict(features, metric_key_prefix="predict")
    answers = predicted(result.predictions, labels)
    if "label" in features.column_names:
        report(trainer, "predict", result.metrics or {}, features, labels, score)
    if trainer.is_world_process_zero():
        file = Path(str(trainer.args.output_dir)) / (
            f"predict_results_{task_name}.txt" if task_name else "predict_results.txt"
        )
        lines = [f"{i}\t{labels[answer] if labels else format(answer, '.3f')}\n" for i, answer in enumerate(answers)]
        file.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")
        print(f"predictions: {file}")


def report(
    trainer: Trainer,
    split: str,
    metrics: dict[str, float],
    features: Dataset,
    labels: list[str] | None,
    score: Score,
) -> None:
    """Prints and saves the figures of "eval" or "predict" beside those of one answer to everything.

    That answer is the most frequent label or the mean. It tells a reader what the figures are worth.
    """
    references = np.array(features["label"])
    answer = Counter(references.tolist()).most_common(1)[0][0] if labels else references.mean()
    # A constant has no correlation: NaN, which is no figure to compare with.
    baseline = {k: v for k, v in score(np.full_like(references, answer), references).items() if np.isfinite(v)}
    figures = {name: metrics[f"{split}_{name}"] for name in score(references, references)}
    metrics = {**metrics, f"{split}_samples": len(features)}
    metrics.update({f"{split}_baseline_{name}": value for name, value in baseline.items()})
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
    if trainer.is_world_process_zero():
        always = repr(labels[answer]) if labels else f"{answer:.3f}"
        worth = f"; always {always}: {_in_words(baseline)}" if baseline else ""
        print(f"{split}: {_in_words(figures)} on {len(features)} examples{worth}")


def _in_words(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
