"""Cuts long contexts into windows that a model can read: a question and a part of its context.

A context is tokenized once, even for several questions. Its windows are cut from the tokens.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from snugbert.data.squad import Question
from snugbert.errors import InputError
from snugbert.tasks.base import Features
from snugbert.tasks.windows import make_inputs

logger = logging.getLogger(__name__)


@dataclass
class ContextWindows(Features):
    """N windows, and the position of their tokens in the contexts. The lists have a value per context token."""

    question_indices: np.ndarray  # the question of each window. A question's windows are adjacent. int32, (N,)
    context_offsets: np.ndarray  # the position in the window of its first context token. int32, (N,)
    char_starts: list[np.ndarray]  # where each context token of a window starts in the context, in characters
    char_ends: list[np.ndarray]  # where it ends (exclusive)
    max_context: list[np.ndarray]  # whether no other window has more context around the token


class _TokenizedText(NamedTuple):
    """Token ids of a text, and start and end character of each token. *Shape:* (tokens,) each"""

    ids: np.ndarray
    char_starts: np.ndarray
    char_ends: np.ndarray


def make_question_windows(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    training: bool = False,
) -> ContextWindows:
    """Cuts the contexts of questions into windows: [CLS] question [SEP] part of the context [SEP].

    The special tokens are the same as in the tokenizer's pairs. RoBERTa has two separators after the question.

    Args:
        questions: at least one. A context without tokens makes one window with an empty part.
        doc_stride: tokens that a window shares with the previous window, as in `run_qa.py`. In the original release's
            `run_squad.py`, `doc_stride` is the step between windows.
        max_query_length: maximum tokens of a question. Longer questions are truncated, with a warning.
        training: add start_positions and end_positions, the first and last token of the question's first answer. In a
            window without the whole answer both are 0, the position of [CLS].
    """
    queries = _tokenize([question.question for question in questions], tokenizer)
    long = [question for question, query in zip(questions, queries, strict=True) if len(query.ids) > max_query_length]
    if long:
        message = "Questions truncated to %d tokens (max_query_length): %d. The first: %s."
        logger.warning(message, max_query_length, len(long), long[0].row or long[0].id)
    longest = max(len(query.ids[:max_query_length]) for query in queries)
    check_room(tokenizer, max_seq_length, doc_stride, longest)
    before, between, after = _find_special_tokens(tokenizer)
    contexts = list(dict.fromkeys(question.context for question in questions))
    tokenized = dict(zip(contexts, _tokenize(contexts, tokenizer), strict=True))

    token_ids: list[tuple[np.ndarray, np.ndarray]] = []  # for each window: ids before the context, and all others
    question_indices: list[int] = []
    char_starts: list[np.ndarray] = []
    char_ends: list[np.ndarray] = []
    max_context: list[np.ndarray] = []
    answer_positions: list[tuple[int, int]] = []
    for index, (question, query) in enumerate(zip(questions, queries, strict=True)):
        text = tokenized[question.context]
        query_ids = np.concatenate([before, query.ids[:max_query_length], between])
        spans = split_into_spans(len(text.ids), max_seq_length - len(query_ids) - len(after), doc_stride)
        first, last = _find_answer_tokens(question, text)
        for begin, end in spans:
            token_ids.append((query_ids, np.concatenate([text.ids[begin:end], after])))
            question_indices.append(index)
            char_starts.append(text.char_starts[begin:end])
            char_ends.append(text.char_ends[begin:end])
            shift = len(query_ids) - begin
            answer_positions.append((first + shift, last + shift) if begin <= first <= last < end else (0, 0))
        max_context += find_max_context(spans)
    columns = make_inputs(token_ids, tokenizer.model_input_names)
    if training:
        columns["start_positions"], columns["end_positions"] = map(pa.array, np.array(answer_positions, np.int32).T)
    return ContextWindows(
        inputs=Dataset.from_dict(columns),
        question_indices=np.array(question_indices, np.int32),
        context_offsets=np.array([len(query_ids) for query_ids, _ in token_ids], np.int32),
        char_starts=char_starts,
        char_ends=char_ends,
        max_context=max_context,
    )


def split_into_spans(num_tokens: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """Returns start and end (exclusive) of overlapping spans, one per window. An empty text has one empty span."""
    stop = max(num_tokens - overlap, 1)  # a span that begins here or later would be part of the previous span
    return [(begin, min(begin + size, num_tokens)) for begin in range(0, stop, size - overlap)]


def find_max_context(spans: list[tuple[int, int]]) -> list[np.ndarray]:
    """Marks the tokens that have their maximum context in a span: booleans for each span, *shape* (its tokens,).

    The definition is `_check_is_max_context` in the original release's `run_squad.py`: the context of a token is the
    number of tokens to its left or to its right, whichever is smaller, plus 0.01 times the length of the span. If
    several spans give equal context, the first span counts.
    """
    max_scores = np.full(spans[-1][1], -1.0)
    best_spans = np.zeros(len(max_scores), np.int32)
    for index, (begin, end) in enumerate(spans):
        left = np.arange(end - begin)
        scores = np.minimum(left, left[::-1]) + 0.01 * (end - begin)
        better = scores > max_scores[begin:end]
        max_scores[begin:end][better] = scores[better]
        best_spans[begin:end][better] = index
    return [best_spans[begin:end] == index for index, (begin, end) in enumerate(spans)]


def _find_special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[int]]:
    """Returns the ids of the special tokens before, between and after the texts of a pair."""
    encoding = tokenizer("a", "b")
    ids, texts = encoding["input_ids"], encoding.sequence_ids()
    first, second = (slice(texts.index(text), len(texts) - texts[::-1].index(text)) for text in (0, 1))
    return ids[: first.start], ids[first.stop : second.start], ids[second.stop :]


def choose_stride(max_seq_length: int) -> int:
    """Returns how many tokens neighboring windows share: 128, as in `run_qa.py`, or a third of a short window."""
    return 128 if max_seq_length >= 256 else max_seq_length // 3


def check_room(tokenizer: PreTrainedTokenizerBase, max_seq_length: int, doc_stride: int, question: int = 1) -> int:
    """Returns the maximum tokens of a question. A window needs more tokens of context than `doc_stride`."""
    special = tokenizer.num_special_tokens_to_add(pair=True)
    left = max(max_seq_length - special - question, 0)
    if left <= doc_stride:
        raise InputError(
            f"max_seq_length {max_seq_length}: a question of {question} tokens leaves {left} for the context. This "
            f"must be more than doc_stride ({doc_stride}). Increase max_seq_length or decrease doc_stride."
        )
    return question + left - doc_stride - 1


def _tokenize(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[_TokenizedText]:
    # verbose=False: no warning about long texts, which are cut into windows.
    only_ids = {"return_attention_mask": False, "return_token_type_ids": False, "add_special_tokens": False}
    encoded = tokenizer(texts, return_offsets_mapping=True, verbose=False, **only_ids)
    return [
        _TokenizedText(np.array(ids, np.int32), *np.array(mapping, np.int32).reshape(-1, 2).T.copy())
        for ids, mapping in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]


def _find_answer_tokens(question: Question, text: _TokenizedText) -> tuple[int, int]:
    """Returns the first and last token of the question's first answer, or (-1, -1) without an answer."""
    if not question.answers:
        return -1, -1
    start = question.answer_starts[0]
    first = int(np.searchsorted(text.char_ends, start, side="right"))
    last = int(np.searchsorted(text.char_starts, start + len(question.answers[0]), side="left")) - 1
    return first, last
