"""Initial weights from the bigrams of the training text, instead of random weights.

A masked language model first learns token frequencies, and then, after a long plateau, which tokens are neighbors.
Counting gives both. [`initialize_from_bigrams`] computes weights with which BERT predicts a masked token
from its two neighbors:

    log p(w | left, right) = log p(w) + log [p(w | left) / p(w)] + log [p(w | right) / p(w)] + constant

- The output bias is log p(w), as in Meister et al. (2022), "A Natural Bias for Language Generation Models".
- The log ratios are pointwise mutual information, one matrix for each side. Their common singular vectors become the
  word embeddings, as in Levy and Goldberg (2014), "Neural Word Embedding as Implicit Matrix Factorization".
- In the first layer, half of the heads attend to the previous token and half to the next. Their values and outputs
  map the embedding of a token to the scores of its neighbors. With an odd number of heads, the last one outputs zero.
- The output of all other sublayers is zero, as in Zhang et al. (2019), "Fixup Initialization".
- The transform of the masked token head passes these scores on for [MASK], but not for other tokens.

The architecture remains BERT's, and training changes all of these weights.

Shapes: V vocabulary size, H hidden size, K dimensions of a word, R rank of the scores of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast
from transformers import PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.corpus import Corpus
from snugbert.errors import InputError
from snugbert.trainers.pretraining.baselines import count_tokens
from snugbert.trainers.pretraining.bigrams import Bigrams, count_bigrams, factorize, fit_side, weigh_bigrams

# Chosen with `mini` on English books.
POSITION_SHARE = 0.5  # norm of the position embeddings, divided by the mean norm of the word embeddings
FREQUENCIES = 16  # number of frequencies of the position embeddings. Each takes two dimensions
FASTEST, SLOWEST = 2.0, 2 * math.pi / 512  # the highest and the lowest frequency, in radians per token
SHARPNESS = 5.0  # attention score of a head's target, minus the score of the token next to it
SCORE_SHARE = 0.375  # norm of the vector that both neighbors add to a hidden state, divided by the state's norm
LINEAR, CLOSED = 3.0, -1.0  # GELU(x) is close to x around the first value, and close to 0 around the second
CONSTANT_SHARE = 0.9  # norm of the constant part of a transformed hidden state, divided by the norm of the input
SMALLEST_HEAD = 8  # dimensions. Fewer frequencies cannot tell the neighbors from tokens far away


def initialize_from_bigrams(model: Any, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    """Replaces the random weights of a model with weights that predict masked tokens from their neighbors.

    The pooler and the next-sentence head keep their random weights. Processes on the same machine with the same number
    of threads compute the same weights. [`share_weights`] makes them the same everywhere.

    Args:
        model: a SnugBERT model with a masked token head.
        corpus: the training text.
        tokenizer: its tokenizer.
        seed: seed of the random choices: the embeddings of special tokens, and a rotation of all embeddings.

    Raises:
        InputError: the configuration does not allow such weights, or the text has no bigrams.
    """
    config: SnugBertConfig = model.config
    check_config(config)
    rng = np.random.default_rng(seed)
    frequencies, sides = _count_text(corpus, config.vocab_size)
    first = _fit_first_layer(config, frequencies, sides, rng)
    with torch.no_grad():
        _set_embeddings(model, tokenizer, first, rng)
        _close_sublayers(model)
        _set_heads(model.bert.encoder.layer[0].attention, first, config)
        _set_transform(model.cls.predictions.transform, first.K)
        model.cls.predictions.bias.copy_(torch.from_numpy(np.log(frequencies)))


def share_weights(model: torch.nn.Module, device: torch.device) -> None:
    """Gives all processes the weights of the first. Another machine may have rounded its weights differently.

    Args:
        model: the model, not yet sharded.
        device: where the processes exchange tensors.
    """
    for weights in model.parameters():
        weights.data.copy_(broadcast(weights.data.to(device)))


def check_config(config: SnugBertConfig) -> None:
    """Checks that [`initialize_from_bigrams`] works for this configuration.

    Raises:
        InputError: it does not.
    """
    if config.num_attention_heads < 2:
        raise InputError("--bigram_init: the model has one attention head, but needs one for each neighbor.")
    head_size = config.hidden_size // config.num_attention_heads
    if head_size < SMALLEST_HEAD:
        raise InputError(
            f"--bigram_init: attention heads have {head_size} dimensions, but need at least {SMALLEST_HEAD}."
        )
    if "gelu" not in config.hidden_act and config.hidden_act != "relu":
        raise InputError(f"--bigram_init needs hidden_act gelu or relu, not {config.hidden_act}.")
    if config.position_embedding_type != "absolute":
        raise InputError("--bigram_init needs learned positions (position_embedding_type absolute).")
    if not config.tie_word_embeddings:
        raise InputError("--bigram_init needs tied word embeddings (tie_word_embeddings true).")


def _count_text(corpus: Corpus, vocab_size: int) -> tuple[np.ndarray, list[Bigrams]]:
    """Returns the token frequencies, and the mutual information with the previous and with the next token.

    Raises:
        InputError: the text has no bigrams.
    """
    counts = count_tokens(corpus, vocab_size) + 1.0
    frequencies = counts / counts.sum()
    pairs = count_bigrams(corpus, vocab_size)
    if pairs.nnz == 0:
        raise InputError("--bigram_init: every document is a single token, so there are no bigrams. Give other text.")
    return frequencies, [weigh_bigrams(matrix, frequencies) for matrix in (pairs, pairs.T.tocsr())]


@dataclass(frozen=True)
class _FirstLayer:
    """What the weights of the embeddings and of the first layer consist of.

    Attributes:
        embeddings: the word embeddings. *Shape:* (V, K)
        position_norm: norm of the position embeddings.
        radians: frequencies of the position embeddings.
        amplitude: amplitude of the position embeddings after LayerNorm.
        maps: values a (K, R) and outputs b (R, K) of the heads for the previous token, and for the next.
    """

    embeddings: np.ndarray
    position_norm: float
    radians: np.ndarray
    amplitude: float
    maps: list[tuple[np.ndarray, np.ndarray]]

    @property
    def K(self) -> int:
        """Number of dimensions of a word."""
        return self.embeddings.shape[1]


def _fit_first_layer(
    config: SnugBertConfig, frequencies: np.ndarray, sides: Sequence[Bigrams], rng: np.random.Generator
) -> _FirstLayer:
    """Factorizes mutual information into embeddings and heads."""
    H, head_size = config.hidden_size, config.hidden_size // config.num_attention_heads
    radians = FASTEST * (SLOWEST / FASTEST) ** np.linspace(0, 1, min(FREQUENCIES, head_size // 2))
    embeddings = _embed_tokens(sides, H - 2 * len(radians) - 1, rng)  # one dimension is for [MASK]
    position_norm = POSITION_SHARE * float(frequencies @ np.linalg.norm(embeddings, axis=1))

    # LayerNorm gives the sum of word and position embeddings the norm sqrt(H).
    norms = np.sqrt((embeddings**2).sum(axis=1) + position_norm**2)
    normalized = embeddings / norms[:, None] * math.sqrt(H)
    amplitude = math.sqrt(H / len(radians)) * position_norm * float(frequencies @ (1 / norms))

    maps = [fit_side(side, normalized, embeddings, config.num_attention_heads // 2 * head_size) for side in sides]
    # With larger embeddings, smaller vectors give the same scores.
    added = sum(frequencies @ ((normalized @ a @ b) ** 2).sum(axis=1) for a, b in maps)
    scale = math.sqrt(added / H) / SCORE_SHARE
    maps = [(a / math.sqrt(scale), b / math.sqrt(scale)) for a, b in maps]
    return _FirstLayer(embeddings * scale, position_norm * scale, radians, amplitude, maps)


def _embed_tokens(sides: Sequence[Bigrams], size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns token embeddings whose products give the mutual information. *Shape:* (V, size)"""
    vectors, values = factorize(sides, size, rng)
    # Singular vectors have very different norms. A rotation makes all dimensions alike.
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return vectors / sides[0].root[:, None] * np.sqrt(values) @ rotation[: len(values)]


