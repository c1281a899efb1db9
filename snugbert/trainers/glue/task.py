"""The task of `snugbert glue`: features, predictions, scores and the files of a run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from snugbert.models import limit_length, load_config, load_tokenizer
from snugbert.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import draw_confusion_matrix, plot_file
from snugbert.trainers.finetuning.run import check_early, collect_data_settings
from snugbert.trainers.finetuning.task import Baseline, DatasetName, EvaluationSet, FineTuningTask, Logits, model_maker
from snugbert.trainers.glue.arguments import GlueDataArguments
from snugbert.trainers.glue.benchmark import GLUE_ON_THE_HUB, GLUE_SPLITS, TASKS
from snugbert.trainers.glue.data import GlueSplit, load_splits
from snugbert.trainers.glue.labels import Problem, choose_labels, choose_problem, encode_labels
from snugbert.trainers.glue.metric import GlueMetric
from snugbert.trainers.splits import describe_dataset, describe_file, hub_id

logger = logging.getLogger(__name__)

Score = Callable[[np.ndarray, np.ndarray], dict[str, float]]

# Split -> prefix of metrics and files.
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


def make_task(
    model_args: FineTunedModelArguments, data_args: GlueDataArguments, training_args: FineTuningArguments
) -> FineTuningTask:
    """Returns the task that the arguments describe: a task of GLUE, or the user's own data.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    download = {"cache_dir": model_args.cache_dir, "token": model_args.token}
    splits = load_splits(data_args, training_args.wanted_splits, **download)
    if "train" in splits:
        check_early(model_args, training_args)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    checkpoint_labels = [label for _, label in sorted((config.id2label or {}).items())]
    labels = choose_labels(data_args.task, splits, checkpoint_labels, data_args.do_regression)
    logger.info("labels: %s", "numbers (regression)" if labels is None else ", ".join(labels))
    problem = choose_problem(splits, labels, config.problem_type)
    config.problem_type = problem
    config.id2label = dict(enumerate(labels or ["LABEL_0"]))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    features = {
        name: make_features(splits[name], labels, tokenizer, max_length, max_samples)
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
    scored = [s.baseline.metrics for s in evaluation_sets if s.name.startswith("eval") and s.baseline is not None]
    name, dataset = describe_task(data_args)
    return FineTuningTask(
        name=name,
        make_model=model_maker(AutoModelForSequenceClassification, model_args, config, trained="train" not in splits),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=features.get("train"),
        evaluation_sets=evaluation_sets,
        main_metric=main_metric,
        metrics=tuple(dict.fromkeys([main_metric, *(metric for metrics in scored for metric in metrics)])),
        pipeline_tag="text-classification",
        labels=labels,
        multi_label=problem == "multi_label_classification",
        dataset=dataset,
        settings=collect_data_settings(data_args),
    )


def describe_task(data_args: GlueDataArguments) -> tuple[str, DatasetName]:
    """Returns the display name of the task, and the source of its examples."""
    files = [
        file for file in (data_args.train_file, data_args.validation_file, data_args.test_file) if file is not None
    ]
    task = data_args.task.folder if data_args.task is not None else None
    if data_args.dataset_name is not None:
        name = describe_dataset(data_args.dataset_name)
        return task or name, DatasetName(name, hub_id(data_args.dataset_name), data_args.dataset_config_name)
    if files:
        name = describe_file(Path(files[0]))
        return task or name, DatasetName(name)
    assert task is not None  # see `load_splits`
    return task, DatasetName(f"GLUE {task}", GLUE_ON_THE_HUB, data_args.task_name)


# --- features ---------------------------------------------------------------------------------------------------


def make_features(
    split: GlueSplit,
    labels: list[str] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    max_samples: int | None,
) -> Dataset:
    """Tokenizes the examples of a split and encodes their labels.

    Args:
        split: the examples.
        labels: in the order of their ids. None: regression.
        tokenizer: the model's tokenizer.
        max_length: longer examples are truncated to this many tokens, the longer text of a pair first.
        max_samples: maximum number of examples, from the start of the split. None: all.

    Returns:
        Columns input_ids, token_type_ids and attention_mask, and label if the split is labeled.

    Raises:
        InputError: see [`encode_labels`].
    """
    examples = split.data.remove_columns("label")
    if split.labeled:
        examples = examples.add_column("label", encode_labels(split, labels))
    examples = examples.select(range(min(max_samples or len(examples), len(examples))))

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
        return tokenizer(batch["text"], batch.get("text_pair"), truncation="longest_first", max_length=max_length)

    unneeded = [name for name in examples.column_names if name != "label"]
    return examples.map(tokenize, batched=True, remove_columns=unneeded, desc=f"tokenizing {split.source}")


# --- predictions ------------------------------------------------------------------------------------------------


def decode_logits(logits: Logits, problem: Problem) -> np.ndarray:
    """Returns the prediction for each example.

    Args:
        logits: *Shape:* (N, labels)
        problem: the kind of problem.

    Returns:
        Regression: the number, *shape* (N,). One label: its id, *shape* (N,). Several labels: 1 for labels with a
        probability above 0.5, else 0, *shape* (N, labels).
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    if problem == "regression":
        return scores.squeeze(-1)
    return scores.argmax(axis=-1) if problem == "single_label_classification" else (scores > 0).astype(np.int64)


def make_score(task_name: str | None, labels: list[str] | None, problem: Problem) -> Score:
    """Returns a function that scores predictions against references, both in the form of [`decode_logits`].

    [`GlueMetric`] computes the metrics. A GLUE task with several metrics also gets their mean, `combined_score`.

    Args:
        task_name: a task of GLUE, or "ax". None: the user's own data.
        labels: in the order of their ids in this checkpoint.
        problem: the kind of problem.
    """
    own = {"single_label_classification": "classification", "multi_label_classification": "multi_label"}
    metric = GlueMetric(task_name or own.get(problem, problem), keep_in_memory=True)
    # F1 is the F1 of the task's label 1, which may have another id in this checkpoint.
    task_labels = TASKS[task_name].labels if task_name in TASKS else ()
    task_ids = np.array([task_labels.index(label) for label in labels]) if labels and task_labels else None

    def score(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        if task_ids is not None:
            predictions, references = task_ids[predictions], task_ids[references]
        metrics = metric.compute(predictions=predictions, references=references)
        if task_name is not None and len(metrics) > 1:
            metrics["combined_score"] = sum(metrics.values()) / len(metrics)
        return metrics

    return score


def make_evaluation_set(
    split_name: str,
    split: GlueSplit,
    features: Dataset,
    labels: list[str] | None,
    problem: Problem,
    data_args: GlueDataArguments,
) -> EvaluationSet[np.ndarray]:
    """Returns examples to score, and to predict if they are test examples.

    Test predictions of a GLUE task are written in the format of gluebenchmark.com: its file name, example numbers and
    label names, and STS-B's scores between 0 and 5. Predictions for the user's own data go to predict_results.txt.

    Args:
        split_name: a key of `NAMES`.
        split: the examples.
        features: from [`make_features`], of all examples or the first ones.
        labels: in the order of their ids.
        problem: the kind of problem.
        data_args: the task, and the separator of an example's labels.
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
    predicts = name.startswith("predict")

    def write(predictions: np.ndarray, folder: Path) -> None:
        if predicts:
            in_range = predictions.clip(0, 5) if task and problem == "regression" else predictions
            indices = split.data["index"][: len(predictions)]
            write_predictions(folder / file, indices, format_answers(in_range, names, separator))
        if references is not None and problem == "single_label_classification":
            plot = plot_file(folder, name, "confusion_matrix.png")
            draw_confusion_matrix(references, predictions, labels or [], plot)

    return EvaluationSet(
        name=name,
        features=features,
        num_examples=len(features),
        decode=lambda logits: decode_logits(logits, problem),
        score=None if references is None else lambda predictions: score(predictions, references),
        write=write,
        predictions_file=file if predicts else None,
        baseline=None if references is None else score_baseline(references, labels, score),
    )


def score_baseline(references: np.ndarray, labels: list[str] | None, score: Score) -> Baseline:
    """Scores the same answer for every example: the most frequent label or set of labels, or the mean."""
    if labels is None:
        answer = references.mean(keepdims=True)
    else:
        values, counts = np.unique(references, axis=0, return_counts=True)
        answer = values[[counts.argmax()]]
    metrics = score(np.broadcast_to(answer, references.shape), references)
    (text,) = format_answers(answer, labels, ", ")
    return Baseline(f"always {text!r}" if labels else f"always {text}", metrics)


def format_answers(predictions: np.ndarray, labels: list[str] | None, separator: str) -> list[str]:
    """Returns predictions as text, with `separator` between the labels of an example."""
    if labels is None:
        return [f"{number:.3f}" for number in predictions]
    if predictions.ndim == 2:
        return [separator.join(labels[i] for i in np.flatnonzero(row)) for row in predictions]
    return [labels[i] for i in predictions]


def write_predictions(file: Path, indices: list[str], answers: list[str]) -> None:
    """Writes a TSV file with the columns index and prediction."""
    lines = [f"{index}\t{answer}\n" for index, answer in zip(indices, answers, strict=True)]
    file.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")
