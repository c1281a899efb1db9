"""Masks single tokens, whole words, or spans of words (Devlin et al., 2018, section 3.1 and A.1)."""

import numpy as np

from snugbert.modeling_snugbert import IGNORE_INDEX

# Span lengths in words are geometric, at most 10. The mean is 3.8 (Joshi et al., 2020, "SpanBERT", section 3.1).
SPAN_PROBABILITY, LONGEST_SPAN = 0.2, 10
SPAN_SHARES = SPAN_PROBABILITY * (1 - SPAN_PROBABILITY) ** np.arange(LONGEST_SPAN)  # for spans of 1, 2, ... words
SPAN_SHARES /= SPAN_SHARES.sum()
_CUMULATIVE_SHARES = SPAN_SHARES.cumsum()


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    mask_token_id: int,
    replacements: np.ndarray,
    rng: np.random.Generator,
    mlm_probability: float = 0.15,
    mask_replace_prob: float = 0.8,
    random_replace_prob: float = 0.1,
    continues_word: np.ndarray | None = None,
    spans: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses tokens to predict, and masks them.

    Chooses the share `mlm_probability` of the `candidates` (all but special tokens), at least one. Random tokens are
    drawn from `replacements`. For the other shares, see [`SnugBertDataCollatorForPretraining`].

    If `continues_word` is given, whole words are chosen. A word that would exceed the number of tokens to choose is
    skipped, as in the original release. If no word fits at all, one word is chosen anyway. With `spans`, spans of
    whole words are chosen, see [`choose_spans`]. All tokens of a span are replaced in the same way, but each random
    token is drawn separately.

    Returns the masked sequence, and the labels: the original ids of the chosen tokens, -100 elsewhere. *Shape:*
    (tokens,) each, as for `input_ids`, `candidates` and `continues_word`.
    """
    token_indices = np.flatnonzero(candidates)
    budget = min(len(token_indices), max(1, round(len(token_indices) * mlm_probability)))
    span_numbers = None
    if continues_word is None:
        chosen = rng.permutation(token_indices)[:budget]
    elif spans:
        chosen, span_numbers = choose_spans(token_indices, continues_word, budget, rng)
    else:
        chosen = _choose_words(token_indices, continues_word, budget, rng)
    labels = np.full(len(input_ids), IGNORE_INDEX, dtype=input_ids.dtype)
    labels[chosen] = input_ids[chosen]
    action, replacement = rng.random((2, len(chosen)))
    if span_numbers is not None:
        action = action[span_numbers]
    masked = input_ids.copy()
    masked[chosen[action < mask_replace_prob]] = mask_token_id
    is_random = action >= 1 - random_replace_prob
    masked[chosen[is_random]] = replacements[(replacement[is_random] * len(replacements)).astype(np.int64)]
    return masked, labels


def _choose_words(
    token_indices: np.ndarray, continues_word: np.ndarray, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the token indices of random whole words: at most `budget` tokens, unless every word is longer."""
    bounds = _find_words(token_indices, continues_word)
    sizes = bounds[1:] - bounds[:-1]
    lengths, order = sizes.tolist(), rng.permutation(len(sizes))
    words = []
    for word in order.tolist():
        if lengths[word] <= budget:
            words.append(word)
            budget -= lengths[word]
            if not budget:
                break
    is_chosen = np.zeros(len(sizes), dtype=bool)
    is_chosen[words or order[:1]] = True
    return token_indices[is_chosen.repeat(sizes)]


def choose_spans(
    token_indices: np.ndarray, continues_word: np.ndarray, budget: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses random spans of whole words that do not overlap.

    For each span, the number of words is drawn, and then a start with this many free words in a row. The last spans
    are cut to the remaining number of tokens. No span crosses a gap in the ascending `token_indices`. Fewer than
    `budget` tokens are chosen only if no free word is short enough. If all words are too long, one is still chosen.
    Returns the chosen indices in ascending order, and for each of them the number of its span. *Shape:* (chosen,) each
    """
    bounds = _find_words(token_indices, continues_word)
    sizes = bounds[1:] - bounds[:-1]
    words = np.arange(len(sizes))
    starts_part = np.diff(token_indices, prepend=-2) != 1
    part_ends = np.append(words[starts_part[bounds[:-1]]], len(sizes))
    room = part_ends[np.searchsorted(part_ends, words, side="right")] - words  # free words from each word on
    span_of_word = np.full(len(sizes), -1)
    number = 0
    while len(places := np.flatnonzero((room > 0) & (sizes <= budget))):
        length = 1 + np.searchsorted(_CUMULATIVE_SHARES[:-1], rng.random(), side="right")
        places = places[room[places] >= min(length, room[places].max())]
        start = places[rng.integers(len(places))]
        ends = bounds[start + 1 : start + 1 + min(length, room[start])] - bounds[start]
        stop = start + np.searchsorted(ends, budget, side="right")
        budget -= bounds[stop] - bounds[start]
        span_of_word[start:stop] = number
        room[:start] = np.minimum(room[:start], start - words[:start])
        room[start:stop] = 0
        number += 1
    if not number and len(sizes):
        span_of_word[rng.integers(len(sizes))] = 0
    spans = span_of_word.repeat(sizes)
    return token_indices[spans >= 0], spans[spans >= 0]


def _find_words(token_indices: np.ndarray, continues_word: np.ndarray) -> np.ndarray:
    """Returns the places in `token_indices` where words begin, and the end. *Shape:* (words + 1,)"""
    starts_word = np.ones(len(token_indices) + 1, dtype=bool)  # the last item is the end of the last word
    # Truncation can cut the start of a word. The rest, after a special token, counts as a word.
    starts_word[1:-1] = ~continues_word[token_indices[1:]] | (token_indices[1:] != token_indices[:-1] + 1)
    return np.flatnonzero(starts_word)
