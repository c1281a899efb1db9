"""The forms of a head's outputs: windows are joined, and items are counted and selected."""

import numpy as np
import pytest
from datasets import Dataset

from snugbert.tasks.outputs import OUTSIDE, SEQUENCE, SPAN, TOKENS

WINDOWS = [np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(2, dtype=np.float32).reshape(1, 2)]


def test_windows_are_joined():
    np.testing.assert_array_equal(SEQUENCE.join_windows([np.array([1.0, 2.0])] * 2), [[1, 2], [1, 2]])
    np.testing.assert_array_equal(TOKENS.join_windows(WINDOWS), [[[0, 1], [2, 3], [4, 5]], [[0, 1], [0, 0], [0, 0]]])
    start, end = SPAN.join_windows(WINDOWS)
    np.testing.assert_array_equal(start, [[0, 2, 4], [0, 0, 0]])
    np.testing.assert_array_equal(end, [[1, 3, 5], [1, 0, 0]])


@pytest.mark.parametrize(
    ("output", "labels", "counts", "items"),
    [
        (SEQUENCE, {"label": [0, 1]}, [1, 1], [[0, 1], [0, 1]]),
        (TOKENS, {"labels": [[-100, 1, 0], [-100]]}, [2, 0], [[2, 3], [4, 5]]),
        (SPAN, {"start_positions": [0, 0]}, [3, 1], [[0, 1], [2, 3], [4, 5], [0, 1]]),
    ],
)
def test_items(output, labels, counts, items):
    """An item is an example, a labeled token, or a token of a window."""
    inputs = Dataset.from_dict({"input_ids": [[5, 6, 7], [8]], **labels})
    rows = [window[0] for window in WINDOWS] if output is SEQUENCE else WINDOWS
    assert output.count_items(inputs).tolist() == counts
    np.testing.assert_array_equal(output.select_items(output.join_windows(rows), inputs), items)


def test_tokens_need_the_same_windows_and_words_do_not():
    counts, others = np.array([3, 1]), np.array([2, 2])
    assert TOKENS.match(counts, others) and not SPAN.match(counts, others) and SPAN.match(counts, counts.copy())
    assert OUTSIDE * 0 == 0
