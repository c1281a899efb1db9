"""The task that `snugbert glue` fine-tunes on: features, predictions, scores and the files of a run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
)

from snugbert.models import load_config, load_tokenizer, longest
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import draw_confusion_matrix
from snugbert.trainers.finetuning.run import EvaluationSet, FineTuningTask, collect_data_settings, model_maker
from snugbert.trainers.glue.arguments import GlueDataArguments
from snugbert.trainers.glue.benchmark import GLUE_ON_THE_HUB, GLUE_SPLITS, TASKS
from snugbert.trainers.glue.data import GlueSplit, load_splits
from snugbert.trainers.glue.labels import Problem, choose_labels, choose_problem, encode_labels
from snugbert.trainers.glue.metric import GlueMetric
from snugbert.trainers.splits import describe_dataset, describe_file, hub_id

logger = logging.getLogger(__name__)

Score = Callable[[np.ndarray, np.ndarray], dict[str, float]]

# What figures and files of a set begin with.
NAMES = {
    "validation": "eval",
    "validation_mismatched": "eval_mm",
    "test": "predict",
    "test_mismatched": "predict_mm",
    "diagnostic": "predict_ax",
}
MAIN_METRICS = {
    "regression": "mse",
    "single_label_classification": "accuracy",
    "multi_label_classification": "micro_f1",
}
DONE = "results.json"  # in a task's folder, written last


# --- features ---------------------------------------------------------------------------------------------------


def make_features(
    split: GlueSplit,
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
    if split.labeled:
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


def predicted(logits: Any, problem: Problem) -> np.ndarray:
    """What the logits [N, labels] say of each example.

    Returns:
        The number, [N]; the label's id, [N]; or with several labels 1 for those of a probability above 0.5 and 0 for
        the others, [N, labels].
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if problem == "regression":
        return logits.squeeze(-1)
    return logits.argmax(axis=-1) if problem == "single_label_classification" else (logits > 0).astype(np.int64)


