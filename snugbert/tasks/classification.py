"""The task of `snugbert glue`: features, predictions, scores and the files of a run."""

import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, concatenate_datasets
from scipy.special import expit, softmax
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from snugbert.checkpoints.loading import (
    get_text_columns,
    limit_length,
    load_config,
    load_tokenizer,
    remember_text_columns,
)
from snugbert.data.glue import GLUE_ON_THE_HUB, GLUE_SPLITS, TASKS
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.sources import DataSource, describe_source
from snugbert.reports.intervals import Interval, bootstrap
from snugbert.reports.score_plots import draw_confusion_matrix, plot_file
from snugbert.tasks.classification_arguments import GlueDataArguments
from snugbert.tasks.classification_data import GlueSplit, load_splits
from snugbert.tasks.glue_metric import (
    GlueMetric,
    score_drawn_classes,
    score_drawn_label_sets,
    score_drawn_numbers,
)
from snugbert.tasks.labels import Problem, choose_labels, choose_problem, encode_labels
from snugbert.tasks.old_base import (
    Baseline,
    EvaluationSet,
    FineTuningTask,
    Logits,
    check_teacher_labels,
    model_maker,
)
from snugbert.trainers.finetuning.fine_tune import check_early, collect_data_settings
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.learning_rate import choose_learning_rate
from snugbert.trainers.finetuning.soft_targets import UNLABELED

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
SCORE_DRAWN = {
    "regression": score_drawn_numbers,
    "single_label_classification": score_drawn_classes,
    "multi_label_classification": score_drawn_label_sets,
}
MAIN_METRICS = {
    "regression": "mse",
    "single_label_classification": "accuracy",
    "multi_label_classification": "micro_f1",
}


