"""Windows: the parts of a text that a model reads at once, and how they become model inputs.

Shapes in comments: T tokens in all windows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, default_data_collator

from snugbert.data.packed_batches import NUM_WINDOWS, has_lists
from snugbert.progress import Progress

ROWS_PER_CALL = 1000  # rows per call of the tokenizer
# The integer types of features, as in `Dataset.map`. Digests of features depend on them.
TYPES = {"input_ids": pa.int32(), "token_type_ids": pa.int8(), "attention_mask": pa.int8()}


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[list[str]], max_length: int, source: str = ""
) -> tuple[dict[str, pa.ChunkedArray], int]:
    """Makes columns of model inputs, with one list per text or pair. Truncates the longer text of a pair first.

    Also returns how many texts or pairs were truncated. `source` names what is tokenized, for the
    progress display. Empty: nothing is displayed.
    """
    parts: dict[str, list[pa.Array]] = {name: [] for name in tokenizer.model_input_names}
    truncated = 0
    for rows in _split_rows(texts, source):
        encoded = tokenizer(*rows, truncation="longest_first", max_length=max_length)
        for name, arrays in parts.items():
            arrays.append(pa.array(encoded[name], pa.list_(TYPES[name])))
        truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings or ())
    return {name: pa.chunked_array(arrays) for name, arrays in parts.items()}, truncated


def tokenize_documents(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], max_length: int, doc_stride: int, source: str = ""
) -> dict[str, pa.ChunkedArray]:
    """Makes columns of model inputs, with a list of windows per text, and the column `num_windows`."""
    parts: dict[str, list[pa.Array]] = {name: [] for name in (*tokenizer.model_input_names, NUM_WINDOWS)}
    for rows in _split_rows([texts], source):
        encoded = tokenizer(
            *rows, truncation=True, max_length=max_length, stride=doc_stride, return_overflowing_tokens=True
        )
        counts = np.bincount(encoded["overflow_to_sample_mapping"], minlength=len(rows[0]))
        for name in tokenizer.model_input_names:
            parts[name].append(make_lists(pa.array(encoded[name], pa.list_(TYPES[name])), counts))
        parts[NUM_WINDOWS].append(pa.array(counts, pa.int32()))
    return {name: pa.chunked_array(arrays) for name, arrays in parts.items()}


def _split_rows(texts: Sequence[list[str]], source: str) -> Iterator[list[list[str]]]:
    """Yields the columns of texts in parts, and displays the progress."""
    number = len(texts[0])
    with Progress(f"tokenizing {source}", number, "rows", show=bool(source)) as progress:
        for start in range(0, number, ROWS_PER_CALL):
            yield [column[start : start + ROWS_PER_CALL] for column in texts]
            progress.move_to(min(start + ROWS_PER_CALL, number))


class PadNested(DataCollatorWithPadding):
    """Pads texts to (examples, tokens), and lists of choices or windows to (examples, longest list, tokens).

    Shorter lists end with texts of padding.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Returns the batch."""
        if not has_lists(features[0]["input_ids"]):
            return super().__call__(features)
        names = [name for name in self.tokenizer.model_input_names if name in features[0]]
        counts = [len(feature["input_ids"]) for feature in features]
        empty: dict[str, list[int]] = {name: [] for name in names}
        windows = [
            {name: feature[name][index] for name in names} if index < count else empty
            for feature, count in zip(features, counts, strict=True)
            for index in range(max(counts))
        ]
        batch = {name: ids.view(len(features), max(counts), -1) for name, ids in super().__call__(windows).items()}
        labels = [
            {name: feature[name] for name in feature if name not in (*names, NUM_WINDOWS)} for feature in features
        ]
        return batch | (default_data_collator(labels) if labels[0] else {})


def make_inputs(windows: Sequence[tuple[np.ndarray, ...]], names: Sequence[str]) -> dict[str, pa.Array]:
    """Makes columns of model inputs, with one list per window. `names` are the tokenizer's `model_input_names`.

    `windows`: the token ids of each window, special tokens included, split into its segments: two for a pair.
    """
    lengths = np.array([[len(ids) for ids in segments] for segments in windows])  # [windows, segments]
    segment_ids = np.tile(np.arange(lengths.shape[1], dtype=np.int8), len(windows))
    tokens: dict[str, np.ndarray] = {
        "input_ids": np.concatenate([ids for segments in windows for ids in segments]).astype(np.int32),
        "token_type_ids": np.repeat(segment_ids, lengths.ravel()),
        "attention_mask": np.ones(lengths.sum(), np.int8),
    }
    return {name: make_lists(tokens[name], lengths.sum(axis=1)) for name in names}


def make_lists(values: np.ndarray | pa.Array, lengths: Sequence[int] | np.ndarray) -> pa.Array:
    """Makes a column of lists from their joined values, *shape* (T,), and their lengths, *shape* (windows,)."""
    return pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), values)
