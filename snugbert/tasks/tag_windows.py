"""Cuts sentences into windows that a model can read, and labels the first token of each word.

Shapes: W words in all sentences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from datasets import Dataset
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from snugbert.data.conll import Sentence
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.base import Features
from snugbert.tasks.windows import make_inputs, make_lists


@dataclass
class TagWindows(Features):
    """Windows of sentences, and the position at which each word is labeled and predicted."""

    window_indices: np.ndarray  # the window of each word, (W,)
    token_indices: np.ndarray  # the position of the word's first sub-token in that window, (W,)


def put_space_before_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes RoBERTa's tokenizer put a space before each word of a list.

    The tokens of a word depend on that space, and nearly all words of a text have it. Other tokenizers stay unchanged.
    """
    backend = tokenizer.backend_tokenizer
    if isinstance(backend.pre_tokenizer, ByteLevel) and not backend.pre_tokenizer.add_prefix_space:
        backend.pre_tokenizer.add_prefix_space = True
        if hasattr(backend.post_processor, "add_prefix_space"):  # affects offsets only
            backend.post_processor.add_prefix_space = True
        tokenizer.add_prefix_space = True  # RobertaTokenizer saves it


def make_tag_windows(
    sentences: Sequence[Sentence],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    document_context: bool = False,
    first_labels: Sequence[int] | None = None,
    other_labels: Sequence[int] | None = None,
) -> TagWindows:
    """Cuts sentences into windows: [CLS] tokens [SEP].

    A sentence that fits is one window. Each window of a longer sentence labels the words in about half of the
    window, with context from the sentence on both sides. With `document_context`, a window labels sentences that fill
    half of it, or one longer sentence. The sentences before and after fill the rest. Each word is labeled once.

    A word without tokens, such as a control character, becomes the unknown token and keeps its tag. A word that is
    longer than a window is truncated.

    Args:
        sentences: at least one. A sentence without words makes an empty window.
        max_length: maximum tokens of a window, at least 4.
        first_labels, other_labels: labels of each word's first and other sub-tokens. None: not labeled. (W,)
    """
    room = max_length - 2  # without [CLS] and [SEP]
    word_ids = _tokenize_words([word for sentence in sentences for word in sentence.words], tokenizer, room)
    lengths = np.array([len(ids) for ids in word_ids])
    starts = np.concatenate([[0], np.cumsum(lengths)])  # first token of each word, and the end of all tokens
    token_ids = np.concatenate([np.zeros(0, dtype=np.int64), *word_ids])
    token_labels = np.repeat([IGNORE_INDEX] * len(lengths) if other_labels is None else other_labels, lengths)
    if first_labels is not None:
        token_labels[starts[:-1]] = first_labels

    window_indices, token_indices = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    windows: list[tuple[np.ndarray, ...]] = []
    labels: list[np.ndarray] = []
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for index, (core, context) in enumerate(_plan_windows(sentences, lengths, room, document_context)):
        first, last = starts[core.start], starts[core.stop]
        begin, end = _add_context(first, last, starts[context.start : context.stop + 1], room)
        window_indices[core] = index
        token_indices[core] = starts[core] - begin + 1  # after [CLS]
        windows.append((np.concatenate([cls, token_ids[begin:end], sep]),))
        labels.append(np.full(end - begin + 2, IGNORE_INDEX))
        labels[-1][1 + first - begin : 1 + last - begin] = token_labels[first:last]
    columns = make_inputs(windows, tokenizer.model_input_names)
    if first_labels is not None:
        columns["labels"] = make_lists(np.concatenate(labels), np.array([len(row) for row in labels]))
    return TagWindows(Dataset.from_dict(columns), window_indices, token_indices)


def _tokenize_words(words: list[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> list[np.ndarray]:
    """Returns the first `max_tokens` token ids of each word, at least one id. Repeated words are tokenized once."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer(
        [[word] for word in distinct], is_split_into_words=True, add_special_tokens=False, return_attention_mask=False
    )["input_ids"]
    unknown = [tokenizer.unk_token_id]
    token_ids = {word: np.array(ids[:max_tokens] or unknown) for word, ids in zip(distinct, encoded, strict=True)}
    return [token_ids[word] for word in words]


def _plan_windows(
    sentences: Sequence[Sentence], lengths: np.ndarray, room: int, document_context: bool
) -> Iterator[tuple[slice, slice]]:
    """Yields the words that each window labels, and the words of their sentence or document that may surround them."""
    end = 0
    for _, group in groupby(sentences, key=lambda sentence: sentence.document):
        document = []
        begin = end
        for sentence in group:
            first, end = end, end + len(sentence.words)
            fits = lengths[first:end].sum() <= room
            parts = [(0, end - first)] if fits else _group(lengths[first:end], room // 2)
            document += [(slice(first + a, first + b), slice(first, end)) for a, b in parts]
        if document_context:
            sums = [int(lengths[core].sum()) for core, _ in document]
            document = [
                (slice(document[a][0].start, document[b - 1][0].stop), slice(begin, end))
                for a, b in _group(sums, room // 2)
            ]
        yield from document


def _group(lengths: Sequence[int] | np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Returns start and end of groups of neighbors with a total length up to `limit`. Longer items stay alone."""
    groups = []
    begin = total = 0
    for i, length in enumerate(lengths):
        if i > begin and total + length > limit:
            groups.append((begin, i))
            begin, total = i, 0
        total += length
    return [*groups, (begin, len(lengths))]


def _add_context(first: int, last: int, starts: np.ndarray, room: int) -> tuple[int, int]:
    """Extends a window by whole words, equally on both sides as far as possible, and returns its start and end.

    `starts`: the first token of each word that can be included, and the end of the last word.
    """
    free = room - (last - first)
    right = min(max(free // 2, free - (first - starts[0])), starts[-1] - last)
    left = min(free - right, first - starts[0])
    begin = np.searchsorted(starts, first - left)
    end = np.searchsorted(starts, last + right, side="right") - 1
    return starts[begin], starts[end]