def make_task(
    model_args: FineTunedModelArguments,
    data_args: GlueDataArguments,
    training_args: FineTuningArguments,
    teacher: FineTuningTask | None = None,
) -> FineTuningTask:
    """Returns the task that the arguments describe: a task of GLUE, or the user's own data.

    Args:
        model_args: the model. With `is_teacher`, it is not trained.
        data_args: the data.
        training_args: the settings.
        teacher: the task with the teacher's model. The labels get its order.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    download = {"cache_dir": model_args.cache_dir, "token": model_args.token}
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    splits = load_splits(data_args, training_args.wanted_splits, get_text_columns(config.to_dict()), **download)
    trains = not model_args.is_teacher and ("train" in splits or "unlabeled" in splits)
    if trains:
        choose_learning_rate(config, training_args)
        check_early(model_args, training_args)
    checkpoint_labels = [label for _, label in sorted((config.id2label or {}).items())]
    if teacher is not None:
        checkpoint_labels = teacher.labels or ["LABEL_0"]
    distills = model_args.is_teacher or teacher is not None
    labels = choose_labels(data_args.task, splits, checkpoint_labels, data_args.do_regression, distills)
    if model_args.is_teacher:
        check_teacher_labels(checkpoint_labels, labels)
    logger.info("labels: %s", "numbers (regression)" if labels is None else ", ".join(labels))
    known_problem = config.problem_type
    if teacher is not None:
        known_problem = "multi_label_classification" if teacher.multi_label else None
    problem = choose_problem(splits, labels, known_problem)
    config.problem_type = problem
    if trains:
        remember_text_columns(config, next(iter(splits.values())).layout.text_columns)
    config.id2label = dict(enumerate(labels or ["LABEL_0"]))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    features = {
        name: make_features(splits[name], labels, tokenizer, max_length, max_samples)
        for part, max_samples in data_args.max_samples.items()
        for name in GLUE_SPLITS[part]
        if name in splits and name != "unlabeled"
    }
    training = [features["train"]] if "train" in features else []
    if "unlabeled" in splits:
        training.append(make_unlabeled_features(splits["unlabeled"], labels, problem, tokenizer, max_length))
    evaluation_sets = [
        make_evaluation_set(name, splits[name], features[name], labels, problem, data_args)
        for name in features
        if name != "train"
    ]
    main_metric = data_args.task.main_metric if data_args.task else MAIN_METRICS[problem]
    scored = [s.baseline.metrics for s in evaluation_sets if s.name.startswith("eval") and s.baseline is not None]
    return FineTuningTask(
        name=describe_task(data_args, labels),
        make_model=model_maker(AutoModelForSequenceClassification, model_args, config, trained=not trains),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorWithPadding(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=concatenate_datasets(training) if training else None,
        evaluation_sets=evaluation_sets,
        main_metric=main_metric,
        metrics=tuple(dict.fromkeys([main_metric, *(metric for metrics in scored for metric in metrics)])),
        pipeline_tag="text-classification",
        labels=labels,
        text_pairs="text_pair" in next(iter(splits.values())).data.column_names,
        multi_label=problem == "multi_label_classification",
        data=describe_sets(data_args, splits, features),
        settings=collect_data_settings(data_args),
    )


def describe_task(data_args: GlueDataArguments, labels: list[str] | None) -> str:
    """Returns the display name of the task."""
    if data_args.task is not None:
        return data_args.task.folder
    return "Regression" if labels is None else "Text classification"


def describe_sets(
    data_args: GlueDataArguments, splits: dict[str, GlueSplit], features: dict[str, Dataset]
) -> dict[str, list[DataSource]]:
    """Names the examples of each set as results and cards do. Unlabeled examples are training examples.

    Args:
        data_args: the data that were read.
        splits: the splits.
        features: the features of all splits but the unlabeled one.
    """
    sets = {
        NAMES.get(name, name): [describe_split(data_args, name, splits[name], len(features[name]))]
        for name in features
    }
    if "unlabeled" in splits:
        unlabeled = describe_split(data_args, "unlabeled", splits["unlabeled"], len(splits["unlabeled"].data))
        sets["train"] = [*sets.get("train", []), unlabeled]
    return sets


def describe_split(data_args: GlueDataArguments, name: str, split: GlueSplit, num_examples: int) -> DataSource:
    """Names the examples of a split as results and cards do. Files in `data_dir` are named as the dataset on the Hub.

    Args:
        data_args: the data that were read.
        name: "train", "unlabeled" or a key of `NAMES`.
        split: the split.
        num_examples: number of examples used.
    """
    task = data_args.task
    unlabeled = Path(data_args.unlabeled_file) if name == "unlabeled" and data_args.unlabeled_file else None
    source = unlabeled or data_args.files.get(name) or data_args.dataset_name
    if source is not None:
        return describe_source(source, data_args.dataset_config_name, split.name or name, num_examples)
    assert task is not None  # see `load_splits`
    if name == "diagnostic":
        return DataSource("GLUE diagnostic", "test", num_examples, GLUE_ON_THE_HUB, "ax")
    on_the_hub = f"{name}_matched" if f"{name}_mismatched" in task.files else name
    return DataSource(f"GLUE {task.folder}", on_the_hub, num_examples, GLUE_ON_THE_HUB, data_args.task_name)


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


def make_unlabeled_features(
    split: GlueSplit,
    labels: list[str] | None,
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Dataset:
    """Tokenizes all examples of a split, with labels that [`distillation_loss`] ignores. See [`make_features`]."""
    nothing: Any = {
        "single_label_classification": UNLABELED,
        "multi_label_classification": [np.nan] * len(labels or ()),
        "regression": np.nan,
    }[problem]
    features = make_features(split, labels, tokenizer, max_length, None)
    return features.add_column("label", [nothing] * len(features))


# --- predictions ------------------------------------------------------------------------------------------------


class GluePredictions(NamedTuple):
    """The predictions for all examples of a set.

    Attributes:
        answers: regression: the number, *shape* (N,). One label: its id, *shape* (N,). Several labels: 1 for labels
            with a probability above 0.5, else 0, *shape* (N, labels).
        probabilities: the probability of each label. None: regression. *Shape:* (N, labels)
    """

    answers: np.ndarray
    probabilities: np.ndarray | None


def decode_logits(logits: Logits, problem: Problem) -> GluePredictions:
    """Returns the prediction for each example.

    Args:
        logits: *Shape:* (N, labels)
        problem: the kind of problem.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    if problem == "regression":
        return GluePredictions(scores.squeeze(-1), None)
    exact = scores.astype(np.float64)  # in float32, different logits can give equal probabilities
    if problem == "single_label_classification":
        return GluePredictions(scores.argmax(axis=-1), softmax(exact, axis=-1))
    return GluePredictions((scores > 0).astype(np.int64), expit(exact))


