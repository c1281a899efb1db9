"""Initial weights from the word-pair statistics of the training text, instead of random weights.

A masked language model first learns token frequencies, and then, after a long plateau, which tokens stand next to each
other. Both can be counted in seconds. [`initialize_from_bigrams`] computes weights with which BERT predicts a masked
token from its two neighbors:

    log p(w | left, right) = log p(w) + log p(w | left) / p(w) + log p(w | right) / p(w) + constant

- The output bias is log p(w), as in Meister et al. (2022), "A Natural Bias for Language Generation Models".
- The log ratios are pointwise mutual information, a matrix for each side. Their common singular vectors become the
  word embeddings, as in Levy and Goldberg (2014), "Neural Word Embedding as Implicit Matrix Factorization".
- In the first layer, half of the heads attend to the previous token and half to the next. Their values and outputs
  map the embedding of a token to the scores of its neighbors.
- The other sublayers start with zero output, as in Zhang et al. (2019), "Fixup".

The architecture remains BERT's, and training changes all of these weights.

Shapes: V vocabulary size, H hidden size, K dimensions that hold a token's content, D head size, R rank of a side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.trainers.corpus.corpus import Corpus
from snugbert.trainers.pretraining.baselines import count_tokens

# The constants were chosen with `mini` on books_en (docs/explanation/pretraining-small.md).
PRIOR_COUNT = 500.0  # pseudo-counts per context in p(w | context): Dirichlet smoothing, Zhai and Lafferty (2001)
OVERSAMPLING, POWER_ITERATIONS = 20, 4  # of the randomized SVD: Halko et al. (2011), algorithm 4.4
POSITION_SHARE = 0.5  # norm of the position embeddings, divided by the mean norm of the word embeddings
FREQUENCIES = 16  # of the position embeddings. Each takes two dimensions
FASTEST, SLOWEST = 2.0, 2 * math.pi / 512  # of these frequencies, in radians per token
SHARPNESS = 5.0  # difference of the attention scores of a head's target and the token next to it
SCORE_SHARE = 0.375  # norm of what both neighbors add to a masked token's hidden state, divided by that state's
LINEAR, CLOSED = 3.0, -1.0  # GELU(x) is close to x around the first value, and close to 0 around the second
CONSTANT_SHARE = 0.9  # norm of the constant part of the transformed hidden state, divided by that state's


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
        # Some million tokens at a time, because the indices take 8 bytes per token.
        for start in range(0, len(block.tokens) - 1, 2**22):
            pair = slice(start, min(start + 2**22, len(block.tokens) - 1))
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


def initialize_from_bigrams(
    model: PreTrainedModel, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, seed: int
) -> None:
    """Replaces the random weights of a model by weights that predict masked tokens from their neighbors.

    The pooler and the next-sentence head keep their random weights.

    Args:
        model: a SnugBERT model with a masked token head.
        corpus: the training text.
        tokenizer: its tokenizer.
        seed: seed of the random choices: the embeddings of special tokens, and a rotation of all embeddings.

    Raises:
        InputError: BERT with this configuration cannot have such weights.
    """
    config: SnugBertConfig = model.config
    check_config(config)
    rng = np.random.default_rng(seed)
    counts = count_tokens(corpus, config.vocab_size) + 1.0
    frequencies = counts / counts.sum()
    pairs = count_bigrams(corpus, config.vocab_size)
    sides = [weigh_bigrams(matrix, frequencies) for matrix in (pairs, pairs.T.tocsr())]
    head_size, heads = config.hidden_size // config.num_attention_heads, config.num_attention_heads // 2
    num_positions = 2 * min(FREQUENCIES, head_size // 2)
    K = config.hidden_size - num_positions - 1  # one dimension is for [MASK]
    rank = min(heads * head_size, K)

    embeddings = embed_tokens(sides, K, rng)
    position_norm = POSITION_SHARE * float(frequencies @ np.linalg.norm(embeddings, axis=1))
    norms = np.sqrt((embeddings**2).sum(axis=1) + position_norm**2)
    normalized = embeddings / norms[:, None] * math.sqrt(config.hidden_size)  # as the embeddings' LayerNorm does
    maps = [fit_side(side, normalized, embeddings, rank) for side in sides]
    # Larger embeddings give the same scores with smaller hidden states.
    added = sum(frequencies @ ((normalized @ a @ b) ** 2).sum(axis=1) for a, b in maps)
    scale = math.sqrt(added / config.hidden_size) / SCORE_SHARE
    amplitude = math.sqrt(2 * config.hidden_size / num_positions) * position_norm * float(frequencies @ (1 / norms))
    radians = FASTEST * (SLOWEST / FASTEST) ** np.linspace(0, 1, num_positions // 2)

    with torch.no_grad():
        _set_embeddings(model, tokenizer, embeddings * scale, position_norm * scale, radians, rng)
        _close_sublayers(model)
        attention = model.bert.encoder.layer[0].attention
        for head in range(2 * heads):
            side, number = head % 2, head // 2
            part = slice(number * head_size, (number + 1) * head_size)
            rows = slice(head * head_size, (head + 1) * head_size)
            a, b = maps[side]
            _attend_to(attention.self, rows, radians, amplitude, offset=1 if side else -1)
            _map_tokens(attention, rows, a[:, part] / math.sqrt(scale), b[part] / math.sqrt(scale))
        _set_transform(model.cls.predictions.transform, K)
        model.cls.predictions.bias.copy_(torch.from_numpy(np.log(frequencies)))


def check_config(config: SnugBertConfig) -> None:
    """Checks that BERT with this configuration can have the weights of [`initialize_from_bigrams`].

    Raises:
        InputError: it cannot.
    """
    if config.num_attention_heads < 2:
        raise InputError("--init bigrams: the model has one attention head. It needs at least two, one per neighbor.")
    if config.position_embedding_type != "absolute" or not config.tie_word_embeddings:
        raise InputError("--init bigrams: the model needs learned positions and tied word embeddings.")


def embed_tokens(sides: Sequence[Bigrams], size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns token embeddings whose products give the mutual information. *Shape:* (V, size)"""
    vectors, values = factorize(sides, size, rng)
    # Singular vectors have very different norms. A rotation makes all dimensions alike.
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return vectors / sides[0].root[:, None] * np.sqrt(values) @ rotation


