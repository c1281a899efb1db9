"""Packs examples into batches without padding, with a fixed number of examples or a token budget.

Shapes: N sequences, T tokens in the batch.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import datasets
import numpy as np
import torch

from snugbert.gpu.row_sizes import SEQUENCE_COLUMNS, pad_row
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.packing_snugbert import warn_of_padding

TOKEN_COLUMNS = ("input_ids", "token_type_ids", "attention_mask")
NUM_WINDOWS = "num_windows"  # a column with one value per document: its number of windows
KNOWN_COLUMNS = (*TOKEN_COLUMNS, *SEQUENCE_COLUMNS, NUM_WINDOWS)
RENAMED = {"label": "labels", "label_ids": "labels"}  # as in transformers' default collator


def pack(token_columns: Mapping[str, Sequence[np.ndarray]]) -> dict[str, Any]:
    """Concatenates sequences. A column, such as `input_ids`, is a list of arrays with one value per token.

    Returns the columns (1, T); `position_ids` (1, T), which restart at 0 in each sequence; `cu_seq_lens_q` (N + 1,) in
    int32, the start of each sequence, then T; `max_length_q`, the length of the longest sequence; and
    `label_indices` (M,), the index of each labeled token, if there is a column `labels`.
    """
    lengths = np.array([len(ids) for ids in token_columns["input_ids"]])
    if not lengths.all():
        raise ValueError(f"Sequence {lengths.argmin()} of the batch has no tokens.")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    arrays = {name: np.concatenate(sequences) for name, sequences in token_columns.items()}
    arrays["position_ids"] = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    batch = {
        **{name: torch.from_numpy(array.astype(np.int64, copy=False))[None] for name, array in arrays.items()},
        "cu_seq_lens_q": torch.from_numpy(offsets.astype(np.int32)),
        "max_length_q": int(lengths.max()),
    }
    if "labels" in arrays:  # finding them on a GPU would make the host wait
        batch["label_indices"] = torch.from_numpy(np.flatnonzero(arrays["labels"] != IGNORE_INDEX))
    return batch


@dataclass
class SnugBertDataCollatorWithPacking:
    """Collates features into a packed batch for any SnugBERT model.

    Batches have Trainer's batch size, or a token budget with [`TokenBudgetDataset`]. Padding is dropped, and positions
    start at 0 in each sequence. Use one process per GPU, because `nn.DataParallel` cannot split a packed batch.

    Args:
        pad_to_multiple_of: fills the row up to a multiple of this number of tokens, see [`pad_row`]. None: no padding.
            For training only: if a plain Trainer evaluates, predictions would include the padding.
        max_sequences: with `pad_to_multiple_of`, the largest number of examples in a batch. None: all batches have
            the same number.
    """

    pad_to_multiple_of: int | None = None
    max_sequences: int | None = None

    def __call__(self, features: Sequence[Any]) -> dict[str, Any]:
        """Packs `features`.

        Args:
            features: dictionaries from tokenizers or datasets, or lists of them, with these columns:

                - `input_ids` (tokens,), or (choices, tokens) for multiple choice, or (windows, tokens) for documents.
                - `num_windows`: the number of windows of a document. Without it, nested lists are choices.
                - `token_type_ids` and `attention_mask`, of the same shape. Tokens with mask 0 are dropped.
                - `labels`, `label` or `label_ids`: a number for the sequence, a list of integers with one label per
                  token, or a list of floats with one value per class (multi-label). Labels at padding are dropped with
                  a warning.
                - `next_sentence_label`, `start_positions` and `end_positions`. Positions are adjusted for dropped
                  padding. Positions at padding become -100, with a warning.
                - Other columns with one number per feature, for example weights for your own loss.

        Returns:
            The batch, as in [`pack`]. Token labels are (1, T), sequence labels (N,), and multi-label targets
            (N, classes). Integers are int64 and floats float32. For multiple choice, N is examples x choices,
            `labels` has one label per example, and `num_choices` is added. For documents, N is the number of windows,
            and `labels` and `num_windows` have one value per document. With `pad_to_multiple_of`, the row is padded.
        """
        columns = _to_columns(
            list(chain.from_iterable(item if isinstance(item, list) else [item] for item in features))
        )
        extra: dict[str, Any] = {}
        if NUM_WINDOWS in columns:
            extra[NUM_WINDOWS] = torch.tensor(columns.pop(NUM_WINDOWS), dtype=torch.int64)
        elif has_lists(columns["input_ids"][0]):
            counts = {len(choices) for choices in columns["input_ids"]}
            if len(counts) > 1:
                raise ValueError(f"All examples of a batch need the same number of choices, not {sorted(counts)}.")
            extra["num_choices"] = counts.pop()
        if extra:
            for name in columns.keys() & TOKEN_COLUMNS:
                columns[name] = list(chain.from_iterable(columns[name]))
        arrays = {name: _to_arrays(name, values) for name, values in columns.items()}
        token_columns = {name: arrays.pop(name) for name in TOKEN_COLUMNS if name in arrays}
        if not extra and any(label.ndim and label.dtype.kind != "f" for label in arrays.get("labels", [])):
            token_columns["labels"] = arrays.pop("labels")
        _check_lengths(token_columns)
        if "attention_mask" in token_columns:
            masks = [mask != 0 for mask in token_columns.pop("attention_mask")]
            at_padding = [labels[~mask] for labels, mask in zip(token_columns.get("labels", []), masks, strict=False)]
            warn_of_padding("labels", sum(int(np.count_nonzero(labels != IGNORE_INDEX)) for labels in at_padding))
            token_columns = {
                name: [values[mask] for values, mask in zip(sequences, masks, strict=True)]
                for name, sequences in token_columns.items()
            }
            for name in arrays.keys() & {"start_positions", "end_positions"}:
                adjusted = [_adjust_position(*pair) for pair in zip(arrays[name], masks, strict=True)]
                pairs = zip(arrays[name], adjusted, strict=True)
                warn_of_padding(name, sum(after == IGNORE_INDEX != before for before, after in pairs))
                arrays[name] = adjusted
        batch = pack(token_columns) | {name: _stack(values) for name, values in arrays.items()} | extra
        if self.pad_to_multiple_of is None:
            return batch
        return pad_row(batch, self.pad_to_multiple_of, self.max_sequences)


def _to_columns(features: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    if any(feature.keys() != features[0].keys() for feature in features):
        raise ValueError("All features of a batch need the same columns.")
    unknown = [
        name
        for name, value in features[0].items()
        if RENAMED.get(name, name) not in KNOWN_COLUMNS and (np.ndim(value) or isinstance(value, str))
    ]
    if unknown:
        raise ValueError(f"Unknown columns {unknown}. Call `dataset.remove_columns({unknown})`.")
    return {RENAMED.get(name, name): [feature[name] for feature in features] for name in features[0]}


def has_lists(ids: Any) -> bool:
    """Whether a feature has a list of texts: the choices of an example, or the windows of a document."""
    return len(ids) > 0 and np.ndim(ids[0]) > 0


def _to_arrays(name: str, values: list[Any]) -> list[np.ndarray]:
    arrays = [np.asarray(value) for value in values]
    for array, value in zip(arrays, values, strict=True):
        if array.dtype.kind not in "biuf":
            raise ValueError(f"`{name}` must contain numbers, not {value!r}. Convert or remove the column.")
    return arrays


def _check_lengths(token_columns: dict[str, list[np.ndarray]]) -> None:
    for name, sequences in token_columns.items():
        for index, (values, ids) in enumerate(zip(sequences, token_columns["input_ids"], strict=True)):
            if values.shape != (len(ids),):
                hint = " Multi-label targets must be floats." if name == "labels" else ""
                raise ValueError(
                    f"`{name}` of sequence {index} has shape {list(values.shape)}. Expected {[len(ids)]}, one value "
                    f"per token.{hint}"
                )


def _adjust_position(position: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns the position without padding, or -100 at padding. Positions outside the sequence are unchanged."""
    if not 0 <= position < len(mask):
        return position
    return np.asarray(np.count_nonzero(mask[:position]) if mask[position] else IGNORE_INDEX)


