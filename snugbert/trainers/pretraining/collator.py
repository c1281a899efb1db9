"""Examples -> a masked, packed batch."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from snugbert.trainers.packed_batches import pack
from snugbert.trainers.pretraining.masking import mask_tokens


@dataclass
class SnugBertDataCollatorForPreTraining:
    """Masks the examples of a [`SentencePairDataset`] and packs them: no padding, whatever their lengths.

    An example's masks are a function of its `mask_seed` alone, not of the batch, the worker or the process it comes
    in.

    Args:
        tokenizer: a tokenizer with [CLS], [SEP] and [MASK].
        mlm_probability: share of the tokens to predict; 0.15 in the paper (section 3.1).
    """

    tokenizer: Any
    mlm_probability: float = 0.15
    replacements: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        special = set(self.tokenizer.all_special_ids)
        self.replacements = np.array([index for index in range(len(self.tokenizer)) if index not in special])

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """N examples of T tokens together -> a packed batch.

        Returns:
            `input_ids`, `token_type_ids`, `position_ids`, `labels` (1, T), `cu_seq_lens_q` (N + 1,), `max_length_q`,
            see [`pack`]; `next_sentence_label` (N,).
        """
        masked = [self._mask(example["input_ids"], example["mask_seed"]) for example in examples]
        batch = pack(
            {
                "input_ids": [input_ids for input_ids, _ in masked],
                "token_type_ids": [example["token_type_ids"] for example in examples],
                "labels": [labels for _, labels in masked],
            }
        )
        return batch | {"next_sentence_label": torch.tensor([example["next_sentence_label"] for example in examples])}

    def _mask(self, ids: np.ndarray, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return mask_tokens(
            ids,
            candidates=(ids != self.tokenizer.cls_token_id) & (ids != self.tokenizer.sep_token_id),
            mask_token_id=self.tokenizer.mask_token_id,
            replacements=self.replacements,
            rng=np.random.default_rng(seed),
            mlm_probability=self.mlm_probability,
        )
