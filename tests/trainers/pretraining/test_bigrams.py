"""Counts of bigrams, their mutual information, and its factors, each against the formula on dense matrices."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
from synthetic import make_corpus

from snugbert.trainers.pretraining import bigrams
from snugbert.trainers.pretraining.bigrams import (
    PRIOR_COUNT,
    Bigrams,
    count_bigrams,
    factorize,
    fit_side,
    weigh_bigrams,
)

VOCAB_SIZE = 40


@pytest.fixture(scope="module")
def documents() -> list[list[list[int]]]:
    """Documents of sentences of tokens. Some have a single token. The last ten ids never occur."""
    rng = np.random.default_rng(0)
    return [
        [rng.integers(0, VOCAB_SIZE - 10, size=rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 4))]
        for _ in range(300)
    ]


@pytest.fixture(scope="module")
def sides(documents) -> list[Bigrams]:
    counts = count_bigrams(make_corpus([documents]), VOCAB_SIZE)
    tokens = np.concatenate([sentence for document in documents for sentence in document])
    frequencies = np.bincount(tokens, minlength=VOCAB_SIZE) + 1.0
    return [weigh_bigrams(matrix, frequencies / frequencies.sum()) for matrix in (counts, counts.T.tocsr())]


def dense(side: Bigrams) -> np.ndarray:
    return side.times(np.eye(VOCAB_SIZE))


@pytest.mark.parametrize("pairs_at_once", [2**22, 7])
def test_bigrams_are_counted_within_documents(documents, pairs_at_once, monkeypatch):
    """Across sentences, but not across documents, with any number of blocks and of pairs at once."""
    monkeypatch.setattr(bigrams, "PAIRS_AT_ONCE", pairs_at_once)
    expected = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for document in documents[:60]:
        for left, right in pairwise(token for sentence in document for token in sentence):
            expected[left, right] += 1
    corpus = make_corpus([documents[:1], documents[1:20], documents[20:60]])
    np.testing.assert_array_equal(count_bigrams(corpus, VOCAB_SIZE).toarray(), expected)


def test_mutual_information_equals_its_formula():
    counts = np.random.default_rng(0).poisson(0.5, size=(6, 6)).astype(float)
    p = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    side = weigh_bigrams(scipy.sparse.csr_array(counts), p)
    smoothed = (counts + PRIOR_COUNT * p) / (counts.sum(axis=1, keepdims=True) + PRIOR_COUNT)
    expected = np.sqrt(np.outer(p, p)) * np.log(smoothed / p)
    np.testing.assert_allclose(side.times(np.eye(6)), expected, atol=1e-14)
    np.testing.assert_allclose(side.transposed_times(np.eye(6)), expected.T, atol=1e-14)


@pytest.mark.parametrize("rank", [5, VOCAB_SIZE + 7])
def test_factors_are_singular_vectors_of_all_matrices_side_by_side(sides, rank):
    """A rank above the number of tokens gives as many vectors as there are tokens."""
    vectors, values = factorize(sides, rank, np.random.default_rng(0))
    matrix = np.concatenate([part for side in sides for part in (dense(side), dense(side).T)], axis=1)
    expected, expected_values, _ = np.linalg.svd(matrix)
    size = min(rank, VOCAB_SIZE)
    assert vectors.shape == (VOCAB_SIZE, size)
    large = expected_values[:size] > 1e-6 * expected_values[0]
    np.testing.assert_allclose(values[large], expected_values[:size][large], rtol=1e-3)
    np.testing.assert_allclose(np.abs((vectors[:, :5] * expected[:, :5]).sum(axis=0)), 1, rtol=1e-3)


def test_a_fit_of_full_rank_is_least_squares(sides):
    """A regression with one coefficient per pair of dimensions has the same weighted squared error."""
    rng = np.random.default_rng(0)
    contexts, tokens = rng.standard_normal((2, VOCAB_SIZE, 6))
    root = sides[0].root[:, None]
    a, b = fit_side(sides[0], contexts, tokens, rank=9)
    assert a.shape == b.T.shape == (6, 6)
    np.testing.assert_allclose(np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=1))
    pairs = np.kron(root * contexts, root * tokens)  # a row for each entry of the matrix
    coefficients, *_ = np.linalg.lstsq(pairs, dense(sides[0]).ravel())
    np.testing.assert_allclose((a @ b).ravel(), coefficients, atol=1e-8 * np.abs(coefficients).max())


@pytest.mark.parametrize("size", [12, VOCAB_SIZE + 5])
def test_a_fit_of_lower_rank_is_the_best_one(sides, size):
    """It keeps the largest singular values (Eckart and Young, 1936). Also with more dimensions than tokens."""
    rng = np.random.default_rng(0)
    contexts, tokens = rng.standard_normal((2, VOCAB_SIZE, size))
    root = sides[0].root[:, None]
    a, b = fit_side(sides[0], contexts, tokens, rank=3)
    assert a.shape == b.T.shape == (size, 3)
    q_context, q_token = (np.linalg.svd(root * each, full_matrices=False)[0] for each in (contexts, tokens))
    projected = q_context @ q_context.T @ dense(sides[0]) @ q_token @ q_token.T
    left, values, right = np.linalg.svd(projected)
    expected = left[:, :3] * values[:3] @ right[:3]
    np.testing.assert_allclose((root * contexts) @ a @ b @ (root * tokens).T, expected, atol=1e-7 * values[0])
