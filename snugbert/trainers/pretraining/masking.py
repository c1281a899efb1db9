"""Masked tokens (Devlin et al., 2018, section 3.1 and A.1), one by one or whole words."""

import numpy as np

from snugbert.modeling_snugbert import IGNORE_INDEX


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
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses tokens to predict and hides them.

    Args:
        input_ids: a sequence, not changed. *Shape:* (tokens,)
        candidates: whether a token may be chosen: all but the special ones. *Shape:* (tokens,)
        mask_token_id: id of [MASK].
        replacements: ids that a random word piece is drawn from. *Shape:* (ids,)
        rng: the only source of chance.
        mlm_probability: share of the candidates that is chosen, rounded, and at least one token; 0.15 in the paper.
        mask_replace_prob: share of the chosen that become [MASK]; 0.8 in the paper.
        random_replace_prob: share of the chosen that become a random word piece, 0.1 in the paper; the others stay.
        continues_word: whether a token goes on with the word of the token before it; words are then chosen whole. One
            that would go over the number is passed over, as in the original release, so that the number is exact
            unless no word is short enough; if none at all is, a single word is chosen. *Shape:* (tokens,)

    Returns:
        The sequence with its tokens hidden, and the labels: the original ids of chosen tokens, -100 elsewhere.
        *Shape:* (tokens,) each
    """
    positions = np.flatnonzero(candidates)
    number = min(len(positions), max(1, round(len(positions) * mlm_probability)))
    if continues_word is None:
        chosen = rng.permutation(positions)[:number]
    else:
        chosen = _choose_words(positions, continues_word, number, rng)
    labels = np.full(len(input_ids), IGNORE_INDEX, dtype=input_ids.dtype)
    labels[chosen] = input_ids[chosen]
    fate, word = rng.random((2, len(chosen)))
    hidden = input_ids.copy()
    hidden[chosen[fate < mask_replace_prob]] = mask_token_id
    is_random = fate >= 1 - random_replace_prob
    hidden[chosen[is_random]] = replacements[(word[is_random] * len(replacements)).astype(np.int64)]
    return hidden, labels


def _choose_words(
    positions: np.ndarray, continues_word: np.ndarray, number: int, rng: np.random.Generator
) -> np.ndarray:
    """Positions of random whole words, `number` of them or fewer."""
    begins_word = np.ones(len(positions) + 1, dtype=bool)  # the end, too
    # Behind a special token begins what truncation left of a word.
    begins_word[1:-1] = ~continues_word[positions[1:]] | (positions[1:] != positions[:-1] + 1)
    bounds = np.flatnonzero(begins_word)
    sizes = bounds[1:] - bounds[:-1]
    lengths, order = sizes.tolist(), rng.permutation(len(sizes))
    words = []
    for word in order.tolist():
        if lengths[word] <= number:
            words.append(word)
            number -= lengths[word]
            if not number:
                break
    is_chosen = np.zeros(len(sizes), dtype=bool)
    is_chosen[words or order[:1]] = True
    return positions[is_chosen.repeat(sizes)]
