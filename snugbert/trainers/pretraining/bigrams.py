"""Initial weights from the bigrams of the training text, instead of random weights.

A masked language model first learns token frequencies, and then, after a long plateau, which tokens are neighbors.
Counting gives both. [`initialize_from_bigrams`] computes weights that let BERT predict a masked token
from its two neighbors:

    log p(w | left, right) = log p(w) + log [p(w | left) / p(w)] + log [p(w | right) / p(w)] + constant

- The output bias is log p(w), as in Meister et al. (2022), "A Natural Bias for Language Generation Models".
- The log ratios are pointwise mutual information, one matrix for each side. Their common singular vectors become the
  word embeddings, as in Levy and Goldberg (2014), "Neural Word Embedding as Implicit Matrix Factorization".
- In the first layer, half of the heads attend to the previous token and half to the next. Their values and outputs
  map the embedding of a token to the scores of its neighbors. With an odd number of heads, the last head outputs zero.
- The output of all other sublayers is zero, as in Zhang et al. (2019), "Fixup Initialization". But in layer n, counted
  from 1, two heads already attend to the tokens n positions before and after.
- The transform of the masked token head passes these scores on for [MASK], but not for other tokens.

The architecture remains BERT's, and training changes all of these weights.

Shapes: V vocabulary size, H hidden size, W dimensions of a word, R rank of the scores of a head, n any number of
columns.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from transformers import PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig, compute_embedding_size, compute_head_size
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.errors import InputError
from snugbert.trainers.pretraining.scores import count_corpus_tokens

PRIOR_COUNT = 500.0  # pseudo-counts per context in p(w | c): Dirichlet smoothing, Zhai and Lafferty (2001)
OVERSAMPLING, POWER_ITERATIONS = 20, 4  # settings of the randomized SVD: Halko et al. (2011), algorithm 4.4
NEGLIGIBLE = 1e-10  # dimensions of a Gram matrix with eigenvalues below this share of the largest are not used
PAIRS_AT_ONCE = 2**22  # pairs to count at once. A pair takes 24 bytes
COLUMNS_AT_ONCE = 16  # columns to multiply at once. They fit into the processor's cache
# Chosen with `mini` on English books.
POSITION_SHARE = 0.5  # norm of the position embeddings, divided by the mean norm of the word embeddings
FREQUENCIES = 16  # number of frequencies of the position embeddings
FASTEST, SLOWEST = 2.0, 2 * math.pi / 512  # the highest and the lowest frequency, in radians per token
SHARPNESS = 5.0  # attention score of a head's target, minus the score of the token next to it
SCORE_SHARE = 0.375  # norm of the vector that both neighbors add to a hidden state, divided by the state's norm
LINEAR, CLOSED = 3.0, -1.0  # GELU(x) is close to x around the first value, and close to 0 around the second
CONSTANT_SHARE = 0.9  # norm of the constant part of a transformed hidden state, divided by the norm of the input
SMALLEST_HEAD = 8  # dimensions. With fewer frequencies, a head cannot distinguish neighbors from distant tokens


# --- mutual information of neighbors ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bigrams:
    """Weighted mutual information of neighbors: the matrix `counted - np.outer(context, root)`.

    Its entry for tokens c and w is sqrt(p(c) p(w)) log[p(w | c) / p(w)]. The context c is the token before w, or the
    token after it. With these weights, rare tokens matter less in the SVD.
    """

    counted: scipy.sparse.csr_array  # zero for pairs that do not occur. *Shape:* (V, V)
    context: np.ndarray  # depends on the context only. *Shape:* (V,)
    root: np.ndarray  # square roots of the token frequencies. *Shape:* (V,)

    def times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return _multiply(self.counted, columns) - np.outer(self.context, self.root @ columns)

    def transposed_times(self, columns: np.ndarray) -> np.ndarray:
        """Returns the transposed matrix times `columns`. *Shape:* (V, n) -> (V, n)"""
        return _multiply(self.counted.T, columns) - np.outer(self.root, self.context @ columns)


def count_bigrams(blocks: Iterable[Block], vocab_size: int) -> scipy.sparse.csr_array:
    """Counts how often the token of a column follows the token of a row in the same document. *Shape:* (V, V)"""
    counts = scipy.sparse.csr_array((vocab_size, vocab_size), dtype=np.float64)
    for block in blocks:
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

    `counts` is how often each pair occurs (V, V). The `frequencies` of the tokens add up to 1 (V,).
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
    """Returns the left singular vectors (V, n) and singular values (n,) of one wide matrix, largest first.

    The wide matrix consists of all matrices and their transposes, side by side. So each token has a single vector for
    both uses: as a context, and as a token to predict. n is `rank`, but at most V.
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
    return basis @ vectors[:, largest], np.sqrt(values[largest].clip(0))  # rounding can make zero negative


