"""The task of `snugbert ner`: windows, tags, scores and the files of a run."""

from pathlib import Path

import numpy as np
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from snugbert.models import limit_length, load_config, load_tokenizer
from snugbert.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import draw_confusion_matrix, draw_entity_scores, plot_file
from snugbert.trainers.finetuning.run import check_early, collect_data_settings
from snugbert.trainers.finetuning.tables import split_by_type
from snugbert.trainers.finetuning.task import Baseline, DatasetName, EvaluationSet, FineTuningTask, model_maker
from snugbert.trainers.ner.arguments import NerDataArguments
from snugbert.trainers.ner.data import NerSplit, Tags, choose_labels, load_splits, write_tagged
from snugbert.trainers.ner.metric import predict_most_frequent_tags, score_tags
from snugbert.trainers.ner.windows import NerWindows, make_windows, predict_tags
from snugbert.trainers.splits import describe_dataset, describe_file, hub_id

METRICS = ("precision", "recall", "f1", "accuracy")  # of all types together
NAMES = {"validation": "eval", "test": "predict"}  # split -> prefix of metrics and files


def make_task(
    model_args: FineTunedModelArguments, data_args: NerDataArguments, training_args: FineTuningArguments
) -> FineTuningTask:
    """Returns the task that the arguments describe.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    splits = load_splits(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    if "train" in splits:
        check_early(model_args, training_args)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    labels = choose_labels(splits, [label for _, label in sorted((config.id2label or {}).items())])
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = limit_length(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: make_windows(
            split, labels, tokenizer, max_length, data_args.document_context, data_args.label_all_tokens
        )
        for name, split in splits.items()
    }

    evaluation_sets = [
        make_evaluation_set(
            NAMES[name],
            splits[name],
            windows[name],
            labels,
            splits.get("train"),
            None if data_args.return_entity_level_metrics else METRICS,
        )
        for name in NAMES
        if name in splits
    ]
    types = (
        sorted(splits["validation"].types) if data_args.return_entity_level_metrics and "validation" in splits else []
    )
    if data_args.dataset_name is not None:
        dataset_name = describe_dataset(data_args.dataset_name)
    else:
        dataset_name = describe_file(next(iter(data_args.files.values())))
    return FineTuningTask(
        name=dataset_name,
        make_model=model_maker(AutoModelForTokenClassification, model_args, config, trained="train" not in splits),
        tokenizer=tokenizer,
        data_collator=(
            DataCollatorForTokenClassification(tokenizer, padding="max_length", max_length=max_length)
            if training_args.pad_to_max_length
            else SnugBertDataCollatorWithPacking()
        ),
        train_features=windows["train"].features if "train" in windows else None,
        evaluation_sets=evaluation_sets,
        main_metric="f1",
        metrics=(*METRICS, *(f"{kind}_{metric}" for kind in types for metric in METRICS[:3])),
        pipeline_tag="token-classification",
        labels=labels,
        dataset=DatasetName(dataset_name, hub_id(data_args.dataset_name), data_args.dataset_config_name),
        settings=collect_data_settings(data_args),
    )


def make_evaluation_set(
    name: str,
    split: NerSplit,
    windows: NerWindows,
    labels: list[str],
    train: NerSplit | None,
    training_metrics: tuple[str, ...] | None,
) -> EvaluationSet[Tags]:
    """Returns sentences to tag, and to score if they are labeled.

    Args:
        name: "eval" or "predict".
        split: the sentences.
        windows: windows of the sentences.
        labels: in the order of their ids.
        train: the training sentences. The baseline predicts each word's most frequent tag in them.
        training_metrics: the metrics to log during training. None: all, including the metrics of each type.
    """
    # The file name of run_ner.py for test sentences.
    file = "predictions.txt" if name == "predict" else f"{name}_predictions.txt"

    def write(tags: Tags, folder: Path) -> None:
        write_tagged(folder / file, split, tags)
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
        training_metrics=training_metrics,
    )


def _draw_confusion(split: NerSplit, tags: Tags, file: Path) -> None:
    """Draws a confusion matrix of the entity types of words."""
    references = [tag[2:] for sentence in split.sentences for tag in sentence.tags or ()]
    predictions = [tag[2:] for sentence_tags in tags for tag in sentence_tags]
    ids = {kind: i for i, kind in enumerate(sorted({"", *references, *predictions}))}  # "" is O, and the first
    names = ["O", *list(ids)[1:]]
    draw_confusion_matrix(
        np.array([ids[kind] for kind in references]), np.array([ids[kind] for kind in predictions]), names, file
    )
