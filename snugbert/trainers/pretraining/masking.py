"""Masked tokens (Devlin et al., 2018, section 3.1 and A.1)."""

import numpy as np

from snugbert.modeling_snugbert import IGNORE_INDEX

# Of the tokens to predict, 80 % become [MASK], 10 % a random word piece, 10 % stay: the paper's A.1.
MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    mask_token_id: int,
    replacements: np.ndarray,
    rng: np.random.Generator,
    mlm_probability: float = 0.15,
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses tokens to predict and hides them.

    Args:
        input_ids: a sequence, not changed. *Shape:* (tokens,)
        candidates: whether a token may be chosen: all but [CLS] and [SEP]. *Shape:* (tokens,)
        mask_token_id: id of [MASK].
        replacements: ids that a random word piece is drawn from. *Shape:* (ids,)
        rng: the only source of chance.
        mlm_probability: share of the candidates that is chosen, rounded, and at least one token; 0.15 in the paper.

    Returns:
        The sequence with its tokens hidden, and the labels: the original ids of chosen tokens, -100 elsewhere.
        *Shape:* (tokens,) each
    """
    positions = np.flatnonzero(candidates)
    number = min(len(positions), max(1, round(len(positions) * mlm_probability)))
    chosen = rng.permutation(positions)[:number]
    labels = np.full_like(input_ids, IGNORE_INDEX)
    labels[chosen] = input_ids[chosen]
    fate = rng.random(number)
    hidden = input_ids.copy()
    hidden[chosen[fate < MASKED_SHARE]] = mask_token_id
    randomized = chosen[fate >= 1 - RANDOM_SHARE]
    hidden[randomized] = rng.choice(replacements, size=len(randomized))
    return hidden, labels
