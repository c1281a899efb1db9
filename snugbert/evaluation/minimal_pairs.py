"""Minimal pairs: two sentences that differ slightly. The model should find the acceptable sentence more likely.

Pairs come from files such as BLiMP's (Warstadt et al., 2020) and Zorro's (Huebner et al., 2021). A tie is a wrong
answer. As in BLiMP, accuracies are computed for each paradigm (`UID`), and all other accuracies are means over
paradigms.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.data.documents import name_files
from snugbert.data.sources import describe_file, uncompressed_name
from snugbert.data.tables import read_rows
from snugbert.data.text_lines import read_numbered_lines
from snugbert.errors import InputError, list_columns
from snugbert.evaluation.pseudo_likelihood import VARIANTS, encode_sentences, score_sentences
from snugbert.families.loading import max_tokens

# BLiMP's columns.
GOOD, BAD, PARADIGM, PHENOMENON, FIELD = "sentence_good", "sentence_bad", "UID", "linguistics_term", "field"


class MinimalPair(NamedTuple):
    """An acceptable and an unacceptable sentence."""

    good: str
    bad: str
    paradigm: str = "all"  # the kind of pair. By default the name of the file, with its folder if needed
    phenomenon: str = "all"  # what the paradigm tests. By default the paradigm
    field: str | None = None  # field of linguistics. None: unknown
    file: Path = Path("pairs")  # with `row`, for messages
    row: int = 0


def read_pairs(files: Sequence[Path], good_column: str, bad_column: str) -> list[MinimalPair]:
    """Reads the pairs of all files."""
    pairs: list[MinimalPair] = []
    names = [describe_file(file) for file in files]
    for file, name, path in zip(files, names, name_files(files), strict=True):
        count = len(pairs)
        if names.count(name) > 1:
            name = path
        for row, values in _read_rows(file):
            good = _read_sentence(file, row, values, "good", good_column)
            bad = _read_sentence(file, row, values, "bad", bad_column)
            paradigm, phenomenon, field = (_read_label(values, column) for column in (PARADIGM, PHENOMENON, FIELD))
            paradigm = paradigm or name
            pairs.append(MinimalPair(good, bad, paradigm, phenomenon or paradigm, field, file, row))
        if len(pairs) == count:
            raise InputError(f"{file}: no pairs.")
    return pairs


def _read_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Reads the rows of a file, or the pairs of a text file.

    Text files have the form of Zorro's: each pair is two lines, first the unacceptable sentence. Their names are
    `phenomenon-paradigm.txt`.
    """
    if not uncompressed_name(file).endswith(".txt"):
        yield from read_rows(file)
        return
    phenomenon = describe_file(file).rpartition("-")[0]
    lines = [(number, line.strip()) for number, line in read_numbered_lines(file) if line.strip()]
    for (row, bad), (next_row, good) in zip_longest(lines[::2], lines[1::2], fillvalue=(0, "")):
        if next_row != row + 1:
            raise InputError(
                f"{file}, line {row}: the next line must be the other sentence of the pair. Write pairs as two lines."
            )
        yield row, {BAD: bad, GOOD: good, PHENOMENON: phenomenon}


def _read_sentence(file: Path, row: int, values: dict[str, Any], flag: str, column: str) -> str:
    sentence = values.get(column)
    if not isinstance(sentence, str) or not sentence.strip():
        raise InputError(
            f"{file}, row {row}: no sentence in column {column!r}. {list_columns(values)} Set "
            f"--{flag}_column_name, or remove the row."
        )
    return sentence


def _read_label(values: dict[str, Any], column: str) -> str | None:
    """Returns the text of an optional column. None: the column is missing or empty."""
    value = values.get(column)
    return None if value in (None, "") else str(value)


def score_pairs(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[MinimalPair]
) -> dict[str, Any]:
    """Scores a masked language model on minimal pairs. The model should prefer the acceptable sentence.

    The model is switched to evaluation mode.

    Returns:
        `pairs`, the number of pairs, and `accuracy`, the mean over paradigms for each variant of `VARIANTS`.
        `paradigms`: name -> `phenomenon`, `field`, `pairs` and `accuracy`. `phenomena`: name -> `paradigms`, `pairs`
        and `accuracy`. Accuracies are fractions of 1.
    """
    sentences = list(encode_sentences([text for pair in pairs for text in (pair.good, pair.bad)], tokenizer))
    limit = max_tokens(model, tokenizer)
    for number, sentence in enumerate(sentences):
        pair, length = pairs[number // 2], len(sentence.ids)
        if length > limit or all(word is None for word in sentence.words):
            raise InputError(
                f"{pair.file}, row {pair.row}: expected a sentence of at least one word and at most {limit} tokens "
                f"(the model's limit), found {length} tokens. Remove the pair."
            )
    scores = score_sentences(model.eval(), sentences, tokenizer.mask_token_id)
    if not all(np.isfinite(values).all() for values in scores.values()):
        raise InputError("--model_name_or_path: the scores are NaN or infinite. Choose a different checkpoint.")
    correct = np.stack([scores[variant][::2] > scores[variant][1::2] for variant in VARIANTS], axis=1)
    return summarize(pairs, correct)


def summarize(pairs: Sequence[MinimalPair], correct: np.ndarray) -> dict[str, Any]:
    """Computes accuracies, see [`score_pairs`].

    `correct` is whether the model prefers the acceptable sentence. *Shape:* (pairs, variants)
    """
    rows: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        rows.setdefault(pair.paradigm, []).append(number)
    paradigms: dict[str, dict[str, Any]] = {
        name: {
            "phenomenon": pairs[numbers[0]].phenomenon,
            "field": pairs[numbers[0]].field,
            "pairs": len(numbers),
            "accuracy": _average(correct[numbers]),
        }
        for name, numbers in rows.items()
    }
    members: dict[str, list[dict[str, Any]]] = {}
    for paradigm in paradigms.values():
        members.setdefault(paradigm["phenomenon"], []).append(paradigm)
    return {
        "pairs": len(pairs),
        "accuracy": _average_paradigms(paradigms.values()),
        "phenomena": {
            name: {
                "paradigms": len(members[name]),
                "pairs": sum(paradigm["pairs"] for paradigm in members[name]),
                "accuracy": _average_paradigms(members[name]),
            }
            for name in sorted(members)
        },
        "paradigms": paradigms,
    }


def _average_paradigms(paradigms: Iterable[dict[str, Any]]) -> dict[str, float]:
    return _average([list(paradigm["accuracy"].values()) for paradigm in paradigms])


def _average(accuracies: Any) -> dict[str, float]:
    return dict(zip(VARIANTS, np.mean(accuracies, axis=0).tolist(), strict=True))
