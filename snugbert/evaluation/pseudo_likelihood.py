"""Pseudo-log-likelihoods of sentences: the sum of the log-probabilities of all tokens, each masked in its own pass.

Variants, named as in minicons:

- `original` (Salazar et al., 2020): only the scored token is masked.
- `within_word_l2r` (Kauf and Ivanova, 2023): the later tokens of the same word are also masked. Otherwise the end of a
  rare word reveals its beginning.

Special tokens are not scored. The tokenizer defines what a word is: for BERT, punctuation marks are words.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from snugbert.evaluation.masked_models import predict_tokens
from snugbert.progress import Progress

VARIANTS = ("original", "within_word_l2r")
TOKENS_PER_BATCH = 4096
TOKENS_ON_GPU = 16_384  # With 4,096 tokens, starting the kernels one by one takes longer than running them.
SENTENCES_PER_CALL = 1000  # per call of the tokenizer
INPUT_TOKENS_AT_ONCE = 2**18  # limits memory: a sentence of n tokens has about n masked copies, n tokens each


class EncodedSentence(NamedTuple):
    """An encoded sentence."""

    ids: tuple[int, ...]  # including special tokens
    words: tuple[int | None, ...]  # the word that each token belongs to. None: a special token


def encode_sentences(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[EncodedSentence]:
    """Tokenizes texts without truncation."""
    for start in range(0, len(texts), SENTENCES_PER_CALL):
        # No warning about long texts: callers check the length.
        batch = tokenizer(list(texts[start : start + SENTENCES_PER_CALL]), verbose=False)
        for encoding in batch.encodings or []:
            words = zip(encoding.word_ids, encoding.special_tokens_mask, strict=True)
            yield EncodedSentence(tuple(encoding.ids), tuple(None if special else word for word, special in words))


def score_sentences(
    model: PreTrainedModel, sentences: Sequence[EncodedSentence], mask_token_id: int
) -> dict[str, np.ndarray]:
    """Returns the pseudo-log-likelihoods (nats, float64) of all sentences for each variant.

    Sentences of the same length run together, without padding. Equal inputs run once: a repeated sentence, two
    sentences that differ only in the masked token, and both variants for words of one token.
    """
    distinct = sorted(dict.fromkeys(sentences), key=lambda sentence: len(sentence.ids))
    scores: dict[EncodedSentence, np.ndarray] = {}
    with Progress("scoring", len(distinct), "sentences") as progress:
        for length, group in groupby(distinct, key=lambda sentence: len(sentence.ids)):
            same_length = list(group)
            size = max(1, INPUT_TOKENS_AT_ONCE // max(1, length**2))
            for start in range(0, len(same_length), size):
                part = same_length[start : start + size]
                scores.update(zip(part, _score_same_length(model, part, mask_token_id), strict=True))
                progress.move_to(len(scores))
    table = np.array([scores[sentence] for sentence in sentences]).reshape(-1, len(VARIANTS))
    return dict(zip(VARIANTS, table.T, strict=True))


def _score_same_length(model: PreTrainedModel, sentences: Sequence[EncodedSentence], mask_token_id: int) -> np.ndarray:
    """Scores sentences with the same number of tokens. *Shape:* (sentences, variants)"""
    copies: dict[tuple[int, tuple[int, ...]], int] = {}  # (scored position, masked ids) -> row
    rows, targets, cells = [], [], []
    for number, (ids, words) in enumerate(sentences):
        for position, word in enumerate(words):
            if word is None:
                continue
            for variant, masked in enumerate(_mask(ids, words, position, mask_token_id)):
                rows.append(copies.setdefault((position, masked), len(copies)))
                targets.append(ids[position])
                cells.append(number * len(VARIANTS) + variant)
    shape = len(sentences), len(VARIANTS)
    input_ids = torch.tensor([masked for _, masked in copies])
    positions = torch.tensor([position for position, _ in copies])
    log_probabilities = _predict_targets(model, input_ids, positions, torch.tensor(rows), torch.tensor(targets))
    # In float64, equal log-probabilities tie even if they are summed in a different order.
    return np.bincount(cells, log_probabilities.double().numpy(), minlength=shape[0] * shape[1]).reshape(shape)


def _mask(
    ids: tuple[int, ...], words: tuple[int | None, ...], position: int, mask_token_id: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids with masks for the token at `position`, for each variant."""
    original = (*ids[:position], mask_token_id, *ids[position + 1 :])
    word = words[position]
    if word not in words[position + 1 :]:
        return original, original
    later = zip(original[position + 1 :], words[position + 1 :], strict=True)
    return original, (*original[: position + 1], *(mask_token_id if other == word else id for id, other in later))


def _predict_targets(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Computes the log-probabilities (K,) of tokens at the scored position of each masked sequence.

    `rows` (K,) says which sequence each of the `targets` (K,) belongs to.
    """
    found = torch.empty(len(rows))
    tokens = TOKENS_PER_BATCH if model.device.type == "cpu" else TOKENS_ON_GPU
    size = max(1, tokens // input_ids.shape[1])
    for start in range(0, len(input_ids), size):
        batch = (tensor[start : start + size].to(model.device) for tensor in (input_ids, positions))
        logits = predict_tokens(model, *batch).float()
        wanted = ((rows >= start) & (rows < start + size)).nonzero().squeeze(1)
        batch_rows, batch_targets = ((rows[wanted] - start).to(logits.device), targets[wanted].to(logits.device))
        found[wanted] = logits.log_softmax(dim=1)[batch_rows, batch_targets].cpu()
    return found
