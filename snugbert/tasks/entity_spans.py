"""Entities as spans of characters: reads the exports of annotation tools, and converts spans to word tags and back.

    {"text": "Ada lives in Bonn.", "entities": [[0, 3, "PER"], [13, 17, "LOC"]]}

Start and end are positions in a Python string. The tokenizer finds the words of a text.
"""

import logging
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from snugbert.data.conll import Sentence
from snugbert.data.tables import read_rows, read_text
from snugbert.errors import InputError
from snugbert.tasks.task_arguments import DOCUMENT_COLUMNS

if TYPE_CHECKING:
    from snugbert.tasks.task_arguments import NerDataArguments

logger = logging.getLogger(__name__)

FORM = 'Expected spans such as [0, 3, "PER"] or {"start": 0, "end": 3, "label": "PER"}.'
REJECTED = ("reject", "ignore")  # Prodigy's answers for examples that should not be used
# If more than this share of the spans, and more than a few spans, fit at neither end, the offsets probably count
# something else. In many languages, one end is often inside a word: "서울에서" has the suffix 에서.
MOST_REPAIRED, FEW = 0.5, 10
WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")  # in Unicode names


class Text(NamedTuple):
    """A text, and start and end character of each of its words."""

    text: str
    words: list[tuple[int, int]]


class Span(NamedTuple):
    """An entity: start and end character, its label, and its text, if the source contains it."""

    start: int
    end: int
    label: str
    text: str | None = None


# --- words ------------------------------------------------------------------------------------------------------


def find_words(text: str, tokenizer: PreTrainedTokenizerBase) -> Text:
    """Finds the words of a text, as the tokenizer separates them.

    SentencePiece separates words at spaces only. So, as in BERT, a word also ends before and after punctuation, and
    before characters of scripts without spaces, if a token begins there. Characters without tokens, such as combining
    accents, belong to the word before them.
    """
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    words: list[tuple[int, int]] = []
    previous = None
    for word, (start, end) in zip(encoding.word_ids(), encoding["offset_mapping"], strict=True):
        start = end - len(text[start:end].lstrip())  # some tokenizers count the space before a word
        if word is None or start == end:
            continue
        last = words[-1][1] if words else 0
        if word == previous and (start < last or not (_stands_alone(text[start]) or _stands_alone(text[last - 1]))):
            words[-1] = (words[-1][0], end)
        else:
            words.append((start, end))
        previous = word
    limits = [*(start for start, _ in words[1:]), len(text)]
    for index, ((start, end), limit) in enumerate(zip(words, limits, strict=False)):
        while end < limit and unicodedata.category(text[end]) in ("Mn", "Me", "Cf"):
            end += 1
        words[index] = start, end
    return Text(text, words)


def _stands_alone(char: str) -> bool:
    """Whether a character is punctuation, as in BERT's tokenizer, or belongs to a script without spaces."""
    if char.isalnum():
        return unicodedata.name(char, "").startswith(WITHOUT_SPACES)
    return char.isascii() or unicodedata.category(char).startswith("P")


# --- reading ----------------------------------------------------------------------------------------------------


def contains_texts(data: Path | Dataset, args: "NerDataArguments") -> bool:
    """Whether the first row contains a text instead of a list of words."""
    for _, values in read_rows(data):
        row, words = _open_row(values, args), values.get(args.text_column_name or "tokens")
        is_split = isinstance(words, list) and all(isinstance(word, str) for word in words)
        return not is_split and isinstance(row.get(args.text_column_name or "text"), str)
    return False


def _open_row(values: Mapping[str, Any], args: "NerDataArguments") -> Mapping[str, Any]:
    """Returns text and spans of a Label Studio task, from its first annotator. Other rows stay unchanged."""
    if not (isinstance(values.get("data"), dict) and isinstance(values.get("annotations"), list)):
        return values
    finished = [each for each in values["annotations"] if not each.get("was_cancelled")]
    if not finished:
        return {**values["data"], "answer": "ignore"}
    spans = [each["value"] for each in finished[0]["result"] if str(each.get("type")).endswith("labels")]
    return {**values["data"], args.span_columns[0]: spans}


