"""The labels of a data set, and their ids."""

import math
import re
from decimal import Decimal
from typing import Literal

from snugbert.errors import InputError
from snugbert.trainers.glue.benchmark import GlueTask
from snugbert.trainers.glue.data import GlueSplit
from snugbert.trainers.glue.layout import NUMBER

INTEGER = re.compile(r"[-+]?[0-9]+")
Problem = Literal["regression", "single_label_classification", "multi_label_classification"]  # transformers' names
LABELS_TO_TELL = 10  # in a message


def choose_labels(
    task: GlueTask | None, splits: dict[str, GlueSplit], known: list[str], regression: bool | None = None
) -> list[str] | None:
    """The labels in the order of their ids; None if a number is to be predicted.

    They are the task's, else those that the data set names, else those of the training examples, sorted. Training
    labels that are numbers, and not all whole ones, make a regression.

    Args:
        task: the task; None: one's own data.
        splits: what [`load_splits`] returned.
        known: the checkpoint's labels in the order of their ids. If the labels are the same ones but for upper and
            lower case, its order is kept, so that its classifier means what it meant. Without task and training
            examples they are the labels.
        regression: whether a number is to be predicted, whatever the labels are; None: as they are.

    Raises:
        InputError: the training examples have only one label; several labels are no number; most labels are numbers,
            not all whole ones, and some are not.
    """
    if regression:
        lists = [split.source for split in splits.values() if split.multi_label]
        if lists:
            raise InputError(f"--do_regression: {lists[0]} has lists of labels where a number should be.")
        return None
    if task is not None:
        labels = list(task.labels)
    elif "train" not in splits:
        return known if len(known) > 1 else None
    elif splits["train"].labels:
        labels = list(splits["train"].labels)
    else:
        train = splits["train"]
        values = train.data["label"][:]
        labels = sorted({label for value in values for label in value} if train.multi_label else set(values))
        if all(INTEGER.fullmatch(label) for label in labels):
            labels.sort(key=Decimal)  # `int` takes at most 4,300 digits
        elif regression is None and not train.multi_label and _are_numbers(train, values):
            return None
        if len(labels) < 2:
            only = f"the label {labels[0]!r}" if labels else "no label"
            raise InputError(f"{train.source}: all examples have {only}; nothing to learn.")
    order = {label.lower(): i for i, label in enumerate(known)}
    if order.keys() == {label.lower() for label in labels}:
        labels.sort(key=lambda label: order[label.lower()])
    return labels or None


def _are_numbers(train: GlueSplit, labels: list[str]) -> bool:
    """Whether the labels, not all of them whole numbers, are numbers to predict and not the names of classes."""
    numbers = [label for label in labels if NUMBER.fullmatch(label)]
    # Among names there may be a "3.5". Among numbers an "n/a" is an accident.
    if len(numbers) < len(labels) < 2 * len(numbers) and not all(INTEGER.fullmatch(label) for label in numbers):
        rows = zip(train.data["row"][:], labels, strict=True)
        row, label = next((row, label) for row, label in rows if not NUMBER.fullmatch(label))
        raise InputError(
            f"{train.source}, row {row}: the label {label!r} is not a number, as most others are; mend or remove "
            "such rows, or give --do_regression false if labels are names of classes."
        )
    return len(numbers) == len(labels)


def encode_labels(split: GlueSplit, labels: list[str] | None) -> list[int] | list[float] | list[list[float]]:
    """The label of each example.

    Returns:
        Its place in `labels`; where an example may have several, 1.0 at the place of each and 0.0 elsewhere; or the
        number that it is, if `labels` is None.

    Raises:
        InputError: a label that is not one of `labels`, or no number; with source and row.
    """
    values, multi_label = split.data["label"][:], split.multi_label
    ids = {label: i for i, label in enumerate(labels or ())}
    for row, value in zip(split.data["row"][:], values, strict=True):
        for label in value if multi_label else [value]:
            if labels and label not in ids:
                known = ", ".join(labels[:LABELS_TO_TELL])
                more = f" and {len(labels) - LABELS_TO_TELL} more" if len(labels) > LABELS_TO_TELL else ""
                raise InputError(
                    f"{split.source}, row {row}: the label {label!r} is unknown; known, by the task or from training, "
                    f"are {known}{more}; mend or remove the row."
                )
            if not labels and not (NUMBER.fullmatch(label) and math.isfinite(float(label))):
                raise InputError(
                    f"{split.source}, row {row}: {label[:50]!r} is not a finite number. Fix or remove the row."
                )
    if not labels:
        return [float(value) for value in values]
    if multi_label:
        return [[float(label in value) for label in labels] for value in values]
    return [ids[value] for value in values]


def choose_problem(splits: dict[str, GlueSplit], labels: list[str] | None, before: str | None) -> Problem:
    """Whether a number, one of the labels, or any number of them is predicted.

    Args:
        splits: the examples.
        labels: from [`choose_labels`].
        before: what the checkpoint did. It is asked if the examples tell no labels.

    Raises:
        InputError: some examples may have several labels, and others not.
    """
    if labels is None:
        return "regression"
    told = {split.multi_label: split.source for split in splits.values() if split.labelled}
    if len(told) == 2:
        raise InputError(f"{told[True]} has lists of labels and {told[False]} one label for each example.")
    multi_label = True in told if told else before == "multi_label_classification"
    return "multi_label_classification" if multi_label else "single_label_classification"