def _set_embeddings(
    model: Any, tokenizer: PreTrainedTokenizerBase, first: _FirstLayer, rng: np.random.Generator
) -> None:
    """Sets the embeddings. Words, [MASK] and positions use different dimensions, in this order."""
    module, K = model.bert.embeddings, first.K
    norm = float(np.mean(np.linalg.norm(first.embeddings, axis=1)))
    words = torch.zeros(module.word_embeddings.weight.shape)
    words[:, :K] = torch.from_numpy(first.embeddings)
    special = [index for index in tokenizer.all_special_ids if index != tokenizer.mask_token_id]
    words[special, :K] = torch.from_numpy(rng.standard_normal((len(special), K)) * norm / math.sqrt(K)).float()
    words[tokenizer.mask_token_id] = 0
    words[tokenizer.mask_token_id, K] = norm
    if module.word_embeddings.padding_idx is not None:
        words[module.word_embeddings.padding_idx] = 0
    angles = np.arange(model.config.max_position_embeddings)[:, None] * first.radians
    positions = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    positions *= first.position_norm / math.sqrt(len(first.radians))
    module.word_embeddings.weight.copy_(words)
    module.position_embeddings.weight.zero_()[:, K + 1 :] = torch.from_numpy(positions)
    module.token_type_embeddings.weight.zero_()