def make_score(task_name: str | None, labels: list[str] | None, problem: Problem) -> Score:
    """Returns a function that scores answers against references, both in the form of [`GluePredictions`].

    [`GlueMetric`] computes the metrics. A GLUE task with several metrics also gets their mean, `combined_score`.

    Args:
        task_name: a task of GLUE, or "ax". None: the user's own data.
        labels: in the order of their ids in this checkpoint.
        problem: the kind of problem.
    """
    own = {"single_label_classification": "classification", "multi_label_classification": "multi_label"}
    metric = GlueMetric(task_name or own.get(problem, problem), keep_in_memory=True)
    task_ids = _task_ids(task_name, labels)

    def score(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
        if task_ids is not None:
            predictions, references = task_ids[predictions], task_ids[references]
        metrics = metric.compute(predictions=predictions, references=references)
        if task_name is not None and len(metrics) > 1:
            metrics["combined_score"] = sum(metrics.values()) / len(metrics)
        return metrics

    return score


def _task_ids(task_name: str | None, labels: list[str] | None) -> np.ndarray | None:
    """Returns the task's id of each label. F1 is the F1 of label 1, which may have another id in this checkpoint."""
    task_labels = TASKS[task_name].labels if task_name in TASKS else ()
    return np.array([task_labels.index(label) for label in labels]) if labels and task_labels else None


def estimate_intervals(
    predictions: np.ndarray,
    references: np.ndarray,
    metrics: Collection[str],
    task_name: str | None,
    labels: list[str] | None,
    problem: Problem,
) -> dict[str, Interval]:
    """Returns the interval of each of `metrics`, from a bootstrap over the examples.

    Args:
        predictions, references, task_name, labels, problem: as in [`make_score`].
        metrics: the metrics that it computes.
    """
    task_ids = _task_ids(task_name, labels)
    if task_ids is not None:
        predictions, references = task_ids[predictions], task_ids[references]

    def score(rows: np.ndarray, counts: np.ndarray) -> dict[str, float]:
        drawn = SCORE_DRAWN[problem](rows, counts)
        chosen = {metric: drawn[metric] for metric in metrics if metric in drawn}
        if "combined_score" in metrics:
            chosen["combined_score"] = sum(chosen.values()) / len(chosen)
        return chosen

    return bootstrap(np.column_stack((references, predictions)), score)


def make_evaluation_set(
    split_name: str,
    split: GlueSplit,
    features: Dataset,
    labels: list[str] | None,
    problem: Problem,
    data_args: GlueDataArguments,
) -> EvaluationSet[GluePredictions]:
    """Returns examples to predict, and to score if they are labeled.

    [`write_predictions`] writes all predictions. Test predictions are also written in the format of gluebenchmark.com:
    its file name, example numbers and label names, and STS-B's scores between 0 and 5. For the user's own data, this
    file is predict_results.txt, as in `run_glue.py`.

    Args:
        split_name: a key of `NAMES`.
        split: the examples.
        features: from [`make_features`], of all examples or the first ones.
        labels: in the order of their ids.
        problem: the kind of problem.
        data_args: the task, and the separator of an example's labels.
    """
    name, task = NAMES[split_name], data_args.task
    files = ["predictions.jsonl" if name == "predict" else f"{name}_predictions.jsonl"]
    if name.startswith("predict"):
        files.append(f"{task.leaderboard.get(split_name, task.folder)}.tsv" if task else "predict_results.txt")
    names = (
        [str(task.labels.index(label)) for label in labels] if labels and task and task.writes_label_ids else labels
    )
    separator = data_args.label_separator or ","
    task_name = "ax" if split_name == "diagnostic" else data_args.task_name
    score = make_score(task_name, labels, problem)
    references = np.array(features["label"][:]) if "label" in features.column_names else None
    if references is not None and problem == "multi_label_classification":
        references = references.astype(np.int64)
    baseline = None if references is None else score_baseline(references, labels, score)

    def estimate(predictions: GluePredictions) -> dict[str, Interval]:
        assert references is not None and baseline is not None
        return estimate_intervals(predictions.answers, references, baseline.metrics, task_name, labels, problem)

    def write(predictions: GluePredictions, folder: Path) -> None:
        answers = predictions.answers
        write_predictions(folder / files[0], split, predictions, references, labels)
        for file in files[1:]:
            in_range = answers.clip(0, 5) if task and problem == "regression" else answers
            write_test_answers(folder / file, split.data["index"][: len(answers)], in_range, names, separator)
        if references is not None and problem == "single_label_classification":
            plot = plot_file(folder, name, "confusion_matrix.png")
            draw_confusion_matrix(references, answers, labels or [], plot)

    return EvaluationSet(
        name=name,
        features=features,
        num_examples=len(features),
        decode=lambda logits: decode_logits(logits, problem),
        score=None if references is None else lambda predictions: score(predictions.answers, references),
        write=write,
        predictions_files=tuple(files),
        baseline=baseline,
        estimate_intervals=None if references is None else estimate,
    )


def score_baseline(references: np.ndarray, labels: list[str] | None, score: Score) -> Baseline:
    """Scores the best answer that is the same for every example.

    It is the mean of numbers, the most frequent label, or the set of labels with the highest micro F1.
    """
    if labels is None:
        answer = references.mean(keepdims=True)
    elif references.ndim == 1:
        values, counts = np.unique(references, return_counts=True)
        answer = values[[counts.argmax()]]
    else:
        # The best set of k labels are the k most frequent ones. F1 = 2 * correct / (predicted + labels in the data).
        counts = references.sum(axis=0)
        order = np.argsort(-counts, kind="stable")
        sizes = np.arange(1, len(labels) + 1)
        f1 = 2 * counts[order].cumsum() / (sizes * len(references) + counts.sum())
        answer = np.zeros((1, len(labels)), dtype=np.int64)
        answer[0, order[: f1.argmax() + 1]] = 1
    metrics = score(np.broadcast_to(answer, references.shape), references)
    if labels is None:
        return Baseline(f"always {answer[0]:.3f}", metrics)
    return Baseline(f"always {format_answers(answer, labels, ', ')[0]!r}", metrics)


def name_answers(answers: np.ndarray, labels: list[str] | None) -> list[Any]:
    """Returns the answer to each example: a number, a label, or a list of labels.

    Args:
        answers: in the form of [`GluePredictions`].
        labels: in the order of their ids. None: regression.
    """
    if labels is None:
        return answers.tolist()
    if answers.ndim == 2:
        return [[labels[i] for i in np.flatnonzero(row)] for row in answers]
    return [labels[i] for i in answers]


def format_answers(answers: np.ndarray, labels: list[str] | None, separator: str) -> list[str]:
    """Returns the answer to each example as text. Numbers keep their full precision.

    Args:
        answers: in the form of [`GluePredictions`].
        labels: in the order of their ids. None: regression.
        separator: between the labels of an example.
    """
    named = name_answers(answers, labels)
    return [separator.join(answer) if isinstance(answer, list) else str(answer) for answer in named]


def write_predictions(
    file: Path, split: GlueSplit, predictions: GluePredictions, references: np.ndarray | None, labels: list[str] | None
) -> None:
    """Writes a JSON object for each example, in the order of the split.

    Its keys are the text columns, "label" (if the split is labeled, whatever the name of its label column),
    "predicted_label", and "probabilities", an object with the probability of each label (not for regression).

    Args:
        file: the file.
        split: the examples, of which the first may have been predicted.
        predictions: the predictions.
        references: the correct answers, in the form of [`GluePredictions`]. None: the split is not labeled.
        labels: in the order of their ids. None: regression.
    """
    layout, number = split.layout, len(predictions.answers)
    columns = {
        column: split.data[name][:number]
        for column, name in zip(layout.text_columns, ("text", "text_pair"), strict=False)
    }
    if references is not None:
        columns["label"] = name_answers(references, labels)
    columns["predicted_label"] = name_answers(predictions.answers, labels)
    if labels is not None and predictions.probabilities is not None:
        columns["probabilities"] = [dict(zip(labels, row, strict=True)) for row in predictions.probabilities.tolist()]
    with file.open("w", encoding="utf-8") as stream:
        for values in zip(*columns.values(), strict=True):
            example = dict(zip(columns, values, strict=True))
            stream.write(json.dumps(example, ensure_ascii=False) + "\n")


def write_test_answers(
    file: Path, indices: list[str], answers: np.ndarray, labels: list[str] | None, separator: str
) -> None:
    """Writes a TSV file with the columns index and prediction."""
    rows = zip(indices, format_answers(answers, labels, separator), strict=True)
    lines = [f"{index}\t{answer}\n" for index, answer in rows]
    file.write_text("".join(["index\tprediction\n", *lines]), encoding="utf-8")