def read_annotated_texts(
    data: Path | Dataset, name: str, source: str, args: "NerDataArguments", tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Sentence], list[Text]]:
    """Reads texts with their entities. Each text is a sentence, and its tags are in BIO.

    A span that begins or ends inside a word is extended to the whole word. A span is left out if it is outside the
    text, or if its text differs from what the source states. Such spans are errors unless `on_bad_tag` is "repair".

    Raises:
        InputError: entities overlap, or a row cannot be read.
    """
    documents = (args.document_column_name,) if args.document_column_name else DOCUMENT_COLUMNS
    sentences, texts, mistakes, rejected, total, shifted = [], [], [], 0, 0, 0
    labeled = name in ("train", "validation")
    for row, original in read_rows(data):
        where = f"{source}, row {row}"
        values = _open_row(original, args)
        if labeled and values.get("answer") in REJECTED:
            rejected += 1
            continue
        try:
            text = find_words(read_text(values, args.text_column_name or "text"), tokenizer)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        column = next((each for each in args.span_columns if isinstance(values.get(each), list)), None)
        tags = None
        if column is not None and name != "unlabeled":
            spans = [span for value in values[column] for span in _read_spans(value, where)]
            tags, wrong, number = _tag_words(text, spans, where)
            mistakes += wrong
            shifted += number
            total += len(spans)
        elif labeled:
            names = " or ".join(map(repr, args.span_columns))
            raise InputError(f"{where}: no list of entities in {names}. {FORM} For a text without entities, write [].")
        document = next((values[each] for each in documents if each in values), None)
        sentences.append(Sentence([text.text[start:end] for start, end in text.words], tags, row, document))
        texts.append(text)
    if rejected:
        logger.warning("%s: left out rows that were rejected, ignored or not annotated: %d.", source, rejected)
    if mistakes:
        message = f"{mistakes[0]} Such spans: {len(mistakes):,} of {total:,}."
        if shifted > max(MOST_REPAIRED * total, FEW):
            raise InputError(f"{message} Offsets count characters from 0, not bytes, and the end is exclusive.")
        if args.on_bad_tag == "stop":
            raise InputError(f"{message} Fix them, or set --on_bad_tag repair, which extends entities to whole words.")
        logger.warning("%s They were extended to whole words, or left out if that was not possible.", message)
    return sentences, texts


def _read_spans(value: Any, where: str) -> list[Span]:
    """Returns the span that a list or a dictionary contains, once for each of its labels."""
    start, end, labels, text = None, None, None, None
    if isinstance(value, Mapping):
        start, end = (value.get(name, value.get(f"{name}_offset")) for name in ("start", "end"))
        labels, text = value.get("label", value.get("labels")), value.get("text")
    elif isinstance(value, list | tuple) and len(value) == 3:
        start, end, labels = value
    labels = labels if isinstance(labels, list) else [labels]
    if type(start) is not int or type(end) is not int or not all(isinstance(each, str) and each for each in labels):
        raise InputError(f"{where}: {value!r:.80} is not an entity. {FORM}")
    return [Span(start, end, label, text) for label in labels]


# --- spans and tags ---------------------------------------------------------------------------------------------


def _tag_words(text: Text, spans: Iterable[Span], where: str) -> tuple[list[str], list[str], int]:
    """Returns the tags of the words in BIO, sentences about spans that do not fit, and how many fit at neither end."""
    tags = ["O"] * len(text.words)
    starts, ends = ([word[side] for word in text.words] for side in (0, 1))
    mistakes: list[str] = []
    previous, shifted = None, 0
    for span in sorted({span[:3]: span for span in spans}.values(), key=lambda span: span[:3]):
        found = text.text[max(span.start, 0) : max(span.end, 0)]
        start, end = span.end - len(found.lstrip()), span.start + len(found.rstrip())  # without outer spaces
        first, last = bisect_right(ends, start), bisect_left(starts, end) - 1
        if not found.strip() or span.end > len(text.text) or span.start < 0 or span.text not in (None, found):
            shifted += 1
            expected = "" if span.text is None else f", not {span.text!r}"
            mistakes.append(
                f"{where}: the entity {[*span[:3]]} does not match the text: it is {found!r:.60}{expected}."
            )
            continue
        if previous is not None and span.start < previous.end:
            raise InputError(
                f"{where}: the entities {[*previous[:3]]} and {[*span[:3]]} overlap. Remove one entity, or use GLiNER."
            )
        previous = span
        if first > last or tags[first] != "O":
            problem = "contains no word" if first > last else "shares a word with another entity"
            shifted += first > last
            mistakes.append(f"{where}: the entity {[*span[:3]]}, {found!r:.60}, {problem}.")
            continue
        if (starts[first], ends[last]) != (start, end):
            shifted += starts[first] != start and ends[last] != end
            word = text.text[starts[first] : ends[last]]
            mistakes.append(
                f"{where}: the entity {[*span[:3]]}, {found!r:.60}, begins or ends inside a word: {word!r:.60}."
            )
        tags[first : last + 1] = [f"B-{span.label}", *[f"I-{span.label}"] * (last - first)]
    return tags, mistakes, shifted


def list_spans(
    text: Text, entities: Iterable[tuple[str, int, int]], scores: Sequence[float] | np.ndarray
) -> list[dict[str, Any]]:
    """Returns entities, given by label, first word and last word, as spans of a text with their scores.

    The score is the mean over the words of the entity, as in transformers' pipeline with
    `aggregation_strategy="first"`.
    """
    spans = []
    for label, first, last in entities:
        start, end = text.words[first][0], text.words[last][1]
        score = float(np.mean(scores[first : last + 1]))
        spans.append({"start": start, "end": end, "label": label, "text": text.text[start:end], "score": score})
    return spans
