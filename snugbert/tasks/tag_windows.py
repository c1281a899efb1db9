"""Cuts sentences into windows that a model can read, and reads the predicted tag of each word from the logits."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerBase

from snugbert.data.conll import NerSplit, Tags
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.tasks.entity_tags import convert_tags
from snugbert.trainers.finetuning.soft_targets import UNLABELED


class NerWindows(NamedTuple):
    """N windows, and the position at which each of the W words of a split is labeled and predicted.

    Attributes:
        features: N rows of model inputs, with labels if the sentences are labeled.
        window_indices: the window of each word. *Shape:* (W,)
        token_indices: the position of the word's first sub-token in that window. *Shape:* (W,)
    """

    features: Dataset
    window_indices: np.ndarray
    token_indices: np.ndarray


def put_space_before_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes RoBERTa's tokenizer put a space before each word of a list.

    The tokens of a word depend on that space, and nearly all words of a text have one. Other tokenizers do not change.
    """
    backend = tokenizer.backend_tokenizer
    if isinstance(backend.pre_tokenizer, ByteLevel) and not backend.pre_tokenizer.add_prefix_space:
        backend.pre_tokenizer.add_prefix_space = True
        if hasattr(backend.post_processor, "add_prefix_space"):  # for offsets only
            backend.post_processor.add_prefix_space = True
        tokenizer.add_prefix_space = True
        tokenizer.init_kwargs["add_prefix_space"] = True  # is saved


