"""Bigrams of a corpus: their counts, their mutual information, and its factors.

Shapes: V vocabulary size, K size of embeddings, R rank, n any number of columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from snugbert.data.corpus import Corpus

PRIOR_COUNT = 500.0  # pseudo-counts per context in p(w | c): Dirichlet smoothing, Zhai and Lafferty (2001)
OVERSAMPLING, POWER_ITERATIONS = 20, 4  # of the randomized SVD: Halko et al. (2011), algorithm 4.4
NEGLIGIBLE = 1e-10  # dimensions of a Gram matrix with eigenvalues below this share of the largest are not used
PAIRS_AT_ONCE = 2**22  # while counting, because a pair takes 24 bytes
COLUMNS_AT_ONCE = 16  # while multiplying, because so many fit into the processor's cache


@dataclass(frozen=True)
class Bigrams:
    """Weighted mutual information of neighbors: the matrix `counted - np.outer(context, root)`.

    Its entry for tokens c and w is sqrt(p(c) p(w)) log[p(w | c) / p(w)]. The context c is the token before w, or the
    token after it. With these weights, rare tokens matter less in the SVD.

    Attributes:
        counted: zero for pairs that do not occur. *Shape:* (V, V)
        context: depends on the context only. *Shape:* (V,)
        root: square roots of the token frequencies. *Shape:* (V,)
    """

    counted: scipy.sparse.csr_array
    context: np.ndarray
    root: np.ndarray

    def times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return _multiply(self.counted, columns) - np.outer(self.context, self.root @ columns)

    def transposed_times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the transposed matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return _multiply(self.counted.T, columns) - np.outer(self.root, self.context @ columns)


def count_bigrams(corpus: Corpus, vocab_size: int) -> scipy.sparse.csr_array:
    """Counts how often the token of a column follows the token of a row in the same document. *Shape:* (V, V)"""
    counts = scipy.sparse.csr_array((vocab_size, vocab_size), dtype=np.float64)
    for block in corpus.blocks:
        ends_document = np.zeros(len(block.tokens), dtype=bool)
        ends_document[block.sentences[block.documents[1:]] - 1] = True
        for start in range(0, len(block.tokens) - 1, PAIRS_AT_ONCE):
            stop = min(start + PAIRS_AT_ONCE, len(block.tokens) - 1)
            is_pair = ~ends_document[start:stop]
            left, right = block.tokens[start:stop][is_pair], block.tokens[start + 1 : stop + 1][is_pair]
            counts += scipy.sparse.coo_array((np.ones(len(left)), (left, right)), shape=counts.shape).tocsr()
    return counts


def weigh_bigrams(counts: scipy.sparse.csr_array, frequencies: np.ndarray) -> Bigrams:
    """Computes the weighted mutual information of contexts (rows) and the tokens next to them (columns).

    Args:
        counts: how often each pair occurs. *Shape:* (V, V)
        frequencies: token frequencies. They add up to 1. *Shape:* (V,)
    """
    pairs = scipy.sparse.coo_array(counts)
    context, token = pairs.coords
    root = np.sqrt(frequencies)
    counted = np.log1p(pairs.data / (PRIOR_COUNT * frequencies[token])) * root[context] * root[token]
    return Bigrams(
        scipy.sparse.coo_array((counted, (context, token)), shape=counts.shape).tocsr(),
        root * np.log1p(np.asarray(counts.sum(axis=1)) / PRIOR_COUNT),
        root,
    )


def factorize(sides: Sequence[Bigrams], rank: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Computes the left singular vectors of one wide matrix: all matrices and their transposes, side by side.

    So each token gets one vector for both uses: as a context, and as a token to predict.

    Args:
        sides: the matrices.
        rank: number of singular vectors.
        rng: draws the first guess of the randomized SVD.

    Returns:
        The singular vectors (V, n), and the singular values (n,), largest first. n is `rank`, but at most V.
    """

    def times_gram(columns: np.ndarray) -> np.ndarray:
        product = np.zeros_like(columns)
        for side in sides:
            product += side.times(side.transposed_times(columns))
            product += side.transposed_times(side.times(columns))
        return product

    num_tokens = len(sides[0].root)
    basis = rng.standard_normal((num_tokens, min(rank + OVERSAMPLING, num_tokens)))
    for _ in range(POWER_ITERATIONS):
        basis, _ = np.linalg.qr(times_gram(basis))
    values, vectors = np.linalg.eigh(basis.T @ times_gram(basis))
    largest = np.argsort(values)[::-1][:rank]
    return basis @ vectors[:, largest], np.sqrt(values[largest].clip(0))  # rounding makes a zero negative


def fit_side(side: Bigrams, contexts: np.ndarray, tokens: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits `contexts @ a @ b @ tokens.T` to mutual information: weighted least squares, by reduced-rank regression.

    Args:
        side: the mutual information of one side.
        contexts: embeddings of the tokens as contexts. *Shape:* (V, K)
        tokens: embeddings of the tokens to predict. *Shape:* (V, K)
        rank: maximum of R.

    Returns:
        a (K, R) and b (R, K). Each column of a has the same norm as its row of b. R is at most the rank of the
        embeddings.
    """
    (q_context, w_context), (q_token, w_token) = (_whiten(side.root[:, None] * each) for each in (contexts, tokens))
    left, values, right = np.linalg.svd(q_context.T @ side.times(q_token))
    values = values[:rank]
    a, b = w_context @ left[:, : len(values)], right[: len(values)] @ w_token.T
    norm_a, norm_b = np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=1)
    norm = np.sqrt(values * norm_a * norm_b)
    return a * (norm / norm_a), b * (norm / norm_b)[:, None]


def _multiply(matrix: scipy.sparse.sparray, columns: np.ndarray) -> np.ndarray:
    """Returns the sparse `matrix` times `columns`, in float64. *Shape:* (V, n) -> (V, n)

    torch's sparse product is not faster.
    """
    starts = range(0, columns.shape[1], COLUMNS_AT_ONCE)
    return np.concatenate([matrix @ columns[:, start : start + COLUMNS_AT_ONCE] for start in starts], axis=1)


def _whiten(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes an orthonormal basis of the columns. Unlike QR, this works for a vocabulary of fewer than K tokens.

    Returns:
        The basis q (V, n), and w (K, n) with q = matrix @ w.
    """
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    used = values > values[-1] * NEGLIGIBLE
    w = vectors[:, used] / np.sqrt(values[used])
    return matrix @ w, w
