"""Masks tokens (Devlin et al., 2018, section 3.1 and A.1), one by one or whole words."""

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
    """Chooses tokens to predict, and masks them.

    Args:
        input_ids: token ids of a sequence. They are not changed. *Shape:* (tokens,)
        candidates: whether a token may be chosen: all except special tokens. *Shape:* (tokens,)
        mask_token_id: id of [MASK].
        replacements: ids to draw random tokens from. *Shape:* (ids,)
        rng: the source of all random choices.
        mlm_probability: share of the candidates to choose, rounded, at least one token.
        mask_replace_prob, random_replace_prob: see [`SnugBertDataCollatorForPretraining`].
        continues_word: whether a token continues the word of the previous token. If given, whole words are chosen. A
            word that would exceed the number of tokens to choose is skipped, as in the original release. So the number
            is exact unless no word is short enough. If no word fits at all, one is chosen anyway. *Shape:* (tokens,)

    Returns:
        The masked sequence, and the labels: the original ids of the chosen tokens, -100 elsewhere. *Shape:* (tokens,)
        each
    """
    token_indices = np.flatnonzero(candidates)
    budget = min(len(token_indices), max(1, round(len(token_indices) * mlm_probability)))
    if continues_word is None:
        chosen = rng.permutation(token_indices)[:budget]
    else:
        chosen = _choose_words(token_indices, continues_word, budget, rng)
    labels = np.full(len(input_ids), IGNORE_INDEX, dtype=input_ids.dtype)
    labels[chosen] = input_ids[chosen]
    action, replacement = rng.random((2, len(chosen)))
    masked = input_ids.copy()
    masked[chosen[action < mask_replace_prob]] = mask_token_id
    is_random = action >= 1 - random_replace_prob
    masked[chosen[is_random]] = replacements[(replacement[is_random] * len(replacements)).astype(np.int64)]
    return masked, labels


def _choose_words(
    token_indices: np.ndarray, continues_word: np.ndarray, budget: int, rng: np.random.Generator
) -> np.ndarray:
    """Returns the token indices of random whole words: at most `budget` tokens, unless every word is longer."""
    starts_word = np.ones(len(token_indices) + 1, dtype=bool)  # includes the end of the last word
    # Truncation can cut the start of a word. The rest, after a special token, counts as a word.
    starts_word[1:-1] = ~continues_word[token_indices[1:]] | (token_indices[1:] != token_indices[:-1] + 1)
    bounds = np.flatnonzero(starts_word)
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
