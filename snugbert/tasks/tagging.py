"""The task of `snugbert ner`: windows, tags, scores and the files of a run."""

from pathlib import Path

import numpy as np
from datasets import concatenate_datasets
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from snugbert.checkpoints.loading import limit_length, load_config, load_tokenizer, remember_text_columns
from snugbert.data.conll import NerSplit, Tags, choose_labels, load_splits
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.sources import DataSource, describe_source
from snugbert.reports.score_plots import draw_confusion_matrix, draw_entity_scores, plot_file
from snugbert.reports.score_tables import split_by_type
from snugbert.tasks.old_base import (
    Baseline,
    EvaluationSet,
    FineTuningTask,
    check_teacher_labels,
    model_maker,
)
from snugbert.tasks.tag_metric import estimate_intervals, predict_most_frequent_tags, score_tags
from snugbert.tasks.tag_predictions import predictions_file, write_predictions
from snugbert.tasks.tag_windows import (
    NerWindows,
    label_as_unlabeled,
    make_windows,
    predict_tags,
    put_space_before_words,
)
from snugbert.tasks.tagging_arguments import NerDataArguments
from snugbert.trainers.finetuning.fine_tune import check_early, collect_data_settings
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.learning_rate import choose_learning_rate

METRICS = ("precision", "recall", "f1", "accuracy")  # of all types together
NAMES = {"validation": "eval", "test": "predict"}  # split -> prefix of metrics and files


def make_task(
    model_args: FineTunedModelArguments,
    data_args: NerDataArguments,
    training_args: FineTuningArguments,
    teacher: FineTuningTask | None = None,
) -> FineTuningTask:
    """Returns the task that the arguments describe.

    Args:
        model_args: the model. With `is_teacher`, it is not trained.
        data_args: the data.
        training_args: the settings.
        teacher: the task with the teacher's model. The labels get its order.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    splits = load_splits(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    tokenizer = load_tokenizer(model_args)
    put_space_before_words(tokenizer)
    config = load_config(model_args, tokenizer)
    trains = not model_args.is_teacher and ("train" in splits or "unlabeled" in splits)
    if trains:
        choose_learning_rate(config, training_args)
        check_early(model_args, training_args)
        name = data_args.text_column_name or "tokens"
        remember_text_columns(config, ("tokens" if name.isdecimal() else name,))  # CoNLL's columns are numbers
    checkpoint_labels = [label for _, label in sorted((config.id2label or {}).items())]
    if teacher is not None and teacher.labels is not None:
        checkpoint_labels = teacher.labels
    labels = choose_labels(splits, checkpoint_labels, distills=model_args.is_teacher or teacher is not None)
    if model_args.is_teacher:
        check_teacher_labels(checkpoint_labels, labels, ignore_case=False)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: make_windows(
            split, labels, tokenizer, max_length, data_args.document_context, data_args.label_all_tokens
        )
        for name, split in splits.items()
    }
    training = [windows["train"].features] if "train" in windows else []
    if "unlabeled" in windows:
        training.append(label_as_unlabeled(windows["unlabeled"]))
    evaluation_sets = [
        make_evaluation_set(
            NAMES[name],
            splits[name],
            windows[name],
            labels,
            splits.get("train"),
            data_args,
        )
        for name in NAMES
        if name in splits
    ]
    types = (
        sorted(splits["validation"].types) if data_args.return_entity_level_metrics and "validation" in splits else []
    )
    return FineTuningTask(
        name="Token classification",
        make_model=model_maker(AutoModelForTokenClassification, model_args, config, trained=not trains),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=concatenate_datasets(training) if training else None,
        evaluation_sets=evaluation_sets,
        main_metric="f1",
        metrics=(*METRICS, *(f"{kind}_{metric}" for kind in types for metric in METRICS[:3])),
        pipeline_tag="token-classification",
        labels=labels,
        data=describe_sets(data_args, splits),
        settings=collect_data_settings(data_args),
    )


def describe_sets(data_args: NerDataArguments, splits: dict[str, NerSplit]) -> dict[str, list[DataSource]]:
    """Names the sentences of each set as results and cards do. Unlabeled sentences are training sentences."""
    sets: dict[str, list[DataSource]] = {}
    for name, split in splits.items():
        set_name = "train" if name == "unlabeled" else NAMES.get(name, name)
        sets.setdefault(set_name, []).append(describe_split(data_args, name, len(split.sentences)))
    return sets


def describe_split(data_args: NerDataArguments, name: str, num_examples: int) -> DataSource:
    """Names the sentences of the split `name` as results and cards do."""
    unlabeled = Path(data_args.unlabeled_file) if name == "unlabeled" and data_args.unlabeled_file else None
    source = unlabeled or data_args.files.get(name) or str(data_args.dataset_name)
    return describe_source(source, data_args.dataset_config_name, name, num_examples)


def make_evaluation_set(
    name: str,
    split: NerSplit,
    windows: NerWindows,
    labels: list[str],
    train: NerSplit | None,
    data_args: NerDataArguments,
) -> EvaluationSet[Tags]:
    """Returns sentences to tag, and to score if they are labeled.

    Args:
        name: "eval" or "predict".
        split: the sentences.
        windows: windows of the sentences.
        labels: in the order of their ids.
        train: the training sentences. The baseline predicts each word's most frequent tag in them.
        data_args: the source of the sentences, and whether to log the metrics of each type during training.
    """
    # The name in run_ner.py for test sentences.
    stem = "predictions" if name == "predict" else f"{name}_predictions"
    file = predictions_file(stem, data_args.files.get("test" if name == "predict" else "validation"))

    def write(tags: Tags, folder: Path) -> None:
        write_predictions(folder / file, split, tags, data_args)
        if split.labeled:
            draw_entity_scores(split_by_type(score_tags(split, tags))[1], plot_file(folder, name, "entity_scores.png"))
            _draw_confusion(split, tags, plot_file(folder, name, "confusion_matrix.png"))

    baseline = None
    if train is not None and split.labeled:
        metrics = score_tags(split, predict_most_frequent_tags(train, split))
        baseline = Baseline("each word's most frequent tag", {metric: metrics[metric] for metric in METRICS})
    return EvaluationSet(
        name=name,
        features=windows.features,
        num_examples=len(split.sentences),
        decode=lambda logits: predict_tags(logits, windows, split, labels),
        score=(lambda tags: score_tags(split, tags)) if split.labeled else None,
        write=write,
        predictions_files=(file,),
        baseline=baseline,
        estimate_intervals=(lambda tags: estimate_intervals(split, tags)) if split.labeled else None,
        training_metrics=None if data_args.return_entity_level_metrics else METRICS,
    )


def _draw_confusion(split: NerSplit, tags: Tags, file: Path) -> None:
    """Draws a confusion matrix of the tags of words. They are in the scheme of the source, as in the accuracy."""
    references, predictions = ([tag for row in rows for tag in row] for rows in (split.references, tags))
    prefixes = "OBIELSU"  # O, and the prefixes of an entity from its first word to its last
    labels = sorted({*references, *predictions}, key=lambda tag: (tag[2:], prefixes.index(tag[0])))
    ids = {label: i for i, label in enumerate(labels)}
    draw_confusion_matrix(
        np.array([ids[tag] for tag in references]), np.array([ids[tag] for tag in predictions]), labels, file
    )
