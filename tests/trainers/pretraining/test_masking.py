"""Masked tokens, one by one, whole words, and spans."""

from collections import Counter

import numpy as np
import pytest

from snugbert.trainers.pretraining.masking import choose_spans, mask_tokens


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


def expected_span_lengths(budget: int) -> np.ndarray:
    """How many spans of 1 to 10 words an example has on average if each word is one token, by renewal theory.

    Lengths are drawn from the clipped geometric distribution of SpanBERT until the budget is used up. The last span is
    cut to what is left.
    """
    shares = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    visits = np.zeros(budget + 1)  # how often so many tokens are left
    visits[budget] = 1
    for left in range(budget, 0, -1):
        for length, share in enumerate(shares, start=1):
            if length < left:
                visits[left - length] += visits[left] * share
    spans = np.array([share * visits[length:].sum() for length, share in enumerate(shares, start=1)])
    for left in range(1, min(10, budget) + 1):
        spans[left - 1] += visits[left] * shares[left:].sum()
    return spans


@pytest.mark.slow
def test_spans_have_the_lengths_of_spanbert():
    """With one token per word, in two parts that no span crosses. A large budget gives the mean of the paper, 3.8."""
    rng, budget, rounds = np.random.default_rng(0), 19, 2000
    indices = np.delete(np.arange(128), [0, 60, 127])
    alone = np.zeros(128, dtype=bool)
    counts = np.zeros(10)
    for _ in range(rounds):
        chosen, spans = choose_spans(indices, alone, budget, rng)
        assert len(chosen) == budget and 60 not in chosen
        places = [chosen[spans == number] for number in range(spans.max() + 1)]
        assert all((np.diff(place) == 1).all() for place in places)
        counts += np.bincount([len(place) for place in places], minlength=11)[1:]
    expected = rounds * expected_span_lengths(budget)
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    long = expected_span_lengths(20_000)
    assert (long @ np.arange(1, 11)) / long.sum() == pytest.approx(3.8, abs=0.01)


def test_spans_are_whole_words_that_are_replaced_alike():
    """The number of tokens is exact if a free word is short enough, at any share. A rate of 1 chooses everything."""
    rng = np.random.default_rng(0)
    for length in range(3, 300):
        ids = rng.integers(2000, 30000, size=length)
        candidates = np.ones(length, dtype=bool)
        candidates[[0, length // 2]] = False
        continues = (rng.random(length) < 0.3) & candidates
        rate = rng.choice([0.05, 0.15, 0.5, 1.0])
        hidden, labels = mask_tokens(ids, candidates, 103, ids, rng, rate, 0.5, 0.0, continues, spans=True)
        is_chosen = labels != -100
        budget, free = max(1, round(candidates.sum() * rate)), candidates & ~is_chosen
        starts = np.flatnonzero(candidates & ~(continues & np.roll(candidates, 1)))
        words = [slice(start, start + 1 + _count_true(continues[start + 1 :])) for start in starts]
        assert all(is_chosen[word].all() or not is_chosen[word].any() for word in words)
        left = budget - is_chosen.sum()
        if left < 0:  # every word is too long, so one is chosen anyway
            assert min(word.stop - word.start for word in words) > budget
            assert sum(is_chosen[word].any() for word in words) == 1
        elif left:
            assert min(word.stop - word.start for word in words if free[word].all()) > left
        inner = np.flatnonzero(is_chosen & continues & np.roll(is_chosen, 1))
        assert ((hidden[inner] == 103) == (hidden[inner - 1] == 103)).all()


def _count_true(values: np.ndarray) -> int:
    return len(values) if values.all() else int(values.argmin())