def _set_embeddings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    embeddings: np.ndarray,
    position_norm: float,
    radians: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Sets the embeddings. Words, the mask and positions have different dimensions, in this order."""
    module = model.bert.embeddings
    K, norm = embeddings.shape[1], float(np.mean(np.linalg.norm(embeddings, axis=1)))
    special = [index for index in tokenizer.all_special_ids if index != tokenizer.mask_token_id]
    embeddings[special] = rng.standard_normal((len(special), K)) * norm / math.sqrt(K)
    words = torch.zeros(module.word_embeddings.weight.shape)
    words[:, :K] = torch.from_numpy(embeddings)
    words[tokenizer.mask_token_id] = 0
    words[tokenizer.mask_token_id, K] = norm
    if module.word_embeddings.padding_idx is not None:
        words[module.word_embeddings.padding_idx] = 0
    angles = np.arange(model.config.max_position_embeddings)[:, None] * radians
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1) * position_norm / math.sqrt(len(radians))
    module.word_embeddings.weight.copy_(words)
    module.position_embeddings.weight.zero_()[:, K + 1 :] = torch.from_numpy(positions)
    module.token_type_embeddings.weight.zero_()


def _close_sublayers(model: PreTrainedModel) -> None:
    """Sets the outputs of all sublayers to zero."""
    for layer in model.bert.encoder.layer:
        layer.attention.output.dense.weight.zero_()
        layer.output.dense.weight.zero_()


def _attend_to(attention: nn.Module, rows: slice, radians: np.ndarray, amplitude: float, offset: int) -> None:
    """Sets queries and keys of a head, so that it attends to the token at a distance of `offset`.

    Their product is a sum of cos(radians * (distance - offset)), which is largest at this distance.

    Args:
        attention: the attention module.
        rows: the dimensions of the head.
        radians: frequencies of the position embeddings.
        amplitude: of the position embeddings after LayerNorm.
        offset: -1 for the previous token, 1 for the next.
    """
    n, head_size = len(radians), rows.stop - rows.start
    contrast = amplitude**2 * float((1 - np.cos(radians)).sum())
    gain = math.sqrt(SHARPNESS * math.sqrt(head_size) / contrast)
    cos, sin = np.diag(np.cos(offset * radians)), np.diag(np.sin(offset * radians))
    dimensions = slice(rows.start, rows.start + 2 * n)
    for module, weight in ((attention.query, np.block([[cos, sin], [-sin, cos]])), (attention.key, np.eye(2 * n))):
        module.weight[rows] = 0
        module.weight[dimensions, -2 * n :] = torch.from_numpy(gain * weight).float()


def _map_tokens(attention: nn.Module, rows: slice, a: np.ndarray, b: np.ndarray) -> None:
    """Sets values and outputs of a head to `a` (K, R) and `b` (R, K). R is at most the head size."""
    value, output = attention.self.value.weight, attention.output.dense.weight
    K, rank = a.shape
    value[rows] = 0
    value[rows.start : rows.start + rank, :K] = torch.from_numpy(a.T).float()
    output[:K, rows.start : rows.start + rank] = torch.from_numpy(b.T).float()


def _set_transform(transform: nn.Module, K: int) -> None:
    """Makes the transform of the masked token head pass on the K dimensions of words, if the token is [MASK].

    Other tokens would predict themselves with certainty, although some of them are random. The [MASK] dimension opens
    the GELU: it moves the input of the first K dimensions from a place where GELU is flat to one where it is linear.
    The dimensions of positions become constants. So all hidden states have about the same norm, and LayerNorm does not
    change the scores.
    """
    weight, bias = transform.dense.weight, transform.dense.bias
    H = len(bias)
    mask = math.sqrt(H / (1 + POSITION_SHARE**2) / (1 + SCORE_SHARE**2))  # its value in the last layer
    constant = CONSTANT_SHARE * math.sqrt(H / (H - K - 1))
    weight.zero_()
    weight[:K, :K] = torch.eye(K)
    weight[:, K] = (LINEAR - CLOSED) / mask
    bias.fill_(CLOSED)
    bias[K + 1 :: 2] += constant
    bias[K + 2 :: 2] -= constant
