"""Labels of the data, their ids, and the kind of problem they define."""

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from snugbert.data.glue import GlueTask
from snugbert.data.tables import clean_label
from snugbert.errors import InputError, format_count, shorten
from snugbert.tasks.base import Problem
from snugbert.tasks.labeled_texts import NUMBER, TextSplit

INTEGER = re.compile(r"[-+]?[0-9]+")
DEFAULT_NAME = re.compile(r"label_(?=[0-9]+$)")  # what transformers calls a label without a name, in lower case
VECTOR_TEXT = re.compile(r"[01](?:[ ;|,][01])+")

logger = logging.getLogger(__name__)


def choose_labels(
    task: GlueTask | None,
    splits: Mapping[str, TextSplit],
    checkpoint_labels: list[str],
    regression: bool | None = None,
    distills: bool = False,
) -> list[str] | None:
    """Returns the labels in the order of their ids, or None for regression.

    The labels come from the task, otherwise from the dataset's class names, otherwise from the training examples,
    sorted. If all training labels are numbers and some have a decimal point, the task is a regression.

    Args:
        checkpoint_labels: the checkpoint's labels in the order of their ids. If the data have the same labels,
            ignoring case, this order is kept, so that the checkpoint's classifier stays valid. Without a task and
            training examples, the checkpoint's labels are used.
        regression: True for a regression, False for a classification. None: inferred from the labels.
        distills: whether the checkpoint is a teacher. Then your own data may lack some of its labels. All
            labels in the data keep the data's spelling.
    """
    if regression:
        return None
    train = splits.get("train")
    if task is not None:
        labels = list(task.labels)
    elif train is None:
        if len(checkpoint_labels) < 2:
            return None
        labels = list(checkpoint_labels)
    elif train.class_names:
        labels = list(dict.fromkeys(train.class_names))
        if train.are_vectors and len(checkpoint_labels) == len(labels):
            return list(checkpoint_labels)
    elif regression is None and _are_numbers(train):
        return None
    else:
        labels = _list_labels(train, 1 if distills and len(checkpoint_labels) > 1 else 2)
    if task is None:
        _warn_about_similar_labels(labels)
    fold = _choose_fold(checkpoint_labels)
    ids = {fold(label): i for i, label in enumerate(checkpoint_labels)}
    ours = {fold(label) for label in labels}
    if task is None and distills and ours <= ids.keys():
        labeled = [split for split in splits.values() if split.labeled]
        spelling = {fold(label): label for split in labeled for label in _distinct_labels(split)}
        return [spelling.get(fold(label), label) for label in checkpoint_labels]
    if ours == ids.keys():
        labels.sort(key=lambda label: ids[fold(label)])
    elif task is not None and labels and train is None and not (distills or _are_default(checkpoint_labels)):
        raise InputError(
            f"The labels of the model are {shorten(checkpoint_labels)}, but {task.folder} has {', '.join(labels)}. "
            "Choose a model of this task, or correct id2label in its config.json."
        )
    return labels or None


def fold_label(label: str) -> str:
    """Returns the same text for labels that differ only in case and spaces, and for LABEL_1 and 1."""
    return DEFAULT_NAME.sub("", " ".join(clean_label(label).casefold().split()))


def _choose_fold(labels: Sequence[str]) -> Callable[[str], str]:
    """Returns `fold_label`, or `clean_label` if some labels differ only in case and spaces."""
    return fold_label if len({*map(fold_label, labels)}) == len(labels) else clean_label


def _are_default(labels: Sequence[str]) -> bool:
    """Whether the labels of a model are only their ids: 0, 1 or LABEL_0, LABEL_1."""
    return [fold_label(label) for label in labels] == [str(i) for i in range(len(labels))]


def _list_labels(train: TextSplit, fewest: int) -> list[str]:
    """Returns the labels of the training examples, sorted. There must be at least `fewest` labels."""
    labels = sorted(_distinct_labels(train))
    if labels and all(VECTOR_TEXT.fullmatch(label) for label in labels):
        raise InputError(
            f"{train.source}: labels such as {labels[0]!r} are vectors. Set --label_separator {labels[0][1]!r}."
        )
    if len(labels) < fewest:
        found = f"the label {labels[0]!r}" if labels else "no label"
        raise InputError(
            f"{train.source}: all examples have {found}. Expected at least {format_count(fewest, 'label')}."
        )
    if all(INTEGER.fullmatch(label) for label in labels):
        labels.sort(key=Decimal)  # `int` accepts at most 4,300 digits
    return labels