def make_score(task_name: str | None, labels: list[str] | None, problem: Problem) -> Score:
    """A function of predictions and references, as [`predicted`] gives them: the official metric's figures.

    They are those of [`GlueMetric`], and of a task also their mean as combined_score if there are several.

    Args:
        task_name: of GLUE, or "ax"; None: one's own data.
        labels: in the order of their ids in this checkpoint.
        problem: what the labels mean.
    """
    own = {"single_label_classification": "classification", "multi_label_classification": "multi_label"}
    metric = GlueMetric(task_name or own.get(problem, problem), keep_in_memory=True)
    # F1 is that of the task's label 1, whatever its id in this checkpoint.
    task_labels = TASKS[task_name].labels if task_name in TASKS else ()
    task_ids = np.array([task_labels.index(label) for label in labels]) if labels and task_labels else None

    def score(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        if task_ids is not None:
            predictions, references = task_ids[predictions], task_ids[references]
        figures = metric.compute(predictions=predictions, references=references)
        if task_name is not None and len(figures) > 1:
            figures["combined_score"] = sum(figures.values()) / len(figures)
        return figures

    return score


# --- evaluation -------------------------------------------------------------------------------------------------


def make_evaluation_set(
    split_name: str,
    split: GlueSplit,
    features: Dataset,
    labels: list[str] | None,
    problem: Problem,
    data_args: GlueDataArguments,
) -> EvaluationSet:
    """Examples to score, and to predict if they are of a test set.

    Predictions of a task go to the file that gluebenchmark.com asks for, with its numbers of examples and names of
    labels, STS-B's between 0 and 5; those of one's own data to predict_results.txt.

    Args:
        split_name: as in `NAMES`.
        split: the examples.
        features: what [`make_features`] makes of the first of them, or of all.
        labels: in the order of their ids.
        problem: what they mean.
        data_args: with the task, and what is put between the labels of an example.
    """
    name, task = NAMES[split_name], data_args.task
    file = f"{task.leaderboard.get(split_name, task.folder)}.tsv" if task else "predict_results.txt"
    names = (
        [str(task.labels.index(label)) for label in labels] if labels and task and task.writes_label_ids else labels
    )
    separator = data_args.label_separator or ","
    score = make_score("ax" if split_name == "diagnostic" else data_args.task_name, labels, problem)
    references = np.array(features["label"][:]) if "label" in features.column_names else None
    if references is not None and problem == "multi_label_classification":
        references = references.astype(np.int64)

    def judge(predictions: Any, folder: Path | None) -> dict[str, float]:
        answers = predicted(predictions, problem)
        if folder is not None and name.startswith("predict"):
            in_range = answers.clip(0, 5) if task and problem == "regression" else answers
            write_predictions(folder / file, split.data["index"][: len(answers)], as_text(in_range, names, separator))
        if folder is not None and references is not None and problem == "single_label_classification":
            picture = "confusion_matrix.png" if name == "eval" else f"{name}_confusion_matrix.png"
            draw_confusion_matrix(references, answers, labels or [], folder / picture)
        return {} if references is None else score(answers, references)

    baseline = None if references is None else score_baseline(references, labels, score)
    return EvaluationSet(name, features, judge, len(features), baseline)


def score_baseline(references: np.ndarray, labels: list[str] | None, score: Score) -> tuple[str, dict[str, float]]:
    """What one answer to everything scores, and which: the most frequent label, or set of labels, or the mean.

    It tells a reader what the figures are worth.
    """
    if labels is None:
        answer = references.mean(keepdims=True)
    else:
        values, counts = np.unique(references, axis=0, return_counts=True)
        answer = values[[counts.argmax()]]
    figures = score(np.broadcast_to(answer, references.shape), references)
    (text,) = as_text(answer, labels, ", ")
    return f"always {text!r}" if labels else f"always {text}", figures


def as_text(answers: np.ndarray, labels: list[str] | None, separator: str) -> list[str]:
    """Answers, as [`predicted`] gives them, in words; `separator` stands between the labels of an example."""
    if labels is None:
        return [f"{answer:.3f}" for answer in answers]
    if answers.ndim == 2:
        return [separator.join(labels[i] for i in np.flatnonzero(answer)) for answer in answers]
    return [labels[answer] for answer in answers]


def write_predictions(file: Path, indices: list[str], answers: list[str]) -> None:
    """Writes a TSV file of the columns index and prediction."""
    lines = [f"{index}\t{answer}\n" for index, answer in zip(indices, answers, strict=True)]
    file.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")
    print(f"predictions: {file}", flush=True)


# --- task ------------------------------------------------------------------------------------------------------


def make_task(
    model_args: FineTunedModelArguments, data_args: GlueDataArguments, training_args: FineTuningArguments
) -> FineTuningTask:
    """A task of GLUE, or one's own data, as the arguments tell.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    download = {"cache_dir": model_args.cache_dir, "token": model_args.token}
    splits = load_splits(data_args, training_args.wanted_splits, **download)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    known = [label for _, label in sorted((config.id2label or {}).items())]
    labels = choose_labels(data_args.task, splits, known, data_args.do_regression)
    logger.info("labels: %s", "numbers (regression)" if labels is None else ", ".join(labels))
    problem = choose_problem(splits, labels, config.problem_type)
    config.problem_type = problem
    config.id2label = dict(enumerate(labels or ["LABEL_0"]))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = longest(config, tokenizer, data_args.max_seq_length)
    padding = "max_length" if training_args.pad_to_max_length else False
    features = {
        name: make_features(splits[name], labels, tokenizer, max_length, padding, max_samples)
        for part, max_samples in data_args.max_samples.items()
        for name in GLUE_SPLITS[part]
        if name in splits
    }
    evaluation_sets = [
        make_evaluation_set(name, splits[name], features[name], labels, problem, data_args)
        for name in features
        if name != "train"
    ]
    main_metric = data_args.task.main_metric if data_args.task else MAIN_METRICS[problem]
    scored = [s.baseline[1] for s in evaluation_sets if s.name.startswith("eval") and s.baseline is not None]
    name, dataset = describe_task(data_args)
    return FineTuningTask(
        name=name,
        make_model=model_maker(AutoModelForSequenceClassification, model_args, config, trained="train" not in splits),
        tokenizer=tokenizer,
        train_features=features.get("train"),
        evaluation_sets=evaluation_sets,
        main_metric=main_metric,
        metrics=tuple(dict.fromkeys([main_metric, *(metric for figures in scored for metric in figures)])),
        pipeline_tag="text-classification",
        padding_collator=DataCollatorWithPadding(tokenizer),
        labels=labels,
        multi_label=problem == "multi_label_classification",
        dataset=dataset,
        settings=collect_data_settings(data_args),
    )


def describe_task(data_args: GlueDataArguments) -> tuple[str, tuple[str, str | None, str | None]]:
    """What people call the task; and its data, with their id and configuration on the Hub if they have one."""
    files = [
        file for file in (data_args.train_file, data_args.validation_file, data_args.test_file) if file is not None
    ]
    task = data_args.task.folder if data_args.task is not None else None
    if data_args.dataset_name is not None:
        name = describe_dataset(data_args.dataset_name)
        return task or name, (name, hub_id(data_args.dataset_name), data_args.dataset_config_name)
    if files:
        name = describe_file(Path(files[0]))
        return task or name, (name, None, None)
    assert task is not None  # `load_splits` sees to it
    return task, (f"GLUE {task}", GLUE_ON_THE_HUB, data_args.task_name)
