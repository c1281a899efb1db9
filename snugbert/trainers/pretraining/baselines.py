"""Baselines to compare metrics with: always the most frequent label, and tokens by their frequency."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from snugbert.data.corpus import Corpus
from snugbert.reports.pretrained_card import format_pretraining_metric
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.objectives import PAIR_TASKS, Objective


def compute_baselines(dataset: PretrainingDataset, train: Corpus | None) -> dict[str, float]:
    """Computes the metrics of a model that ignores its input.

    Args:
        dataset: the validation examples.
        train: the training text. None: leave out [`unigram_baseline`].

    Returns:
        `nsp_accuracy` of always predicting the more frequent label, if there are pairs; [`unigram_baseline`].
    """
    baselines: dict[str, float] = {}
    if dataset.next_share is not None:
        baselines["nsp_accuracy"] = max(dataset.next_share, 1 - dataset.next_share)
    if train is not None:
        baselines |= unigram_baseline(train, dataset)
    return baselines


def unigram_baseline(train: Corpus, dataset: PretrainingDataset) -> dict[str, float]:
    """Computes the metrics of a model that predicts tokens by their frequency in the training text.

    Args:
        train: text that gives the frequencies, with add-one (Laplace) smoothing.
        dataset: examples of the text to predict. Special tokens do not count, because they are never predicted.

    Returns:
        `mlm_loss` in nats, and `mlm_accuracy` of always predicting the most frequent token.
    """
    train_counts, counts = (
        count_tokens(corpus, dataset.vocab_size, dataset.special_ids) for corpus in (train, dataset.corpus)
    )
    return {
        "mlm_loss": frequency_loss(train_counts, counts),
        "mlm_accuracy": float(counts[train_counts.argmax()] / (counts.sum() or math.nan)),
    }


def detection_baseline(replaced: float) -> dict[str, float]:
    """Computes the metrics of an ELECTRA discriminator that gives all tokens the same probability.

    Args:
        replaced: share of the tokens that were replaced.

    Returns:
        `disc_loss` in nats, which is the entropy of `replaced`, and `disc_accuracy` of the more frequent answer.
    """
    shares = replaced, 1 - replaced
    return {"disc_loss": -sum(share * math.log(share) for share in shares if share), "disc_accuracy": max(shares)}


def frequency_loss(train_counts: np.ndarray, counts: np.ndarray) -> float:
    """Returns the mean cross-entropy, in nats, of predicting tokens by their frequency.

    Args:
        train_counts: count of each token in the training text. They give the frequencies, with add-one (Laplace)
            smoothing. *Shape:* (vocabulary,)
        counts: the same for the text to predict.
    """
    log_probabilities = np.log(train_counts + 1) - math.log(train_counts.sum() + len(train_counts))
    return float(-(counts * log_probabilities).sum() / (counts.sum() or math.nan))


def add_gain(metrics: dict[str, float], train_counts: np.ndarray | None, dataset: object) -> None:
    """Adds `mlm_gain` to the metrics of an evaluation: how much lower its loss is than [`frequency_loss`].

    Args:
        metrics: of an evaluation. Names begin with a prefix.
        train_counts: count of each token in the training text. None: unknown, so nothing is added.
        dataset: the evaluation set. Only for a [`PretrainingDataset`], something is added.
    """
    if train_counts is None or (counts := count_dataset(dataset)) is None:
        return
    baseline = frequency_loss(train_counts, counts)
    for name in [name for name in metrics if name.endswith("_mlm_loss")]:
        metrics[f"{name.removesuffix('loss')}gain"] = baseline - metrics[name]


def count_dataset(dataset: object) -> np.ndarray | None:
    """Counts the predictable tokens of a [`PretrainingDataset`], or of a `Subset` of one. None for other datasets."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    if not isinstance(dataset, PretrainingDataset):
        return None
    return count_tokens(dataset.corpus, dataset.vocab_size, dataset.special_ids)


def count_tokens(corpus: Corpus, vocab_size: int, special_ids: np.ndarray | None = None) -> np.ndarray:
    """Counts how often each token occurs in a corpus. The counts of `special_ids` are 0. *Shape:* (vocabulary,)"""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for block in corpus.blocks:
        # A million tokens at a time, because bincount takes 8 bytes per token.
        for tokens in np.array_split(block.tokens, len(block.tokens) // 10**6 + 1):
            counts += np.bincount(tokens, minlength=vocab_size)
    if special_ids is not None:
        counts[special_ids] = 0
    return counts


def format_comparison(metrics: Mapping[str, float], baselines: Mapping[str, float], objective: Objective) -> str:
    """Formats a table of the metrics on the validation text next to the baselines."""
    names = {
        "mlm_loss": "masked token loss",
        "mlm_accuracy": "masked token accuracy",
        "bits_per_character": "bits per character",
        "nsp_accuracy": f"{PAIR_TASKS.get(objective)} accuracy",
        "disc_loss": "replaced token loss",
        "disc_accuracy": "replaced token accuracy",
    }
    lines = [f"{'validation':<26}{'this model':>12}{'baseline':>12}"]
    for name, text in names.items():
        if name in metrics:
            cells = [format_pretraining_metric(values, name) for values in (metrics, baselines)]
            lines.append(f"{text:<26}{cells[0]:>12}{cells[1]:>12}".rstrip())
    return "\n".join(lines)
