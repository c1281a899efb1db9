"""The task that `snugbert ner` fine-tunes on: windows, tags, scores and the files of a run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
)

from snugbert.models import load_config, load_tokenizer, longest
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import draw_confusion_matrix, draw_entity_scores
from snugbert.trainers.finetuning.run import EvaluationSet, FineTuningTask, collect_data_settings, model_maker
from snugbert.trainers.finetuning.tables import apart
from snugbert.trainers.ner.arguments import NerDataArguments
from snugbert.trainers.ner.data import NerSplit, choose_labels, load_splits, write_tagged
from snugbert.trainers.ner.windows import NerWindows, Tags, make_windows, most_frequent_tags, predicted_tags, score
from snugbert.trainers.splits import describe_dataset, describe_file, hub_id

logger = logging.getLogger(__name__)

FIGURES = ("precision", "recall", "f1", "accuracy")  # of all types together
NAMES = {"train": "train", "validation": "eval", "test": "predict"}  # of the splits, in files and figures


def make_judge(
    name: str, split: NerSplit, windows: NerWindows, labels: list[str], each_type: bool
) -> Callable[[Any, Path | None], dict[str, float]]:
    """What scores and writes the predictions for `windows`, see [`EvaluationSet`].

    Args:
        name: of the set: "eval" or "predict".
        split: the sentences.
        windows: made of them.
        labels: in the order of their ids.
        each_type: whether there are figures of each type during training, too.
    """

    def judge(logits: Any, folder: Path | None) -> dict[str, float]:
        tags = predicted_tags(logits, windows, split, labels)
        if folder is not None:
            # The file of run_ner.py for test sentences, and one beside it.
            file = folder / ("predictions.txt" if name == "predict" else f"{name}_predictions.txt")
            write_tagged(file, split, tags)
            print(f"predictions: {file}")
        if not split.labelled:
            return {}
        figures = score(split, tags)
        if folder is not None:
            prefix = "" if name == "eval" else f"{name}_"
            draw_entity_scores(apart(figures)[1], folder / f"{prefix}entity_scores.png")
            _draw_confusion(split, tags, folder / f"{prefix}confusion_matrix.png")
        return figures if each_type or folder is not None else {figure: figures[figure] for figure in FIGURES}

    return judge


def _draw_confusion(split: NerSplit, tags: Tags, file: Path) -> None:
    """Which types the words of each type were taken for."""
    right = [tag[2:] for sentence in split.sentences for tag in sentence.tags or ()]
    given = [tag[2:] for of_sentence in tags for tag in of_sentence]
    ids = {kind: i for i, kind in enumerate(sorted({"", *right, *given}))}  # "": O, the first
    names = ["O", *list(ids)[1:]]
    draw_confusion_matrix(np.array([ids[k] for k in right]), np.array([ids[k] for k in given]), names, file)


# --- command ----------------------------------------------------------------------------------------------------


def make_task(
    model_args: FineTunedModelArguments, data_args: NerDataArguments, training_args: FineTuningArguments
) -> FineTuningTask:
    """The task of the data that the arguments name.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    splits = load_splits(
        data_args, training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token
    )
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    labels = choose_labels(splits, [label for _, label in sorted((config.id2label or {}).items())])
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in config.id2label.items()}

    max_length = longest(config, tokenizer, data_args.max_seq_length)
    windows = {
        name: make_windows(
            split, labels, tokenizer, max_length, data_args.document_context, data_args.label_all_tokens
        )
        for name, split in splits.items()
    }

    def evaluation_set(split_name: str) -> EvaluationSet:
        name, split, of_split = NAMES[split_name], splits[split_name], windows[split_name]
        judge = make_judge(name, split, of_split, labels, data_args.return_entity_level_metrics)
        baseline = None
        if "train" in splits and split.labelled:
            figures = score(split, most_frequent_tags(splits["train"], split))
            baseline = ("words' most frequent tags", {figure: figures[figure] for figure in FIGURES})
        return EvaluationSet(name, of_split.features, judge, len(split.sentences), baseline)

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
        train_features=windows["train"].features if "train" in windows else None,
        evaluation_sets=[evaluation_set(name) for name in ("validation", "test") if name in splits],
        main_metric="f1",
        metrics=(*FIGURES, *(f"{kind}_{figure}" for kind in types for figure in FIGURES[:3])),
        pipeline_tag="token-classification",
        padding_collator=DataCollatorForTokenClassification(tokenizer, **training_args.padding(max_length)),
        labels=labels,
        dataset=(dataset_name, hub_id(data_args.dataset_name), data_args.dataset_config_name),
        settings=collect_data_settings(data_args),
    )
