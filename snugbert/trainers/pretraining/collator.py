"""Examples -> a masked, padded batch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from snugbert.trainers.pretraining.masking import IGNORE_INDEX, mask_tokens


@dataclass
class SnugBertDataCollatorForPreTraining:
    """Masks the examples of a [`SentencePairDataset`] and pads them to the longest.

    An example's masks are a function of its `mask_seed` alone, not of the batch, the worker or the process it comes
    in.

    Args:
        tokenizer: a tokenizer with [PAD], [CLS], [SEP] and [MASK].
        mlm_probability: share of the tokens to predict; 0.15 in the paper (section 3.1).
    """

    tokenizer: Any
    mlm_probability: float = 0.15
    replacements: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        special = set(self.tokenizer.all_special_ids)
        self.replacements = np.array([index for index in range(len(self.tokenizer)) if index not in special])

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Examples -> `input_ids`, `token_type_ids`, `attention_mask`, `labels` (B, L), `next_sentence_label` (B,)."""
        length = max(len(example["input_ids"]) for example in examples)
        shape = (len(examples), length)
        input_ids = np.full(shape, self.tokenizer.pad_token_id)
        token_type_ids = np.zeros(shape, dtype=np.int64)
        attention_mask = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORE_INDEX)
        for row, example in enumerate(examples):
            ids = example["input_ids"]
            masked, targets = mask_tokens(
                ids,
                candidates=(ids != self.tokenizer.cls_token_id) & (ids != self.tokenizer.sep_token_id),
                mask_token_id=self.tokenizer.mask_token_id,
                replacements=self.replacements,
                rng=np.random.default_rng(example["mask_seed"]),
                mlm_probability=self.mlm_probability,
            )
            input_ids[row, : len(ids)] = masked
            token_type_ids[row, : len(ids)] = example["token_type_ids"]
            attention_mask[row, : len(ids)] = 1
            labels[row, : len(ids)] = targets
        batch = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            "next_sentence_label": np.array([example["next_sentence_label"] for example in examples]),
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}
