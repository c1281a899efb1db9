"""Evaluation metrics from a few sums per sequence, so that no logits are kept, and the metrics of trivial predictions.

Shapes: a batch has N sequences.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from transformers import EvalPrediction
from transformers.utils import ModelOutput

from snugbert.data.corpus.corpus import Corpus
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.examples import PretrainingDataset, unwrap_subset
from snugbert.trainers.pretraining.pretraining_arguments import DISCRIMINATOR_WEIGHT


def sum_per_sequence(outputs: ModelOutput, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns sums of losses, correct predictions and labels of each sequence. The `outputs` have labeled tokens only.

    *Shape:* (N, K). Columns 0 to 2: masked token loss, correct tokens, labeled tokens. Columns 3 to 5: the same for
    `next_sentence_label`, zeros for ELECTRA. Columns 6 to 9: the same for ELECTRA's discriminator, then the number of
    replaced tokens. K is 3 with masked tokens only, 6 with sentence pairs and 10 with ELECTRA.
    """
    labels = inputs["labels"].flatten()
    token_indices = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
    logits = get_mlm_logits(outputs)[: len(token_indices)]  # a filled row has more logits than labels
    sums = _add_tokens(_score(logits, labels[token_indices]), token_indices, inputs)
    if "next_sentence_label" in inputs:
        pair_scores = _score(outputs["seq_relationship_logits"], inputs["next_sentence_label"].flatten())
        return torch.cat([sums, pair_scores], dim=-1)
    if "is_replaced" in outputs:
        is_replaced, logits = outputs["is_replaced"].flatten(), outputs["discriminator_logits"].flatten()
        token_indices = (is_replaced != IGNORE_INDEX).nonzero().squeeze(-1)
        # Cross entropy of the logits 0 and x is binary cross entropy of x.
        two_logits = torch.stack([torch.zeros_like(logits), logits], dim=-1)[token_indices]
        is_replaced = is_replaced[token_indices]
        scores = torch.cat([_score(two_logits, is_replaced), is_replaced[:, None].float()], dim=-1)
        return torch.cat([sums, torch.zeros_like(sums), _add_tokens(scores, token_indices, inputs)], dim=-1)
    return sums


def _add_tokens(scores: torch.Tensor, token_indices: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Adds up the scores of tokens in each sequence. *Shape:* (tokens, K), (tokens,) -> (N, K)"""
    if "cu_seq_lens_q" in inputs:
        # A token belongs to the last sequence that starts at or before it.
        starts = inputs["cu_seq_lens_q"].long()
        num_sequences = len(starts) - 1
        sequence_indices = torch.searchsorted(starts, token_indices, right=True) - 1
    else:
        num_sequences, length = inputs["labels"].shape
        sequence_indices = token_indices // length
    return scores.new_zeros(num_sequences, scores.shape[-1]).index_add_(0, sequence_indices, scores)


def get_mlm_logits(outputs: ModelOutput) -> torch.Tensor:
    """Returns the logits of the masked token head."""
    return outputs["prediction_logits"] if "prediction_logits" in outputs else outputs["logits"]


def _score(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns loss, whether the prediction is correct, and whether there is a label. *Shape:* (labels, 3)"""
    loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORE_INDEX, reduction="none")
    return torch.stack([loss, (logits.argmax(-1) == labels).float(), (labels != IGNORE_INDEX).float()], dim=-1)


def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Computes the metrics of an evaluation by Trainer, see [`average_sums`]. `loss` is the loss of training."""
    metrics = average_sums(np.asarray(prediction.predictions))
    losses = metrics["mlm_loss"], metrics.get("nsp_loss", 0.0), DISCRIMINATOR_WEIGHT * metrics.get("disc_loss", 0.0)
    return {"loss": sum(losses), **metrics}


def average_sums(sums_per_sequence: np.ndarray) -> dict[str, float]:
    """Computes mean losses and accuracies from the sums of [`sum_per_sequence`].

    Without labeled tokens, the loss is NaN. Without labeled pairs, there are no pair metrics. With ELECTRA's
    discriminator, `replaced` is the share of tokens that the generator replaced.
    """
    sums = sums_per_sequence.sum(axis=0, dtype=np.float64).tolist()
    metrics: dict[str, float] = {}
    for task, start in zip(("mlm", "nsp", "disc"), range(0, len(sums), 3), strict=False):
        loss, correct, labeled = sums[start : start + 3]
        if labeled or task == "mlm":
            count = labeled or math.nan
            metrics |= {f"{task}_loss": loss / count, f"{task}_accuracy": correct / count}
            if task == "disc":
                metrics["replaced"] = sums[-1] / count
    return metrics


# --- trivial predictions: always the most frequent label, and tokens by their frequency ------------------------------


def compute_baselines(dataset: PretrainingDataset, train: Corpus | None) -> dict[str, float]:
    """Computes the metrics of a model that ignores its input: [`unigram_baseline`], if there is training text.

    With pairs, `nsp_accuracy` is the accuracy of always predicting the more frequent label.
    """
    share = dataset.next_share
    baselines: dict[str, float] = {} if share is None else {"nsp_accuracy": max(share, 1 - share)}
    return baselines if train is None else baselines | unigram_baseline(train, dataset)


def unigram_baseline(train: Corpus, dataset: PretrainingDataset) -> dict[str, float]:
    """Computes loss (nats) and accuracy of a model that predicts tokens by their frequency in the training text.

    Special tokens of `dataset` do not count, because they are never predicted.
    """
    train_counts, counts = (
        count_corpus_tokens(corpus, dataset.vocab_size, dataset.special_ids) for corpus in (train, dataset.corpus)
    )
    return {
        "mlm_loss": frequency_loss(train_counts, counts),
        "mlm_accuracy": float(counts[train_counts.argmax()] / (counts.sum() or math.nan)),
    }


def detection_baseline(replaced: float) -> dict[str, float]:
    """Computes loss (nats) and accuracy of a discriminator that gives all tokens the probability `replaced`."""
    shares = replaced, 1 - replaced
    return {"disc_loss": -sum(share * math.log(share) for share in shares if share), "disc_accuracy": max(shares)}


def frequency_loss(train_counts: np.ndarray, counts: np.ndarray) -> float:
    """Returns the mean cross-entropy, in nats, of predicting tokens by their frequency in the training text.

    The counts of the training text are smoothed by adding one (Laplace). *Shape:* (vocabulary,) each
    """
    log_probabilities = np.log(train_counts + 1) - math.log(train_counts.sum() + len(train_counts))
    return float(-(counts * log_probabilities).sum() / (counts.sum() or math.nan))


def count_dataset(dataset: object) -> np.ndarray | None:
    """Counts the predictable tokens of a [`PretrainingDataset`], or of its `Subset`. None for other datasets."""
    dataset = unwrap_subset(dataset)
    if not isinstance(dataset, PretrainingDataset):
        return None
    return count_corpus_tokens(dataset.corpus, dataset.vocab_size, dataset.special_ids)


def count_corpus_tokens(corpus: Corpus, vocab_size: int, special_ids: np.ndarray | None = None) -> np.ndarray:
    """Counts how often each token occurs in a corpus. The counts of `special_ids` are 0. *Shape:* (vocabulary,)"""
    counts = np.zeros(vocab_size, dtype=np.int64)
    counts[: len(corpus.counts.token_ids)] = corpus.counts.token_ids
    if special_ids is not None:
        counts[special_ids] = 0
    return counts
