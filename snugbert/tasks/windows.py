"""Windows: the parts of a text that a model reads at once, and how they become model inputs.

Shapes in comments: T tokens in all windows.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from snugbert.progress import Progress

ROWS_PER_CALL = 1000  # of the tokenizer
# The integer types of features, as in `Dataset.map`. Digests of features depend on them.
TYPES = {"input_ids": pa.int32(), "token_type_ids": pa.int8(), "attention_mask": pa.int8()}


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[list[str]], max_length: int, source: str = ""
) -> dict[str, pa.ChunkedArray]:
    """Makes columns of model inputs, with one list per text or pair. Longer ones are truncated, the longer text first.

    Args:
        tokenizer: its `model_input_names` are the columns.
        texts: a column of texts, or two columns of pairs.
        max_length: maximum tokens of a list.
        source: what is tokenized, for the progress display. Empty: nothing is displayed.
    """
    parts: dict[str, list[pa.Array]] = {name: [] for name in tokenizer.model_input_names}
    number = len(texts[0])
    with Progress(f"tokenizing {source}", number, "rows", show=bool(source)) as progress:
        for start in range(0, number, ROWS_PER_CALL):
            rows = [column[start : start + ROWS_PER_CALL] for column in texts]
            encoded = tokenizer(*rows, truncation="longest_first", max_length=max_length)
            for name, arrays in parts.items():
                arrays.append(pa.array(encoded[name], pa.list_(TYPES[name])))
            progress.move_to(min(start + ROWS_PER_CALL, number))
    return {name: pa.chunked_array(arrays) for name, arrays in parts.items()}


def make_inputs(windows: Sequence[tuple[np.ndarray, ...]], names: Sequence[str]) -> dict[str, pa.Array]:
    """Makes columns of model inputs, with one list per window.

    Args:
        windows: the token ids of each window, special tokens included, split into its segments: one for a text, two
            for a pair.
        names: the columns to make: the tokenizer's `model_input_names`, of input_ids (int32), token_type_ids and
            attention_mask (int8).
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