def _warn_about_similar_labels(labels: list[str]) -> None:
    numbers = Counter(map(fold_label, labels))
    similar = [repr(label) for label in sorted(labels, key=fold_label) if numbers[fold_label(label)] > 1]
    if similar:
        logger.warning(
            "labels that differ in case or spaces are different classes: %s. To merge them, write them identically.",
            shorten(similar),
        )


def _distinct_labels(split: TextSplit) -> set[str]:
    return {label for value in split.labels for label in (value if split.multi_label else [value])}


def _are_numbers(train: TextSplit) -> bool:
    """Whether the labels are numbers to predict. Labels that are all integers are class names."""
    labels = train.labels
    if train.multi_label or all(INTEGER.fullmatch(label) for label in labels):
        return False
    numbers = [label for label in labels if NUMBER.fullmatch(label.replace(",", "."))]
    # A few labels such as "3.5" among names are also names. An "n/a" among numbers is a mistake in the data.
    if 2 * len(numbers) <= len(labels) or all(INTEGER.fullmatch(label) for label in numbers):
        return False
    for row, label in zip(train.rows, labels, strict=True):
        if not NUMBER.fullmatch(label):
            raise InputError(
                f"{train.source}, row {row}: the label {label!r} is not a number with a decimal point, but most are. "
                "Fix or remove such rows. If the labels are names of classes, set --do_regression false."
            )
    return True


def encode_labels(
    split: TextSplit, labels: list[str] | None, from_checkpoint: bool = False
) -> list[int] | list[float] | list[list[float]]:
    """Returns the label id of each example, a list of 1.0 or 0.0 for several labels, or the number (regression).

    `from_checkpoint`: whether `labels` are the labels of a checkpoint that is not trained, for messages.
    """
    if split.multi_label and not labels:
        raise InputError(f"{split.source} has lists of labels. Expected one number per example.")
    labels, size = labels or [], len(split.class_names)
    if split.are_vectors and size != len(labels):
        raise InputError(
            f"{split.source}: the labels are vectors of {size} elements, but the model has {len(labels)} labels. "
            "Choose the model that was trained on these labels."
        )
    ids = _find_ids(split, labels)
    advice = "Fix or remove the row."
    if from_checkpoint:
        advice = "Choose the model that was trained on these labels, or change the labels."
    for row, value in zip(split.rows, split.labels, strict=True):
        where = f"{split.source}, row {row}"
        for label in value if split.multi_label else [value]:
            if labels and label not in ids:
                raise InputError(f"{where}: unknown label {label[:50]!r}. Expected one of {shorten(labels)}. {advice}")
            if not labels and not (NUMBER.fullmatch(label) and math.isfinite(float(label))):
                raise InputError(
                    f"{where}: the model predicts numbers, and {label[:50]!r} is not a finite number. {advice}"
                )
    if not labels:
        return [float(value) for value in split.labels]
    if split.multi_label:
        rows = [{ids[label] for label in value} for value in split.labels]
        return [[float(i in row) for i in range(len(labels))] for row in rows]
    return [ids[value] for value in split.labels]


def _find_ids(split: TextSplit, labels: Sequence[str]) -> dict[str, int]:
    """Returns the ids of labels, by their spelling in a split.

    Case and spaces are ignored, and LABEL_1 equals 1, unless some `labels` differ only in case and spaces. If `labels`
    are only ids, they are the ids of the dataset's class names. Element i of a label vector belongs to `labels[i]`.
    """
    class_ids = {name: i for i, name in enumerate(split.class_names)}
    if split.are_vectors:
        return class_ids
    fold = _choose_fold(labels)
    ids = {fold(label): i for i, label in enumerate(labels)}
    found = {label: ids[fold(label)] for label in _distinct_labels(split) if fold(label) in ids}
    return class_ids | found if _are_default(labels) and len(split.class_names) == len(labels) else found


def choose_problem(
    splits: Mapping[str, TextSplit], labels: list[str] | None, checkpoint_problem: str | None
) -> Problem:
    """Chooses between regression and classification with one or with several labels per example."""
    if labels is None:
        return "regression"
    sources = {split.multi_label: split.source for split in splits.values() if split.labeled}
    if len(sources) == 2:
        raise InputError(
            f"{sources[True]} has lists of labels, but {sources[False]} has single labels. Write lists in both."
        )
    multi_label = True in sources if sources else checkpoint_problem == "multi_label_classification"
    return "multi_label_classification" if multi_label else "single_label_classification"
