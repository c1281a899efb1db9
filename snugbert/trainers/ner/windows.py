"""Sentences of words -> windows that a model can read, and the predicted tag of each word."""

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from snugbert.entity_tags import decode_tags, encode_tags
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.ner.data import NerSplit
from snugbert.trainers.ner.metric import NerMetric

logger = logging.getLogger(__name__)

# The tags of each sentence.
Tags = list[list[str]]


class NerWindows(NamedTuple):
    """What the model reads of N windows, and where it reads each of the W words of all sentences together."""

    features: Dataset  # N rows: what the tokenizer's model reads, and labels if the tags are told
    window: np.ndarray  # [W] the window in which the word counts
    position: np.ndarray  # [W] the place of its first piece there


def make_windows(
    split: NerSplit,
    labels: list[str],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    document_context: bool = False,
    label_all_tokens: bool = False,
) -> NerWindows:
    """Turns sentences into windows of word pieces: [CLS] pieces [SEP].

    A sentence that has room is one window. Of a longer one every window reads on about half a window's words, and has
    others of the sentence on both sides of them. With `document_context` a window reads on sentences that fill half of
    it, or one longer sentence, and is filled with the sentences before and after them. Each word counts in just one
    window: the others have no label for it.

    A word that the tokenizer makes nothing of, such as a control character, is an unknown word: it keeps its tag. One
    that is longer than a window loses its end.

    Args:
        split: the sentences, tagged in BIO or not.
        labels: in the order of their ids; a tag that is none of them is not learned.
        tokenizer: a fast one, of BERT's form.
        max_length: most tokens of a window, 4 at least.
        document_context: whether windows reach over the ends of sentences, within documents.
        label_all_tokens: whether all pieces of a word have a label: B- becomes I- behind the first. Otherwise only the
            first has one.
    """
    room = max_length - 2
    pieces = _tokenize_words([word for sentence in split.sentences for word in sentence.words], tokenizer, room)
    lengths = np.array([len(ids) for ids in pieces])
    starts = np.concatenate([[0], np.cumsum(lengths)])  # of each word among all pieces, and their end
    ids = np.concatenate(pieces)
    piece_labels = _label_tokens(split, labels, lengths, label_all_tokens) if split.labelled else None

    window, position = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
    windows: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": []}
    cls, sep = [tokenizer.cls_token_id], [tokenizer.sep_token_id]
    for number, (core, around) in enumerate(_cores(split, lengths, room, document_context)):
        first, last = starts[core.start], starts[core.stop]
        begin, end = _fill(first, last, starts[around.start : around.stop + 1], room)
        window[core] = number
        position[core] = starts[core] - begin + 1  # behind [CLS]
        windows["input_ids"].append(np.concatenate([cls, ids[begin:end], sep]))
        if piece_labels is not None:
            counts = np.full(end - begin + 2, IGNORE_INDEX)
            counts[1 + first - begin : 1 + last - begin] = piece_labels[first:last]
            windows["labels"].append(counts)
    return NerWindows(_dataset(windows, tokenizer), window, position)