def fit_side(side: Bigrams, contexts: np.ndarray, tokens: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Fits `contexts @ a @ b @ tokens.T` to mutual information: weighted least squares, by reduced-rank regression.

    `contexts` and `tokens` are the embeddings of the tokens in both uses (V, W). Returns `a` (W, R) and `b` (R, W).
    Column i of `a` and row i of `b` have the same norm. R is at most `rank`, and at most the rank of the embeddings.
    """
    (q_context, w_context), (q_token, w_token) = (_whiten(side.root[:, None] * each) for each in (contexts, tokens))
    left, values, right = np.linalg.svd(q_context.T @ side.times(q_token))
    values = values[:rank]
    a, b = w_context @ left[:, : len(values)], right[: len(values)] @ w_token.T
    norm_a, norm_b = np.linalg.norm(a, axis=0), np.linalg.norm(b, axis=1)
    norm = np.sqrt(values * norm_a * norm_b)
    return a * (norm / norm_a), b * (norm / norm_b)[:, None]


def _multiply(matrix: scipy.sparse.sparray, columns: np.ndarray) -> np.ndarray:
    """Returns the sparse `matrix` times `columns`. *Shape:* (V, n) -> (V, n)"""
    starts = range(0, columns.shape[1], COLUMNS_AT_ONCE)
    return np.concatenate([matrix @ columns[:, start : start + COLUMNS_AT_ONCE] for start in starts], axis=1)


def _whiten(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns an orthonormal basis q (V, n) of the columns, and w (W, n) with q = matrix @ w.

    Unlike QR, this works for a vocabulary of fewer than W tokens.
    """
    values, vectors = np.linalg.eigh(matrix.T @ matrix)
    used = values > values[-1] * NEGLIGIBLE
    w = vectors[:, used] / np.sqrt(values[used])
    return matrix @ w, w


# --- weights ---------------------------------------------------------------------------------------------------------


def initialize_from_bigrams(
    model: Any,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    blocks: Iterable[Block],
) -> None:
    """Replaces the random weights of a model with weights that predict masked tokens from their neighbors.

    The pooler and the next-sentence head keep their random weights. Processes on the same machine with the same number
    of threads compute the same weights. On different machines, rounding may differ. The seed determines the embeddings
    of special tokens and a rotation of all embeddings. Bigrams are counted in the `blocks` of the corpus.
    """
    config: SnugBertConfig = model.config
    rng = np.random.default_rng(seed)
    counts = count_corpus_tokens(corpus, config.vocab_size) + 1
    frequencies = counts / counts.sum()
    pairs = count_bigrams(blocks, config.vocab_size)
    if pairs.nnz == 0:
        raise InputError("--bigram_init: every document is a single token, so there are no bigrams. Use more text.")
    # The mutual information with the previous and with the next token.
    sides = [weigh_bigrams(matrix, frequencies) for matrix in (pairs, pairs.T.tocsr())]
    first = _fit_first_layer(config, frequencies, sides, rng)
    with torch.no_grad():
        _set_embeddings(model, tokenizer, first, rng)
        layers = model.bert.encoder.layer
        for layer in layers:  # all sublayers output zero, except the attention of the first layer
            layer.attention.output.dense.weight.zero_()
            layer.output.dense.weight.zero_()
        _set_heads(layers[0].attention, first, config)
        for distance, layer in enumerate(layers[1:], start=2):
            for head, offset in enumerate((-distance, distance)):
                _attend_to(layer.attention.self, _head_rows(head, config), first, offset)
        _set_transform(model.cls.predictions.transform, first)
        model.cls.predictions.bias.copy_(torch.from_numpy(np.log(frequencies)))


def check_bigram_config(config: SnugBertConfig) -> None:
    """Checks that [`initialize_from_bigrams`] works for this configuration."""
    head_size = compute_head_size(config)
    is_rectifier = "gelu" in config.hidden_act or config.hidden_act == "relu"
    needs = {
        "at least 2 attention heads, for the previous and the next token": config.num_attention_heads >= 2,
        f"attention heads of at least {SMALLEST_HEAD} dimensions, not {head_size}": head_size >= SMALLEST_HEAD,
        "embeddings as wide as the layers": compute_embedding_size(config) == config.hidden_size,
        f"hidden_act gelu or relu, not {config.hidden_act}": is_rectifier,
        "learned positions (position_embedding_type absolute)": config.position_embedding_type == "absolute",
        "tied word embeddings (tie_word_embeddings true)": config.tie_word_embeddings,
    }
    if unmet := [need for need, is_met in needs.items() if not is_met]:
        raise InputError(f"--bigram_init needs {unmet[0]}. Remove the flag, or choose another model.")


@dataclass(frozen=True)
class _FirstLayer:
    """The parts of the weights of the embeddings and of the first layer."""

    embeddings: np.ndarray  # word embeddings. *Shape:* (V, W)
    position_norm: float  # norm of the position embeddings
    radians: np.ndarray  # frequencies of the position embeddings
    amplitude: float  # amplitude of the position embeddings after LayerNorm
    # Values a (W, R) and outputs b (R, W) of the heads for the previous token, and for the next.
    maps: list[tuple[np.ndarray, np.ndarray]]


def _fit_first_layer(
    config: SnugBertConfig, frequencies: np.ndarray, sides: Sequence[Bigrams], rng: np.random.Generator
) -> _FirstLayer:
    """Factorizes mutual information into embeddings and heads."""
    H, head_size = config.hidden_size, compute_head_size(config)
    number = min(FREQUENCIES, head_size // 2)  # each frequency takes two dimensions
    radians = FASTEST * (SLOWEST / FASTEST) ** np.linspace(0, 1, number)
    W = H - 2 * len(radians) - 1  # one dimension is for [MASK]
    vectors, values = factorize(sides, W, rng)
    # Scaled by singular values, dimensions have very different norms. A rotation makes all dimensions alike.
    rotation, _ = np.linalg.qr(rng.standard_normal((W, W)))
    embeddings = vectors / sides[0].root[:, None] * np.sqrt(values) @ rotation[: len(values)]
    position_norm = POSITION_SHARE * float(frequencies @ np.linalg.norm(embeddings, axis=1))

    # LayerNorm gives the sum of word and position embeddings the norm sqrt(H).
    norms = np.sqrt((embeddings**2).sum(axis=1) + position_norm**2)
    contexts = embeddings / norms[:, None] * math.sqrt(H)
    amplitude = math.sqrt(H / len(radians)) * position_norm * float(frequencies @ (1 / norms))
    maps = [fit_side(side, contexts, embeddings, config.num_attention_heads // 2 * head_size) for side in sides]
    # With larger embeddings, smaller vectors give the same scores.
    added = sum(frequencies @ ((contexts @ a @ b) ** 2).sum(axis=1) for a, b in maps)
    scale = math.sqrt(added / H) / SCORE_SHARE
    maps = [(a / math.sqrt(scale), b / math.sqrt(scale)) for a, b in maps]
    return _FirstLayer(embeddings * scale, position_norm * scale, radians, amplitude, maps)


def _set_embeddings(
    model: Any, tokenizer: PreTrainedTokenizerBase, first: _FirstLayer, rng: np.random.Generator
) -> None:
    """Sets the embeddings. Words, [MASK] and positions use different dimensions, in this order."""
    module, W = model.bert.embeddings, first.embeddings.shape[1]
    norm = float(np.mean(np.linalg.norm(first.embeddings, axis=1)))
    words = torch.zeros(module.word_embeddings.weight.shape)
    words[:, :W] = torch.from_numpy(first.embeddings)
    special = [index for index in tokenizer.all_special_ids if index != tokenizer.mask_token_id]
    words[special, :W] = torch.from_numpy(rng.standard_normal((len(special), W)) * norm / math.sqrt(W)).float()
    words[tokenizer.mask_token_id] = 0
    words[tokenizer.mask_token_id, W] = norm
    if module.word_embeddings.padding_idx is not None:
        words[module.word_embeddings.padding_idx] = 0
    table = module.position_embeddings
    angles = np.arange(len(table.weight))[:, None] * first.radians
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    positions *= first.position_norm / math.sqrt(len(first.radians))
    module.word_embeddings.weight.copy_(words)
    table.weight.zero_()[:, -2 * len(first.radians) :] = torch.from_numpy(positions)
    if model.config.type_vocab_size:
        module.token_type_embeddings.weight.zero_()


def _set_heads(attention: Any, first: _FirstLayer, config: SnugBertConfig) -> None:
    """Sets the heads, alternately for the previous and the next token. Heads of one side split its rank."""
    for head in range(config.num_attention_heads // 2 * 2):
        number, side = divmod(head, 2)
        rows, part = _head_rows(head, config), _head_rows(number, config)
        _attend_to(attention.self, rows, first, offset=(-1, 1)[side])
        values, outputs = first.maps[side][0][:, part], first.maps[side][1][part]
        used = slice(rows.start, rows.start + len(outputs))  # value weights of other dimensions stay random
        attention.self.value.weight[used] = 0
        attention.self.value.weight[used, : len(values)] = torch.from_numpy(values.T).float()
        attention.output.dense.weight[: len(values), used] = torch.from_numpy(outputs.T).float()


def _head_rows(head: int, config: SnugBertConfig) -> slice:
    """Returns the dimensions of a head."""
    head_size = compute_head_size(config)
    return slice(head * head_size, (head + 1) * head_size)


def _attend_to(attention: Any, rows: slice, first: _FirstLayer, offset: int) -> None:
    """Sets queries and keys of a head, so that it attends to the token at an offset, such as -1, the previous token.

    The product of query and key is a sum of cos(radians * (distance - offset)), which is largest at this offset. The
    other query dimensions stay random and the other key dimensions are zero. If both were zero, neither would have a
    gradient.
    """
    radians, n, head_size = first.radians, len(first.radians), rows.stop - rows.start
    contrast = first.amplitude**2 * float((1 - np.cos(radians)).sum())
    gain = math.sqrt(SHARPNESS * math.sqrt(head_size) / contrast)
    cos, sin = np.diag(np.cos(offset * radians)), np.diag(np.sin(offset * radians))
    dimensions = slice(rows.start, rows.start + 2 * n)
    attention.key.weight[rows] = 0
    for module, weight in ((attention.query, np.block([[cos, sin], [-sin, cos]])), (attention.key, np.eye(2 * n))):
        module.weight[dimensions] = 0
        module.weight[dimensions, -2 * n :] = torch.from_numpy(gain * weight).float()


def _set_transform(transform: Any, first: _FirstLayer) -> None:
    """Makes the transform of the masked token head pass on the dimensions of words for [MASK], and only for [MASK].

    Other tokens would predict themselves with certainty, but some labeled tokens are random replacements. The
    dimension of [MASK] is a gate: it moves the input of GELU from values where GELU is flat to values where it is
    linear. The dimensions of positions become constants. So all transformed states have about the same norm, and
    LayerNorm does not change the scores.
    """
    weight, bias = transform.dense.weight, transform.dense.bias
    H, W = weight.shape[1], first.embeddings.shape[1]
    # The value of the [MASK] dimension in the last layer.
    mask = math.sqrt(H / (1 + POSITION_SHARE**2) / (1 + SCORE_SHARE**2))
    constant = CONSTANT_SHARE * math.sqrt(H / (H - W - 1))
    weight.zero_()
    weight[:W, :W] = torch.eye(W)
    weight[:, W] = (LINEAR - CLOSED) / mask
    bias.fill_(CLOSED)
    bias[W + 1 :: 2] += constant
    bias[W + 2 :: 2] -= constant
