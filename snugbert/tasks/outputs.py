"""The three forms of a head's outputs: logits of a sequence, of each token, or of the start and end of a span.

Training, distillation, prediction and export only need to know the form, not the task.

An item is a unit that a head predicts: an example, a labeled token of token classification, or a token of question
answering. Shapes: W windows, I items, T tokens in a batch, L tokens in the longest window, C labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from snugbert.data.packed_batches import count_tokens
from snugbert.modeling_snugbert import IGNORE_INDEX

Logits = np.ndarray | tuple[np.ndarray, ...]

UNLABELED = -1  # label of an item without a gold label; unlike with -100, the item counts
PADDING = -100  # padding of predictions, as in Trainer
OUTSIDE = -1e30  # score of a position after the end of a window. It is finite, so that its product with 0 is 0


class Items(NamedTuple):
    """The items of a batch, for distillation."""

    student: torch.Tensor  # logits [I, C]
    teacher: torch.Tensor  # logits [I, C]
    labels: torch.Tensor  # gold labels [I], or [I, C] with several labels per example


class Output(ABC):
    """The form of a head's outputs."""

    label_columns: tuple[str, ...]  # columns of features
    counted_labels: str = "labels"  # the column of a batch whose labels the loss counts
    names: tuple[str, ...] = ("logits",)
    per_token: bool = True  # whether there are logits for every token
    labels_mark_items: bool = False  # whether the labels decide which tokens are items

    @abstractmethod
    def count_items(self, inputs: Dataset) -> np.ndarray:
        """Counts the items of each window of labeled features. *Shape:* (W,)"""

    def match(self, counts: np.ndarray, other_counts: np.ndarray) -> bool:
        """Whether the item counts of two tokenizers match. The windows may differ."""
        return bool(counts.sum() == other_counts.sum())

    @abstractmethod
    def select_items(self, logits: Logits, inputs: Dataset) -> np.ndarray:
        """Returns the logits of all items of labeled features, in order. *Shape:* (I, C)"""

    def join_windows(self, rows: Sequence[np.ndarray]) -> Logits:
        """Joins logits of windows for decoding, padded with zeros: (W, C), or (W, L, C); for spans, two arrays (W, L).

        `rows`: logits of each window: (C,), or (L, C) if `per_token`; for spans, start and end score: (L, 2).
        """
        padded = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), rows[0].dtype)
        for index, row in enumerate(rows):
            padded[index, : len(row)] = row
        return padded

    def stack(self, outputs: Any) -> torch.Tensor:
        """Returns the logits of a model's outputs as one tensor, with the labels in the last dimension."""
        return outputs["logits"]

    def join_items(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Joins a teacher's logits of the windows in a batch, (I, C) each, for [`list_items`]."""
        return torch.cat(parts)

    def pop_labels(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Removes the labels from a batch, so that the model does not compute its own loss, and returns them."""
        return {name: batch.pop(name) for name in self.label_columns}

    @abstractmethod
    def list_items(
        self, outputs: Any, batch: dict[str, Any], labels: dict[str, torch.Tensor], teacher: torch.Tensor
    ) -> Iterator[Items]:
        """Yields the items of a batch. For spans, yields the starts, then the ends, and both losses are averaged.

        Outputs and batch are the student's. A row filled by [`pad_row`] has more items than `teacher`.
        """


class _SequenceOutput(Output):
    """One row of logits per sequence, (W, C). In multiple choice, a sequence can have fewer choices than C."""

    label_columns = ("label",)
    per_token = False

    def count_items(self, inputs: Dataset) -> np.ndarray:
        return np.ones(len(inputs), dtype=np.int64)

    def select_items(self, logits: Logits, inputs: Dataset) -> np.ndarray:
        return _first(logits)

    def pop_labels(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"labels": batch.pop("labels")}

    def list_items(
        self, outputs: Any, batch: dict[str, Any], labels: dict[str, torch.Tensor], teacher: torch.Tensor
    ) -> Iterator[Items]:
        yield Items(outputs["logits"][: len(teacher)], teacher, labels["labels"][: len(teacher)])


class _TokenOutput(Output):
    """One row of logits per token, (W, L, C)."""

    label_columns = ("labels",)
    labels_mark_items = True

    def count_items(self, inputs: Dataset) -> np.ndarray:
        return np.array([np.count_nonzero(np.array(labels) != IGNORE_INDEX) for labels in inputs["labels"][:]])

    def select_items(self, logits: Logits, inputs: Dataset) -> np.ndarray:
        pairs = zip(_first(logits), inputs["labels"][:], strict=True)
        return np.concatenate([row[: len(ids)][np.array(ids) != IGNORE_INDEX] for row, ids in pairs])

    def pop_labels(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        names = [name for name in ("labels", "label_indices") if name in batch]
        labels: dict[str, torch.Tensor] = {name: batch.pop(name) for name in names}
        if "label_indices" not in labels:  # a padded batch
            labels["label_indices"] = (labels["labels"].flatten() != IGNORE_INDEX).nonzero().squeeze(-1)
        return labels

    def list_items(
        self, outputs: Any, batch: dict[str, Any], labels: dict[str, torch.Tensor], teacher: torch.Tensor
    ) -> Iterator[Items]:
        indices = labels["label_indices"]
        student = outputs["logits"].flatten(0, 1).index_select(0, indices)
        chosen = labels["labels"].flatten().index_select(0, indices)
        yield Items(student[: len(teacher)], teacher, chosen[: len(teacher)])


class _SpanOutput(Output):
    """Start and end scores of every token, two arrays (W, L). The labels are positions in a window."""

    label_columns = ("start_positions", "end_positions")
    counted_labels = "start_positions"
    names = ("start_logits", "end_logits")

    def count_items(self, inputs: Dataset) -> np.ndarray:
        return count_tokens(inputs)

    def match(self, counts: np.ndarray, other_counts: np.ndarray) -> bool:
        return np.array_equal(counts, other_counts)  # the items are tokens, so the windows must be the same

    def select_items(self, logits: Logits, inputs: Dataset) -> np.ndarray:
        pairs = zip(np.stack([*logits], axis=-1), count_tokens(inputs), strict=True)
        return np.concatenate([row[:length] for row, length in pairs])

    def join_windows(self, rows: Sequence[np.ndarray]) -> Logits:
        starts_and_ends = super().join_windows(rows)
        return starts_and_ends[..., 0], starts_and_ends[..., 1]  # type: ignore[call-overload]

    def stack(self, outputs: Any) -> torch.Tensor:
        return torch.stack([outputs[name] for name in self.names], dim=-1)

    def join_items(self, parts: list[torch.Tensor]) -> torch.Tensor:
        # The classes are the positions of a window.
        return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=OUTSIDE)

    def list_items(
        self, outputs: Any, batch: dict[str, Any], labels: dict[str, torch.Tensor], teacher: torch.Tensor
    ) -> Iterator[Items]:
        student, offsets = self.stack(outputs), batch.get("cu_seq_lens_q")
        length = teacher.shape[1]  # tokens of the longest window
        if offsets is not None:  # a packed batch
            indices = offsets[: len(teacher), None] + torch.arange(length, device=offsets.device)
            student = student[0][indices.clamp(max=student.shape[1] - 1)]
        student = student[:, :length].masked_fill(teacher == OUTSIDE, OUTSIDE)
        for side, name in enumerate(self.label_columns):
            yield Items(student[..., side], teacher[..., side], labels[name][: len(teacher)])


def average_windows(logits: Sequence[np.ndarray], counts: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Returns the mean logits of each document. `counts`: number of windows of each document, in order."""
    return [windows.mean(0) for windows in np.split(np.stack(logits), np.cumsum(counts)[:-1])]


def _first(logits: Logits) -> np.ndarray:
    """Returns the logits from a model's outputs, which may also contain hidden states, for example."""
    return logits[0] if isinstance(logits, tuple) else logits


SEQUENCE, TOKENS, SPAN = _SequenceOutput(), _TokenOutput(), _SpanOutput()