def make_windows(
    split: NerSplit,
    labels: list[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    document_context: bool = False,
    label_all_tokens: bool = False,
) -> NerWindows:
    """Cuts sentences into windows: [CLS] tokens [SEP].

    A sentence that fits is one window. Each window of a longer sentence labels the words in about half of it, with
    context from the sentence on both sides. With `document_context`, a window labels sentences that fill half of it,
    or one longer sentence, and is filled with the sentences before and after. Each word is labeled in exactly one
    window.

    A word without tokens, such as a control character, becomes the unknown token and keeps its tag. A word that is
    longer than a window is truncated.

    Args:
        split: sentences, labeled in BIO or not labeled.
        labels: in the order of their ids. Other tags are not learned.
        tokenizer: a fast tokenizer with BERT's special tokens.
        max_length: maximum tokens of a window, at least 4.
        document_context: fill windows with neighboring sentences of the same document.
        label_all_tokens: label all sub-tokens of a word, with B- on the first and I- on the others. Otherwise only the
            first is labeled.
    """
    room = max_length - 2  # without [CLS] and [SEP]
    word_ids = _tokenize_words([word for sentence in split.sentences for word in sentence.words], tokenizer, room)
    lengths = np.array([len(ids) for ids in word_ids])
    starts = np.concatenate([[0], np.cumsum(lengths)])  # first token of each word among all tokens, and their end
    token_ids = np.concatenate(word_ids)
    token_labels = _label_tokens(split, labels, lengths, label_all_tokens) if split.labeled else None

    window_indices, token_indices = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    columns: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": []}
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for index, (core, context) in enumerate(_plan_windows(split, lengths, room, document_context)):
        first, last = starts[core.start], starts[core.stop]
        begin, end = _add_context(first, last, starts[context.start : context.stop + 1], room)
        window_indices[core] = index
        token_indices[core] = starts[core] - begin + 1  # after [CLS]
        columns["input_ids"].append(np.concatenate([cls, token_ids[begin:end], sep]))
        if token_labels is not None:
            window_labels = np.full(end - begin + 2, IGNORE_INDEX)
            window_labels[1 + first - begin : 1 + last - begin] = token_labels[first:last]
            columns["labels"].append(window_labels)
    return NerWindows(_make_dataset(columns, tokenizer), window_indices, token_indices)


def label_as_unlabeled(windows: NerWindows) -> Dataset:
    """Returns the features of unlabeled sentences with `UNLABELED` as the label of each word."""
    labels = [np.full(len(ids), IGNORE_INDEX) for ids in windows.features["input_ids"]]
    for window, token in zip(windows.window_indices.tolist(), windows.token_indices.tolist(), strict=True):
        labels[window][token] = UNLABELED
    return windows.features.add_column("labels", labels)


def _tokenize_words(words: list[str], tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> list[np.ndarray]:
    """Returns the first `max_tokens` token ids of each word, at least one. Repeated words are tokenized once."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer(
        [[word] for word in distinct], is_split_into_words=True, add_special_tokens=False, return_attention_mask=False
    )["input_ids"]
    unknown = [tokenizer.unk_token_id]
    token_ids = {word: np.array(ids[:max_tokens] or unknown) for word, ids in zip(distinct, encoded, strict=True)}
    return [token_ids[word] for word in words]


def _label_tokens(split: NerSplit, labels: list[str], lengths: np.ndarray, label_all_tokens: bool) -> np.ndarray:
    """Returns the label id of each token of all words, or -100. `lengths` counts the tokens of each word."""
    ids = {label: i for i, label in enumerate(labels)}
    # If a checkpoint lacks a B- or I- label, such tokens are not learned, but their words are scored.
    inside = {tag: ids.get(f"I-{tag[2:]}" if tag != "O" else "O", IGNORE_INDEX) for tag in labels}
    tags = [tag for sentence in split.sentences for tag in sentence.tags or ()]
    token_labels = np.repeat(
        [inside.get(tag, IGNORE_INDEX) if label_all_tokens else IGNORE_INDEX for tag in tags], lengths
    )
    token_labels[np.cumsum(lengths) - lengths] = [ids.get(tag, IGNORE_INDEX) for tag in tags]
    return token_labels


def _plan_windows(
    split: NerSplit, lengths: np.ndarray, room: int, document_context: bool
) -> Iterator[tuple[slice, slice]]:
    """Yields the words that each window labels, and the words of their sentence or document that may surround them."""
    end = 0
    for _, sentences in groupby(split.sentences, key=lambda sentence: sentence.document):
        document = []
        begin = end
        for sentence in sentences:
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
    """Groups neighbors whose lengths add up to at most `limit`, and returns start and end of each group.

    A neighbor that is longer than `limit` is a group of its own.
    """
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

    Args:
        first: the first labeled token.
        last: the end of the labeled tokens, exclusive.
        starts: the first token of each word that can be included, and their end.
        room: maximum tokens of the window.
    """
    free = room - (last - first)
    right = min(max(free // 2, free - (first - starts[0])), starts[-1] - last)
    left = min(free - right, first - starts[0])
    return starts[np.searchsorted(starts, first - left)], starts[
        np.searchsorted(starts, last + right, side="right") - 1
    ]


def _make_dataset(windows: dict[str, list[np.ndarray]], tokenizer: PreTrainedTokenizerBase) -> Dataset:
    flat = np.concatenate(windows["input_ids"])
    columns = {
        "input_ids": flat.astype(np.int32),
        "token_type_ids": np.zeros(len(flat), dtype=np.int8),
        "attention_mask": np.ones(len(flat), dtype=np.int8),
    }
    columns = {name: column for name, column in columns.items() if name in tokenizer.model_input_names}
    if windows["labels"]:
        columns["labels"] = np.concatenate(windows["labels"])
    ends = np.cumsum([0, *map(len, windows["input_ids"])]).astype(np.int32)
    return Dataset(pa.table({name: pa.ListArray.from_arrays(ends, column) for name, column in columns.items()}))


def predict_tags(
    logits: np.ndarray | tuple[np.ndarray, ...], windows: NerWindows, split: NerSplit, labels: list[str]
) -> Tags:
    """Returns the predicted tag of each word, in the scheme of the source.

    A word takes the label predicted for its first sub-token, as in training. Invalid tags are repaired as `conlleval`
    reads them. This does not change the scores of entities, only the accuracy of tags.

    Args:
        logits: *Shape:* (windows, tokens, labels); or a tuple that begins with them.
        windows: the windows of `split`.
        split: the sentences.
        labels: tags of any scheme, in the order of their ids.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    ids = iter(logits[windows.window_indices, windows.token_indices].argmax(axis=-1).tolist())
    predicted = [[labels[next(ids)] for _ in sentence.words] for sentence in split.sentences]
    return [convert_tags(tags, split.scheme) for tags in predicted]
