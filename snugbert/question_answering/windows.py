"""Questions on long texts -> windows that a model can read: the question, and as much of the text as has room.

A text is tokenized once, however many questions there are on it, and its windows are cut from the tokens.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError

logger = logging.getLogger(__name__)


class Question(NamedTuple):
    """A question on a text. All positions are characters of `context`."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()  # none: it has no answer, or the answer is not told
    answer_starts: tuple[int, ...] = ()  # where each answer begins
    title: str = ""  # of the article; "" where there is none
    row: str = ""  # where it is from, for messages: "dev.jsonl, row 3"
    is_impossible: bool = False  # whether it is said to have no answer


class ContextWindows(NamedTuple):
    """What the model reads of N windows, and where their tokens stand in the contexts."""

    features: Dataset  # N rows: what the tokenizer's model reads; for training start_positions and end_positions, too
    question: np.ndarray  # [N] int32: index of the window's question; windows of a question are adjacent, in order
    first: np.ndarray  # [N] int32: index, in the window, of the first token of the context
    starts: list[np.ndarray]  # N of [context tokens of the window]: first character of each token in the context
    ends: list[np.ndarray]  # likewise, the character behind its last
    max_context: list[np.ndarray]  # likewise, whether no other window has more context around the token


class _Text(NamedTuple):
    """Tokens of a text: ids and the characters they cover, [tokens] each."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def make_windows(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    training: bool = False,
) -> ContextWindows:
    """Cuts the contexts of questions into windows: [CLS] question [SEP] part of the context [SEP].

    Args:
        questions: at least one. A context without tokens makes one window with an empty part.
        tokenizer: a fast one, of BERT's form.
        max_seq_length: most tokens of a window.
        doc_stride: tokens that a window has in common with the one before it, as in `run_qa.py`. In the original
            release's `run_squad.py` it is the step from a window to the next instead.
        max_query_length: most tokens of a question; a longer one loses its end.
        training: add start_positions and end_positions, the first and the last token of the question's first answer;
            both 0, [CLS], in a window that does not hold all of it, and where there is none.

    Raises:
        InputError: beside a question there is no room for more than the overlap of two windows.
    """
    queries = _tokenize([question.question for question in questions], tokenizer)
    _check_lengths(questions, [len(query.ids) for query in queries], max_seq_length, doc_stride, max_query_length)
    contexts = list(dict.fromkeys(question.context for question in questions))
    texts = dict(zip(contexts, _tokenize(contexts, tokenizer), strict=True))

    parts: list[tuple[np.ndarray, np.ndarray]] = []  # tokens of a window before its context, and of its context
    numbers: list[int] = []
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    max_context: list[np.ndarray] = []
    positions: list[tuple[int, int]] = []
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for number, (question, query) in enumerate(zip(questions, queries, strict=True)):
        text = texts[question.context]
        before = np.concatenate([cls, query.ids[:max_query_length], sep])
        spans = find_best_spans(len(text.ids), max_seq_length - len(before) - 1, doc_stride)
        first, last = answer_tokens(question, text)
        for begin, end in spans:
            parts.append((before, np.concatenate([text.ids[begin:end], sep])))
            numbers.append(number)
            starts.append(text.starts[begin:end])
            ends.append(text.ends[begin:end])
            moved = len(before) - begin
            positions.append((first + moved, last + moved) if begin <= first <= last < end else (0, 0))
        max_context += best_windows(spans)
    columns = _columns(parts, tokenizer.model_input_names)
    if training:
        columns["start_positions"], columns["end_positions"] = map(pa.array, np.array(positions, np.int32).T)
    return ContextWindows(
        features=Dataset.from_dict(columns),
        question=np.array(numbers, np.int32),
        first=np.array([len(before) for before, _ in parts], np.int32),
        starts=starts,
        ends=ends,
        max_context=max_context,
    )


def _check_lengths(
    questions: Sequence[Question], lengths: list[int], max_seq_length: int, doc_stride: int, max_query_length: int
) -> None:
    """Warns of long questions, of `lengths` tokens each, and makes sure that windows have room beside them."""
    long = [question for question, length in zip(questions, lengths, strict=True) if length > max_query_length]
    if long:
        message = "%d questions have more than %d tokens (--max_query_length) and lose their ends; the first: %s"
        logger.warning(message, len(long), max_query_length, long[0].row or long[0].id)
    longest = min(max(lengths), max_query_length)
    room = max_seq_length - longest - 3  # [CLS] and twice [SEP]
    if room <= doc_stride:
        raise InputError(
            f"beside a question of {longest} tokens, a window of {max_seq_length} (max_seq_length) has room for "
            f"{max(room, 0)} of the context, and must have more than windows have in common (doc_stride "
            f"{doc_stride}); change one of the two."
        )


def _columns(parts: list[tuple[np.ndarray, np.ndarray]], names: list[str]) -> dict[str, pa.Array]:
    """Those of the model's inputs that have these `names`, a list for each window."""
    lengths = np.array([(len(before), len(context)) for before, context in parts])
    tokens = {
        "input_ids": np.concatenate([part for pair in parts for part in pair]).astype(np.int32),
        "token_type_ids": np.repeat(np.tile(np.array([0, 1], np.int8), len(parts)), lengths.ravel()),
        "attention_mask": np.ones(lengths.sum(), np.int8),
    }
    offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))]).astype(np.int32)
    return {name: pa.ListArray.from_arrays(offsets, tokens[name]) for name in names}


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[_Text]:
    # verbose: a text longer than the model is what windows are for.
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_offsets_mapping=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    tokens = []
    for ids, mapping in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        characters = np.array(mapping, np.int32).reshape(-1, 2)
        tokens.append(_Text(np.array(ids, np.int32), *characters.T.copy()))
    return tokens


def find_best_spans(tokens: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """First token and the one behind the last of each window on a text of so many `tokens`.

    Args:
        tokens: of the text.
        size: most tokens of a window.
        overlap: tokens that neighbours have in common, fewer than `size`.
    """
    last = max(tokens - overlap, 1)  # a window that begins here or later would be within the one before it
    return [(begin, min(begin + size, tokens)) for begin in range(0, last, size - overlap)]


def best_windows(spans: list[tuple[int, int]]) -> list[np.ndarray]:
    """Whether each window is the one with the most context around each of its tokens.

    As `_check_is_max_context` of the original release's `run_squad.py` has it: the smaller of the numbers of tokens to
    the left and to the right, and 0.01 times the window's tokens; of equals the first.

    Args:
        spans: from [`find_best_spans`].

    Returns:
        Booleans for each window. *Shape:* (tokens of the window,)
    """
    best = np.full(spans[-1][1], -1.0)
    chosen = np.zeros(len(best), np.int32)
    for number, (begin, end) in enumerate(spans):
        left = np.arange(end - begin)
        scores = np.minimum(left, left[::-1]) + 0.01 * (end - begin)
        better = scores > best[begin:end]
        best[begin:end][better] = scores[better]
        chosen[begin:end][better] = number
    return [chosen[begin:end] == number for number, (begin, end) in enumerate(spans)]


def answer_tokens(question: Question, text: _Text) -> tuple[int, int]:
    """First and last token of the first answer in its context; (-1, -1) if there is none."""
    if not question.answers:
        return -1, -1
    start = question.answer_starts[0]
    first = int(np.searchsorted(text.ends, start, side="right"))
    last = int(np.searchsorted(text.starts, start + len(question.answers[0]), side="left")) - 1
    return first, last