def _tokenize_words(words: list[str], tokenizer: PreTrainedTokenizerBase, most: int) -> list[np.ndarray]:
    """The ids of the first `most` pieces of each word, one at least; words that recur are tokenized once."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer(
        [[word] for word in distinct], is_split_into_words=True, add_special_tokens=False, return_attention_mask=False
    )["input_ids"]
    unknown = [tokenizer.unk_token_id]
    pieces = {word: np.array(ids[:most] or unknown) for word, ids in zip(distinct, encoded, strict=True)}
    return [pieces[word] for word in words]


def _label_tokens(split: NerSplit, labels: list[str], lengths: np.ndarray, label_all_tokens: bool) -> np.ndarray:
    """The label id of each piece of all words, -100 where it has none."""
    ids = {label: i for i, label in enumerate(labels)}
    # Tokens of a checkpoint whose labels lack a B- or an I- have none here; they are scored all the same.
    inside = {tag: ids.get(f"I-{tag[2:]}" if tag != "O" else "O", IGNORE_INDEX) for tag in labels}
    tags = [tag for sentence in split.sentences for tag in sentence.tags or ()]
    of_pieces = np.repeat(
        [inside.get(tag, IGNORE_INDEX) if label_all_tokens else IGNORE_INDEX for tag in tags], lengths
    )
    of_pieces[np.cumsum(lengths) - lengths] = [ids.get(tag, IGNORE_INDEX) for tag in tags]
    return of_pieces


def _cores(split: NerSplit, lengths: np.ndarray, room: int, document_context: bool) -> list[tuple[slice, slice]]:
    """Which words count in each window, and which others of their sentence or document may stand around them."""
    cores = []
    end = 0
    for _, sentences in groupby(split.sentences, key=lambda sentence: sentence.document):
        document = []
        begin = end
        for sentence in sentences:
            first, end = end, end + len(sentence.words)
            whole = lengths[first:end].sum() <= room
            parts = [(0, end - first)] if whole else _groups(lengths[first:end], room // 2)
            document += [(slice(first + a, first + b), slice(first, end)) for a, b in parts]
        if document_context:
            sums = [int(lengths[core].sum()) for core, _ in document]
            document = [
                (slice(document[a][0].start, document[b - 1][0].stop), slice(begin, end))
                for a, b in _groups(sums, room // 2)
            ]
        cores += document
    return cores


def _groups(lengths: Sequence[int] | np.ndarray, most: int) -> list[tuple[int, int]]:
    """Start and end of groups of neighbours whose lengths add up to `most` at most; a longer one stands alone."""
    groups = []
    begin = total = 0
    for i, length in enumerate(lengths):
        if i > begin and total + length > most:
            groups.append((begin, i))
            begin, total = i, 0
        total += length
    return [*groups, (begin, len(lengths))]


def _fill(first: int, last: int, starts: np.ndarray, room: int) -> tuple[int, int]:
    """Start and end of a window of whole words around the pieces from `first` to `last`, with as many on both sides.

    Args:
        first: of the pieces that count.
        last: the end of them, which leaves out the piece itself.
        starts: of the words that may be within, and their end.
        room: pieces of a window.
    """
    free = room - (last - first)
    right = min(max(free // 2, free - (first - starts[0])), starts[-1] - last)
    left = min(free - right, first - starts[0])
    return starts[np.searchsorted(starts, first - left)], starts[
        np.searchsorted(starts, last + right, side="right") - 1
    ]


def _dataset(windows: dict[str, list[np.ndarray]], tokenizer: PreTrainedTokenizerBase) -> Dataset:
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


def predicted_tags(logits: Any, windows: NerWindows, split: NerSplit, labels: list[str]) -> Tags:
    """The tags of each word of each sentence in BIO, made valid as `conlleval` reads them.

    Entities score the same; the accuracy of tags counts an I- that is read as the B- that it must be as right.

    Args:
        logits: *Shape:* (windows, tokens, labels)
        windows: made of `split`.
        split: the sentences.
        labels: tags of any scheme, in the order of their ids.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    ids = iter(logits[windows.window, windows.position].argmax(axis=-1).tolist())
    raw = [[labels[next(ids)] for _ in sentence.words] for sentence in split.sentences]
    return [encode_tags(decode_tags(tags), len(tags), "bio") for tags in raw]


def score(split: NerSplit, tags: Tags) -> dict[str, float]:
    """The figures of [`NerMetric`], `conlleval`'s: micro average, accuracy, and those of each type."""
    references = [sentence.tags for sentence in split.sentences]
    return NerMetric(keep_in_memory=True).compute(predictions=tags, references=references)


def most_frequent_tags(train: NerSplit, split: NerSplit) -> Tags:
    """A tagger to compare with: the most frequent tag of each word in training, O for others."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train.sentences:
        for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
            counts[word][tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    return [[usual.get(word, "O") for word in sentence.words] for sentence in split.sentences]