def _close_sublayers(model: Any) -> None:
    """Sets the outputs of all sublayers to zero."""
    for layer in model.bert.encoder.layer:
        layer.attention.output.dense.weight.zero_()
        layer.output.dense.weight.zero_()


def _set_heads(attention: Any, first: _FirstLayer, config: SnugBertConfig) -> None:
    """Sets the heads, alternately for the previous and the next token. Heads with the same target share the rank."""
    head_size = config.hidden_size // config.num_attention_heads
    for head in range(config.num_attention_heads // 2 * 2):
        number, side = divmod(head, 2)
        rows = slice(head * head_size, (head + 1) * head_size)
        part = slice(number * head_size, (number + 1) * head_size)
        a, b = first.maps[side]
        _attend_to(attention.self, rows, first.radians, first.amplitude, offset=(-1, 1)[side])
        _map_tokens(attention, rows, a[:, part], b[part])


def _attend_to(attention: Any, rows: slice, radians: np.ndarray, amplitude: float, offset: int) -> None:
    """Sets queries and keys of a head, so that it attends to the token at a distance of `offset`.

    Their product is a sum of cos(radians * (distance - offset)), which is largest at this distance. Further dimensions
    of the queries stay random. Their keys are zero. If both were zero, they would have no gradient.

    Args:
        attention: the attention module.
        rows: the dimensions of the head.
        radians: frequencies of the position embeddings.
        amplitude: amplitude of the position embeddings after LayerNorm.
        offset: -1 for the previous token, 1 for the next.
    """
    n, head_size = len(radians), rows.stop - rows.start
    contrast = amplitude**2 * float((1 - np.cos(radians)).sum())
    gain = math.sqrt(SHARPNESS * math.sqrt(head_size) / contrast)
    cos, sin = np.diag(np.cos(offset * radians)), np.diag(np.sin(offset * radians))
    dimensions = slice(rows.start, rows.start + 2 * n)
    attention.key.weight[rows] = 0
    for module, weight in ((attention.query, np.block([[cos, sin], [-sin, cos]])), (attention.key, np.eye(2 * n))):
        module.weight[dimensions] = 0
        module.weight[dimensions, -2 * n :] = torch.from_numpy(gain * weight).float()


def _map_tokens(attention: Any, rows: slice, a: np.ndarray, b: np.ndarray) -> None:
    """Sets values and outputs of a head to `a` (K, R) and `b` (R, K). Values of further dimensions stay random."""
    value, output = attention.self.value.weight, attention.output.dense.weight
    K, rank = a.shape
    dimensions = slice(rows.start, rows.start + rank)
    value[dimensions] = 0
    value[dimensions, :K] = torch.from_numpy(a.T).float()
    output[:K, dimensions] = torch.from_numpy(b.T).float()


def _set_transform(transform: Any, K: int) -> None:
    """Makes the transform of the masked token head pass on the K dimensions of words for [MASK], and only for [MASK].

    Other tokens would predict themselves with certainty, but some labeled tokens are random replacements. The
    dimension of [MASK] is a gate: it moves the input of GELU from values where GELU is flat to values where it is
    linear. The dimensions of positions become constants. So all transformed states have about the same norm, and
    LayerNorm does not change the scores.
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
