"""Counts copies: examples that occur again within the training examples, or in another set.

Two examples are copies if all their texts are equal after the tokenizer's normalization, such as lowercasing, and with
one space between words. Whole texts are compared, even if the model reads only their beginning.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from snugbert.reports.score_tables import set_title
from snugbert.tasks.base import Split, Task

logger = logging.getLogger(__name__)


class ExampleCopies:
    """The copies among the examples of a run."""

    def __init__(self) -> None:
        self.sentences: list[str] = []  # the counts that are not zero, for results and model cards
        self._keys: dict[str, set[int]] = {}  # title of a set -> hashes of the texts of its examples

    def count(self, task: Task[Any, Any, Any], splits: Mapping[str, Split]) -> None:
        """Counts the copies within the training examples, and between each split and all earlier splits."""
        for name, split in splits.items():
            texts, labels = task.list_texts(split)
            keys = hash_texts(texts, task.tokenizer)
            title = set_title(task.set_names[name]) if name in task.set_names else "training"
            if name == "train":
                self._count_within(keys, labels, task.noun)
            self._compare(keys, title, task.noun)
            self._keys.setdefault(title, set()).update(keys)  # "train" and "unlabeled" are the training examples

    def _count_within(self, keys: list[int], labels: Iterable[Any], noun: str) -> None:
        first: dict[int, Any] = {}
        mixed = {key for key, label in zip(keys, labels, strict=True) if first.setdefault(key, label) != label}
        repeated, conflicting = len(keys) - len(first), sum(key in mixed for key in keys)
        if repeated:
            self.sentences.append(f"Training {noun} that are copies of earlier ones: {repeated:,} of {len(keys):,}.")
            logger.info(self.sentences[-1])
        if conflicting:
            self.sentences.append(f"Training {noun} with a copy that has another label: {conflicting:,}.")
            logger.warning("%s Correct the labels, or remove these %s.", self.sentences[-1], noun)

    def _compare(self, keys: list[int], title: str, noun: str) -> None:
        for other, known in self._keys.items():
            shared = sum(key in known for key in keys)
            sentence = f"{title.capitalize()} {noun} that are copies of {other} {noun}: {shared:,} of {len(keys):,}."
            if other != title and shared and sentence not in self.sentences:
                self.sentences.append(sentence)
                logger.warning("%s Scores on copies are too high. Remove the copies from one set.", sentence)


def hash_texts(columns: Iterable[Iterable[str]], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns a hash of the texts of each example. `columns`: lists with one text per example, such as questions."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    # `normalize_str` is slow. So ASCII text is normalized with a table, and repeated words and contexts are cached.
    normalize = cache(str if normalizer is None else normalizer.normalize_str)
    ascii_table = {code: normalize(chr(code)) for code in range(128)}

    @cache
    def hash_text(text: str) -> int:
        normalized = text.translate(ascii_table) if text.isascii() else " ".join(map(normalize, text.split()))
        return hash(" ".join(normalized.split()))

    return [hash(hashes) for hashes in zip(*(map(hash_text, texts) for texts in columns), strict=True)]
