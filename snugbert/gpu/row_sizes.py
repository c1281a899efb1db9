"""Fills packed rows up to a few fixed sizes, and chooses these sizes for training and prediction.

Rows of random examples have many sizes. If all rows are padded to a multiple of some number of tokens, they have few
sizes. A larger multiple gives fewer sizes and more padding (`benchmarks/results/row_sizes_*.md`).

Shapes: N sequences, T tokens in the batch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from snugbert.modeling_snugbert import AUTO_CLASSES, IGNORE_INDEX, OTHER_PRETRAINING_MODELS

SEQUENCE_COLUMNS = ("labels", "next_sentence_label", "start_positions", "end_positions")
# Longest sequence of padding. The cost of attention grows with its square, and every model has this many positions.
PADDING_LENGTH = 32
# Attention kernels read 128 keys at once, and skip blocks after the end of a sequence. So a loose bound costs little.
MAX_LENGTHS = (128, 512)
PREDICTION_SIZES = 8
PREDICTION_BATCHES = 3  # minimum number of batches in a call. A CUDA graph is recorded at the third batch of a size.
LABEL_STEPS = 32  # Label slots are rounded up to a multiple of 1/32 of the row. 15 % masked tokens need 5/32.
# Subclasses and other heads may treat padding as examples.
OWN_MODELS = {*AUTO_CLASSES.values(), *OTHER_PRETRAINING_MODELS}
# Multiples, in standard deviations of the number of tokens of a row. In 1,000 random batches, the longest and the
# shortest row differ by 5 to 7 standard deviations. So rows have at most 6 sizes in pretraining, and 8 in fine-tuning,
# where the share of padding is larger.
PRETRAINING_DEVIATIONS = 1.45
FINE_TUNING_DEVIATIONS = 0.95
# Multiples are rounded up to a multiple of 4. More is not needed: 16-bit products are fast for any number of tokens,
# because each hidden state is aligned.
STEP = 4
SAMPLE = 1000  # pretraining examples whose tokens are counted. Counting takes a tenth of a second


def pad_row(batch: Mapping[str, Any], pad_to_multiple_of: int, max_sequences: int | None = None) -> dict[str, Any]:
    """Fills a packed batch with padding, so that batches have one of a few sizes.

    Compiled code and CUDA graphs need fixed shapes. Losses, gradients and outputs of the sequences do not change. The
    padding consists of unlabeled sequences of at most 32 tokens (`PADDING_LENGTH`) at the end of the row. Batches with
    equal N and T get equally many padding sequences. So some padding sequences can be empty. Runs on any device,
    without waiting for it.

    Args:
        batch: a packed batch, see [`pack`], with columns of any head except ELECTRA's generator.
        pad_to_multiple_of: T is rounded up to a multiple of this number.
        max_sequences: largest N of all batches (for multiple choice, divided by the number of choices). All batches
            are then filled up to the same number of sequences. None: N is the same in all batches.

    Returns:
        The batch with additional sequences of padding tokens, which have id 0. Positions restart in each sequence.

        - The labels of padding are -100. `max_length_q` becomes 128, 512 or T.
        - `label_indices` also lists tokens without a label, at its end. Its length is rounded up to a
          multiple of T/32. A length above T/2 becomes T.
        - `num_sequences` is N before padding. Regression and multi-label classification need it, because their losses
          do not ignore -100.
    """
    if "num_windows" in batch:
        raise ValueError("Batches of documents with several windows cannot be filled. Remove `pad_to_multiple_of`.")
    starts = batch["cu_seq_lens_q"]
    tokens, count, choices = batch["input_ids"].shape[1], len(starts) - 1, batch.get("num_choices", 1)
    most = count if max_sequences is None else max_sequences * choices
    if count > most:
        raise ValueError(f"The batch has {count // choices} examples, more than `max_sequences` {max_sequences}.")
    padding = -tokens % pad_to_multiple_of
    total = math.ceil((most + math.ceil((pad_to_multiple_of - 1) / PADDING_LENGTH)) / choices) * choices
    added = total - count

    ends = torch.arange(1, added + 1, dtype=starts.dtype, device=starts.device) * PADDING_LENGTH
    filled = dict(batch) | {"cu_seq_lens_q": torch.cat([starts, tokens + ends.clamp(max=padding)])}
    filled |= {name: F.pad(batch[name], (0, padding)) for name in ("input_ids", "token_type_ids") if name in batch}
    if "position_ids" in batch:
        positions = torch.arange(padding, device=starts.device) % PADDING_LENGTH
        filled["position_ids"] = torch.cat([batch["position_ids"], positions[None]], dim=1)
    for name in SEQUENCE_COLUMNS:
        if name in batch:
            of_tokens = batch[name].shape == batch["input_ids"].shape and not batch[name].is_floating_point()
            more = padding if of_tokens else added // choices if name == "labels" else added
            other_dimensions = () if of_tokens else (0, 0) * (batch[name].dim() - 1)
            filled[name] = F.pad(batch[name], (*other_dimensions, 0, more), value=IGNORE_INDEX)
    if "max_length_q" in batch:
        longest = batch["max_length_q"]
        filled["max_length_q"] = next((bound for bound in MAX_LENGTHS if longest <= bound), tokens + padding)
    if "label_indices" in batch:
        filled["label_indices"] = _pad_label_indices(batch["label_indices"], filled["labels"][0])
    return filled | {"num_sequences": count}


def _pad_label_indices(indices: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Adds distinct indices of tokens without a label. *Shape:* (M,), (T,) -> (M or more,)"""
    tokens, step = len(labels), max(1, len(labels) // LABEL_STEPS)
    slots = tokens if 2 * len(indices) > tokens else math.ceil(max(1, len(indices)) / step) * step
    unlabeled = (labels != IGNORE_INDEX).byte().argsort(stable=True)  # tokens without a label come first
    return torch.cat([indices, unlabeled[: min(slots, tokens) - len(indices)]])


@dataclass(eq=False)
class FillRows:
    """Fills the packed batches of a data collator, see [`pad_row`]. Other batches stay unchanged."""

    collate: Callable[[Any], Any]
    pad_to_multiple_of: int

    def __call__(self, features: Any) -> Any:
        """Returns the batch of `collate`, and fills it if `collate` has not filled it."""
        batch = self.collate(features)
        if not isinstance(batch, Mapping) or "cu_seq_lens_q" not in batch or "num_sequences" in batch:
            return batch
        return pad_row(batch, self.pad_to_multiple_of)


def choose_pretraining_multiple(batch_size: float, dataset: Any) -> int:
    """Chooses `pad_to_multiple_of` for pretraining with rows of `batch_size` examples.

    The longest row is about a multiple of the result. Many rows are nearly full, so they need little padding. Examples
    are in random order, so the first examples are a random sample.
    """
    lengths = [len(dataset[row]["input_ids"]) for row in range(min(len(dataset), SAMPLE))]
    longest = batch_size * dataset.max_seq_length
    multiple = max(STEP, PRETRAINING_DEVIATIONS * math.sqrt(batch_size) * float(np.std(lengths)))
    return _round_up(longest / max(1, longest // multiple))


def choose_fine_tuning_multiple(batch_size: int, lengths: np.ndarray) -> int:
    """Chooses `pad_to_multiple_of` for fine-tuning with rows of `batch_size` examples of these lengths."""
    return _round_up(FINE_TUNING_DEVIATIONS * math.sqrt(batch_size) * float(lengths.std()))


def choose_prediction_multiple(model: PreTrainedModel, max_tokens: int, batches: int) -> int | None:
    """Chooses `pad_to_multiple_of` for a prediction call of `batches` batches with at most `max_tokens` tokens.

    Batches have up to 8 sizes (`PREDICTION_SIZES`). Rows are not filled (None) if the call has fewer than 3 batches
    (`PREDICTION_BATCHES`), the model is not SnugBERT's or not on a CUDA GPU, or its attention pads sequences.
    """
    if batches < PREDICTION_BATCHES or model.device.type != "cuda" or type(model) not in OWN_MODELS:
        return None
    return None if pads_in_attention(model.config, model.device) else math.ceil(max_tokens / PREDICTION_SIZES)


def pads_in_attention(config: Any, device: torch.device) -> bool:
    """Whether attention on a GPU pads sequences to the longest, so shapes would still vary."""
    is_own = config._attn_implementation == "sdpa" and device.type in ("cpu", "cuda")
    return config.position_embedding_type == "relative" or not (is_own or is_flash_attention_requested(config))


def _round_up(tokens: float) -> int:
    return max(1, math.ceil(tokens / STEP)) * STEP
