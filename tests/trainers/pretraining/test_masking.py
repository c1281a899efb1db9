"""Masked tokens, one by one and whole words."""

from collections import Counter

import numpy as np
import pytest

from snugbert.trainers.pretraining.masking import mask_tokens


@pytest.mark.parametrize(("masked_share", "random_share"), [(0.8, 0.1), (0.5, 0.5), (1.0, 0.0)])
def test_15_percent_are_masked_in_the_right_shares(masked_share, random_share):
    rng = np.random.default_rng(0)
    replacements = np.arange(1000, 2000)
    chosen = masked = kept = replaced = 0
    for length in range(1, 400):
        ids = rng.integers(2000, 30000, size=length)
        candidates = rng.random(length) < 0.9
        candidates[0] = True
        hidden, labels = mask_tokens(ids, candidates, 103, replacements, rng, 0.15, masked_share, random_share)
        number = int((labels != -100).sum())
        assert number == max(1, round(candidates.sum() * 0.15))
        assert candidates[labels != -100].all()
        assert (labels[labels != -100] == ids[labels != -100]).all()
        assert (hidden[labels == -100] == ids[labels == -100]).all()
        chosen += number
        masked += (hidden == 103).sum()
        kept += ((hidden == ids) & (labels != -100)).sum()
        replaced += (hidden < 2000).sum() - (hidden == 103).sum()
    assert masked + kept + replaced == chosen
    # Five standard deviations of a binomial.
    for count, share in ((masked, masked_share), (replaced, random_share)):
        assert abs(count - share * chosen) <= 5 * (chosen * share * (1 - share)) ** 0.5


def test_whole_words_are_masked():
    rng = np.random.default_rng(0)
    of_word = Counter()
    for length in range(20, 400):
        ids = rng.integers(2000, 30000, size=length)
        candidates = np.ones(length, dtype=bool)
        candidates[[0, length // 2, -1]] = False
        continues = (rng.random(length) < 0.3) & candidates
        _, labels = mask_tokens(ids, candidates, 103, ids, rng, continues_word=continues)
        is_chosen = labels != -100
        assert is_chosen.sum() == round(candidates.sum() * 0.15)
        assert not is_chosen[~candidates].any()
        inner = np.flatnonzero(continues & np.roll(candidates, 1))  # continues a word
        assert (is_chosen[inner] == is_chosen[inner - 1]).all()
        of_word.update(is_chosen[1:-1].tolist())
    assert of_word[True] / of_word.total() == pytest.approx(0.15, abs=0.005)
    # If truncation cut the start of a word, the rest counts as a word.
    cut = np.array([0, 2000, 0, 2001, 0])
    _, labels = mask_tokens(cut, cut > 0, 103, cut, rng, continues_word=cut == 2001)
    assert (labels != -100).sum() == 1
    # Words of three tokens exceed a budget of two. If no word fits, one is chosen anyway.
    three = np.arange(12) % 3 != 0
    for pieces, expected in ((12, 3), (3, 3)):
        ids = np.arange(2000, 2000 + pieces)
        _, labels = mask_tokens(ids, ids > 0, 103, ids, rng, continues_word=three[:pieces])
        assert (labels != -100).sum() == expected
