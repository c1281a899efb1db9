"""The statistics of neighboring tokens in a corpus: counts, mutual information, and its factors.

Shapes: V vocabulary size, K size of embeddings, n any number of columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from snugbert.trainers.corpus.corpus import Corpus

PRIOR_COUNT = 500.0  # pseudo-counts per context in p(w | context): Dirichlet smoothing, Zhai and Lafferty (2001)
OVERSAMPLING, POWER_ITERATIONS = 20, 4  # of the randomized SVD: Halko et al. (2011), algorithm 4.4
PAIRS_AT_ONCE = 2**22  # while counting, because a pair takes 24 bytes


@dataclass(frozen=True)
class Bigrams:
    """Weighted mutual information of neighbors, as a sparse matrix minus a matrix of rank 1.

    Its entry for tokens c and w is sqrt(p(c) p(w)) log(p(w | c) / p(w)), where c stands before w (or after it).
    The weights make rare pairs count as little in the SVD as they occur in text.

    Attributes:
        counted: part of the entries that is zero for pairs that do not occur. *Shape:* (V, V)
        context: subtracted, times `root` of the predicted token. *Shape:* (V,)
        root: square roots of the token frequencies. *Shape:* (V,)
    """

    counted: scipy.sparse.csr_array
    context: np.ndarray
    root: np.ndarray

    def times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return self.counted @ columns - np.outer(self.context, self.root @ columns)

    def transposed_times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the transposed matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return self.counted.T @ columns - np.outer(self.root, self.context @ columns)


def count_bigrams(corpus: Corpus, vocab_size: int) -> scipy.sparse.csr_array:
    """Counts how often each token is followed by each other one in the same document. *Shape:* (V, V)"""
    counts = scipy.sparse.csr_array((vocab_size, vocab_size), dtype=np.float64)
    for block in corpus.blocks:
        ends_document = np.zeros(len(block.tokens), dtype=bool)
        ends_document[block.sentences[block.documents[1:]] - 1] = True
        for start in range(0, len(block.tokens) - 1, PAIRS_AT_ONCE):
            pair = slice(start, min(start + PAIRS_AT_ONCE, len(block.tokens) - 1))
            keep = ~ends_document[pair]
            left = np.asarray(block.tokens[pair])[keep]
            right = np.asarray(block.tokens[pair.start + 1 : pair.stop + 1])[keep]
            counts += scipy.sparse.coo_array((np.ones(len(left)), (left, right)), shape=counts.shape).tocsr()
    return counts


def weigh_bigrams(counts: scipy.sparse.csr_array, frequencies: np.ndarray) -> Bigrams:
    """Computes the mutual information of contexts (rows) and the tokens next to them (columns).

    Args:
        counts: how often they occur together. *Shape:* (V, V)
        frequencies: of the tokens. They add up to 1. *Shape:* (V,)
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
    """Computes the singular vectors of tokens, both as contexts and as tokens next to them.

    Args:
        sides: the matrices to factorize together.
        rank: number of singular vectors.
        rng: gives the first guess of the randomized SVD.

    Returns:
        The singular vectors (V, rank), and the singular values (rank,).
    """

    def times_gram(columns: np.ndarray) -> np.ndarray:
        products = (
            side.times(side.transposed_times(columns)) + side.transposed_times(side.times(columns)) for side in sides
        )
        return np.sum(list(products), axis=0)

    basis = rng.standard_normal((len(sides[0].root), rank + OVERSAMPLING))
    for _ in range(POWER_ITERATIONS):
        basis, _ = np.linalg.qr(times_gram(basis))
    values, vectors = np.linalg.eigh(basis.T @ times_gram(basis))
    order = np.argsort(values)[::-1][:rank]
    return basis @ vectors[:, order], np.sqrt(values[order])


def fit_side(side: Bigrams, contexts: np.ndarray, tokens: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits `contexts @ a @ b @ tokens.T` to mutual information: weighted least squares, by reduced-rank regression.

    Args:
        side: the mutual information of one side.
        contexts: embeddings of the tokens as contexts. *Shape:* (V, K)
        tokens: embeddings of the tokens to predict. *Shape:* (V, K)
        rank: at most K.

    Returns:
        a (K, rank) and b (rank, K), of equal norms.
    """
    q_context, r_context = np.linalg.qr(side.root[:, None] * contexts)
    q_token, r_token = np.linalg.qr(side.root[:, None] * tokens)
    left, values, right = np.linalg.svd(q_context.T @ side.times(q_token))
    scale = np.sqrt(values[:rank])
    a = np.linalg.solve(r_context, left[:, :rank] * scale)
    b = np.linalg.solve(r_token, right[:rank].T * scale).T
    balance = np.sqrt(np.linalg.norm(b, axis=1) / np.linalg.norm(a, axis=0))
    return a * balance, b / balance[:, None]
