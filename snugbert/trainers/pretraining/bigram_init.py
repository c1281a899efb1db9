"""Initial weights from the bigrams of the training text, instead of random weights.

A masked language model first learns token frequencies, and then, after a long plateau, which tokens are neighbors.
Counting finds both. [`initialize_from_bigrams`] computes weights with which BERT predicts a masked token
from its two neighbors:

    log p(w | left, right) = log p(w) + log [p(w | left) / p(w)] + log [p(w | right) / p(w)] + constant

- The output bias is log p(w), as in Meister et al. (2022), "A Natural Bias for Language Generation Models".
- The log ratios are pointwise mutual information, one matrix for each side. Their common singular vectors become the
  word embeddings, as in Levy and Goldberg (2014), "Neural Word Embedding as Implicit Matrix Factorization".
- In the first layer, half of the heads attend to the previous token and half to the next. Their values and outputs
  map the embedding of a token to the scores of its neighbors. With an odd number of heads, the last one stays random.
- The output of all other sublayers is zero, as in Zhang et al. (2019), "Fixup Initialization".
- The transform of the masked token head passes these scores on for [MASK], but not for other tokens.

The architecture remains BERT's, and training changes all of these weights.

Shapes: V vocabulary size, H hidden size, K dimensions of a word, R rank of the scores of a head.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.trainers.corpus.corpus import Corpus
from snugbert.trainers.pretraining.baselines import count_tokens
from snugbert.trainers.pretraining.bigrams import Bigrams, count_bigrams, factorize, fit_side, weigh_bigrams

# Chosen with `mini` on English books.
POSITION_SHARE = 0.5  # norm of the position embeddings, divided by the mean norm of the word embeddings
FREQUENCIES = 16  # of the position embeddings. Each takes two dimensions
FASTEST, SLOWEST = 2.0, 2 * math.pi / 512  # the highest and the lowest frequency, in radians per token
SHARPNESS = 5.0  # difference of the attention scores of a head's target and the token next to it
SCORE_SHARE = 0.375  # norm of the vector that both neighbors add to a hidden state, divided by the state's norm
LINEAR, CLOSED = 3.0, -1.0  # GELU(x) is close to x around the first value, and close to 0 around the second
CONSTANT_SHARE = 0.9  # norm of the constant part of a transformed hidden state, divided by the norm of the input
SMALLEST_HEAD = 8  # dimensions. Fewer frequencies cannot tell the neighbors from tokens far away


def initialize_from_bigrams(model: Any, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    """Replaces the random weights of a model by weights that predict masked tokens from their neighbors.

    The pooler and the next-sentence head keep their random weights. Processes with the same number of threads compute
    the same weights.

    Args:
        model: a SnugBERT model with a masked token head.
        corpus: the training text.
        tokenizer: its tokenizer.
        seed: seed of the random choices: the embeddings of special tokens, and a rotation of all embeddings.

    Raises:
        InputError: a model with this configuration cannot have such weights, or the text has no bigrams.
    """
    config: SnugBertConfig = model.config
    check_config(config)
    rng = np.random.default_rng(seed)
    counts = count_tokens(corpus, config.vocab_size) + 1.0
    frequencies = counts / counts.sum()
    pairs = count_bigrams(corpus, config.vocab_size)
    if pairs.nnz == 0:
        raise InputError("--bigram_init: every document is a single token, so there are no bigrams.")
    sides = [weigh_bigrams(matrix, frequencies) for matrix in (pairs, pairs.T.tocsr())]
    head_size, heads = config.hidden_size // config.num_attention_heads, config.num_attention_heads // 2
    num_positions = 2 * min(FREQUENCIES, head_size // 2)
    K = config.hidden_size - num_positions - 1  # one dimension is for [MASK]

    embeddings = embed_tokens(sides, K, rng)
    position_norm = POSITION_SHARE * float(frequencies @ np.linalg.norm(embeddings, axis=1))
    norms = np.sqrt((embeddings**2).sum(axis=1) + position_norm**2)
    normalized = embeddings / norms[:, None] * math.sqrt(config.hidden_size)  # as the embeddings' LayerNorm does
    maps = [fit_side(side, normalized, embeddings, heads * head_size) for side in sides]
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
    """Checks that a model with this configuration can have the weights of [`initialize_from_bigrams`].

    Raises:
        InputError: it cannot.
    """
    if config.num_attention_heads < 2:
        raise InputError("--bigram_init: the model has one attention head, but each neighbor needs its own.")
    head_size = config.hidden_size // config.num_attention_heads
    if head_size < SMALLEST_HEAD:
        raise InputError(f"--bigram_init: attention heads have {head_size} dimensions, but need {SMALLEST_HEAD}.")
    if "gelu" not in config.hidden_act and config.hidden_act != "relu":
        raise InputError(f"--bigram_init needs hidden_act gelu or relu, not {config.hidden_act}.")
    if config.position_embedding_type != "absolute":
        raise InputError("--bigram_init needs learned positions (position_embedding_type absolute).")
    if not config.tie_word_embeddings:
        raise InputError("--bigram_init needs tied word embeddings (tie_word_embeddings true).")


def embed_tokens(sides: Sequence[Bigrams], size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns token embeddings whose products give the mutual information. *Shape:* (V, size)"""
    vectors, values = factorize(sides, size, rng)
    # Singular vectors have very different norms. A rotation makes all dimensions alike.
    rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
    return vectors / sides[0].root[:, None] * np.sqrt(values) @ rotation[: len(values)]


def _set_embeddings(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    embeddings: np.ndarray,
    position_norm: float,
    radians: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Sets the embeddings. Words, [MASK] and positions use different dimensions, in this order."""
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


def _close_sublayers(model: Any) -> None:
    """Sets the outputs of all sublayers to zero."""
    for layer in model.bert.encoder.layer:
        layer.attention.output.dense.weight.zero_()
        layer.output.dense.weight.zero_()


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