def _stack(arrays: list[np.ndarray]) -> torch.Tensor:
    stacked = np.stack(arrays)
    return torch.from_numpy(stacked.astype(np.float32 if stacked.dtype.kind == "f" else np.int64))


class IgnorePadding:
    """Sets token labels at padding to -100, so that Trainer does not count them in the denominator of the loss."""

    def __init__(self, collate: Callable[[Any], Any]):
        self.collate = collate
        self.tokenizer = getattr(collate, "tokenizer", None)  # Trainer saves it

    def __call__(self, features: Any) -> Any:
        """Returns the batch of `collate`. Warns once about labels at padding. Batches without masks stay unchanged."""
        batch = self.collate(features)
        if not isinstance(batch, MutableMapping):
            return batch
        labels, mask = batch.get("labels"), batch.get("attention_mask")
        if not isinstance(labels, torch.Tensor) or not isinstance(mask, torch.Tensor):
            return batch
        if labels.shape == mask.shape and not labels.is_floating_point():
            at_padding = (labels != IGNORE_INDEX) & (mask == 0)
            warn_of_padding("labels", int(at_padding.sum()))
            batch["labels"] = labels.masked_fill(at_padding, IGNORE_INDEX)
        return batch


class TokenBudgetDataset(torch.utils.data.Dataset):
    """A dataset whose items are lists of examples, with at most `max_tokens` tokens per item.

        Trainer(
            args=TrainingArguments(per_device_train_batch_size=1, ...),
            train_dataset=TokenBudgetDataset(dataset, max_tokens=4096),
            data_collator=SnugBertDataCollatorWithPacking(),
        )

    Trainer treats each item as an example, so sampling, resuming and multiple processes work as usual. Use it for
    training only. In evaluation, Trainer truncates the predictions to the number of items, so examples would be lost.

    Examples are shuffled once, then grouped in this order, so grouping does not depend on length. With SST-2 (13
    tokens per example), items are 98.1 % full on average if `max_tokens` is 512, and 99.5 % if it is 4096. So all
    batches can have the same size at little cost:

        items = TokenBudgetDataset(dataset, max_tokens=4096)
        data_collator=SnugBertDataCollatorWithPacking(pad_to_multiple_of=4096, max_sequences=items.max_examples)

    Args:
        dataset: a `datasets.Dataset` or another map-style dataset of features for
            [`SnugBertDataCollatorWithPacking`].
        max_tokens: maximum number of tokens per item. Padding does not count.
        seed: seed for shuffling. The items depend only on the dataset, `max_tokens` and the seed.

    Attributes:
        max_examples: the maximum number of examples per item.
    """

    def __init__(self, dataset: Any, max_tokens: int, seed: int = 42):
        self.dataset = dataset
        self.max_tokens = max_tokens
        lengths = count_tokens(dataset)
        if lengths.max(initial=0) > max_tokens:
            row = lengths.argmax()
            raise ValueError(
                f"Row {row} has {lengths[row]} tokens. The limit is {max_tokens} (`max_tokens`). Tokenize with "
                "`truncation=True`."
            )
        self._rows = np.random.default_rng(seed).permutation(len(lengths))
        ends = np.cumsum(lengths[self._rows])
        self._starts = [0]
        while (start := self._starts[-1]) < len(lengths):
            before = ends[start - 1] if start else 0
            self._starts.append(int(np.searchsorted(ends, before + max_tokens, side="right")))
        self.max_examples = int(np.diff(self._starts).max(initial=0))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> list[Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = self._rows[self._starts[index] : self._starts[index + 1]].tolist()
        if hasattr(self.dataset, "__getitems__"):  # reads rows of a datasets.Dataset three times as fast
            return self.dataset.__getitems__(rows)
        return [self.dataset[row] for row in rows]


def count_tokens(dataset: Any) -> np.ndarray:
    """Counts the tokens of each example, including all its choices. *Shape:* (examples,)"""
    features = (dataset[row] for row in range(len(dataset)))
    if isinstance(dataset, datasets.Dataset) and "input_ids" in dataset.column_names:
        # Reading one column in batches is five times as fast as reading rows.
        column = "attention_mask" if "attention_mask" in dataset.column_names else "input_ids"
        batches = dataset.select_columns([column]).with_format(None).iter(batch_size=1000)
        features = ({column: values} for batch in batches for values in batch[column])
    return np.array([_length(feature) for feature in features], dtype=np.int64)


def _length(feature: Mapping[str, Any]) -> int:
    values = feature["attention_mask"] if "attention_mask" in feature else feature["input_ids"]
    count = np.count_nonzero if "attention_mask" in feature else len
    return sum(map(count, values)) if has_lists(values) else int(count(values))
