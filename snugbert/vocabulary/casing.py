"""Case and accents: the default for a language, and what it does to the words of a text.

BERT's English models are often uncased: lowercased and without accents. Its multilingual models are cased, because
accents distinguish words in many languages. Google recommends bert-base-multilingual-cased over its uncased model.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from snugbert.data.languages import DEFAULT, primary_language
from snugbert.vocabulary.learning import Kind

SAMPLE_CHARACTERS = 1_000_000  # at the start of a text
# Share of words. English Wikipedia has 0.5 %, English books have less than 0.1 %. The German names of countries,
# languages and currencies have 7 %, the French ones 18 %, the Polish ones 15 %.
MANY_ACCENTS = 0.01
EXAMPLE_LENGTH = 100  # characters

_words = pre_tokenizers.Split(Regex(r"[^\p{L}\p{M}\p{N}]+"), "removed")
_composed = normalizers.NFC()  # so that a letter and its accent are compared as one character
_without_accents = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), _composed])


def default_casing(language: str | None, kind: Kind, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings for case and accents: the given ones, and defaults for the language.

    Args:
        language: language code. None: English.
        kind: kind of tokenizer. Byte-level BPE keeps case and accents in every language.
        given: some of the arguments of [`make_tokenizer`].

    Returns:
        Arguments of [`make_tokenizer`].
    """
    if primary_language(language or DEFAULT) == DEFAULT:
        return {"do_lower_case": kind != "byte-bpe", **given}
    return {"do_lower_case": False, "strip_accents": False, **given}


def strips_accents(casing: dict[str, Any]) -> bool:
    """Whether settings of [`make_tokenizer`] remove accents."""
    strip = casing.get("strip_accents")
    return bool(casing["do_lower_case"] if strip is None else strip)


class TextSample:
    """The start of a text, to show what the settings for case and accents do to its words.

    Args:
        lines: the lines of the text. At least one.

    Attributes:
        lines: the lines of the whole text.
        share_with_accents: share of the sample's words with an accent.
    """

    def __init__(self, lines: Iterable[str]):
        remaining = iter(lines)
        self._start = list(_take(remaining, SAMPLE_CHARACTERS))
        self.lines: Iterator[str] = chain(self._start, remaining)
        words = Counter(word for line in self._start for word, _ in _words.pre_tokenize_str(line))
        accented = {word for word in words if _without_accents.normalize_str(word) != _composed.normalize_str(word)}
        self.share_with_accents = sum(words[word] for word in accented) / max(1, words.total())
        if self.share_with_accents < MANY_ACCENTS:
            accented |= {word for word in words if word != word.lower()}
        self._affected = {word: words[word] for word in accented}

    def find_affected_word(self) -> str | None:
        """Returns the most frequent word with a capital letter, or with an accent if there are many, or None."""
        words = self._affected
        return max(words, key=lambda word: (len(word) > 1, words[word], word), default=None)

    def find_example(self) -> str:
        """Returns the start of a line, or a part of it, with a word that the settings for case and accents affect."""
        for line in self._start:
            for word, (start, end) in _words.pre_tokenize_str(line):
                if word in self._affected:
                    first = 0 if end <= EXAMPLE_LENGTH else start
                    return line[first : first + EXAMPLE_LENGTH]
        return self._start[0][:EXAMPLE_LENGTH]

    def describe(self, tokenizer: PreTrainedTokenizerBase, casing: dict[str, Any], advice: str) -> str:
        """Describes in one line what a tokenizer does to case and accents.

        Args:
            tokenizer: the tokenizer.
            casing: its settings.
            advice: how to change them.
        """
        lower, strip = casing["do_lower_case"], strips_accents(casing)
        case, accents = ("removed" if lower else "kept"), ("removed" if strip else "kept")
        what = f"Case and accents: both {case}" if lower == strip else f"Case: {case}. Accents: {accents}"
        word, normalizer = self.find_affected_word(), tokenizer.backend_tokenizer.normalizer
        if word is not None and normalizer is not None:
            after = _composed.normalize_str(normalizer.normalize_str(word))
            what += f" ({word} -> {after})" if after != word else ""
        return f"{what}. {advice}"


def _take(lines: Iterator[str], characters: int) -> Iterator[str]:
    """Yields lines until they have this many characters."""
    for line in lines:
        yield line
        characters -= len(line)
        if characters <= 0:
            break
