"""Examples -> a masked, packed batch, or text that shows what is in it."""

import shutil
import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers.models import WordPiece

from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.packed_batches import pack
from snugbert.trainers.pretraining.masking import mask_tokens
from snugbert.trainers.pretraining.objectives import PAIR_LABELS, Objective

# How to read what `describe` gives.
LEGEND = (
    "seen{to say}: [MASK]{word} is hidden, other{word} has another word in its place, word{word} stays as it is and "
    "must be said all the same; nothing is asked where there are no braces."
)


@dataclass
class SnugBertDataCollatorForPretraining:
    """Masks the examples of a [`PretrainingDataset`] and packs them: no padding, whatever their lengths.

    An example's masks are a function of its `mask_seed` alone, not of the batch, the worker or the process it comes
    in. Special tokens are never masked, and never stand in for another token.

    Args:
        tokenizer: a fast tokenizer with [CLS], [SEP] and [MASK].
        mlm_probability: share of the tokens to predict; 0.15 in the paper (section 3.1).
        mask_replace_prob: share of these that become [MASK]; 0.8 in the paper (A.1).
        random_replace_prob: share of these that become a random word piece; 0.1 in the paper, the others stay.
        whole_word_mask: whether the word pieces of a word are predicted together.

    Raises:
        InputError: shares that are none, or whole words and a tokenizer that does not mark where words go on.
    """

    tokenizer: Any
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    whole_word_mask: bool = False
    mask_token_id: int = field(init=False, repr=False)  # a tokenizer takes microseconds to say it
    # By token id.
    is_special: np.ndarray = field(init=False, repr=False)
    continues_word: np.ndarray | None = field(init=False, repr=False, default=None)
    replacements: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        for name in ("mlm_probability", "mask_replace_prob", "random_replace_prob"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} {getattr(self, name)} must be between 0 and 1.")
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise InputError(
                f"mask_replace_prob {self.mask_replace_prob} and random_replace_prob {self.random_replace_prob} must "
                "be at most 1 together; what they leave is the share of tokens that stay."
            )
        self.mask_token_id = self.tokenizer.mask_token_id
        self.is_special = np.isin(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)
        self.replacements = np.flatnonzero(~self.is_special)
        if self.whole_word_mask:
            model = self.tokenizer.backend_tokenizer.model
            if not isinstance(model, WordPiece):
                raise InputError(
                    "whole_word_mask needs a WordPiece tokenizer, whose pieces show where a word goes on; this one is "
                    f"of type {type(model).__name__}."
                )
            pieces = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
            self.continues_word = np.array([piece.startswith(model.continuing_subword_prefix) for piece in pieces])

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """N examples of T tokens together -> a packed batch.

        Returns:
            `input_ids`, `token_type_ids`, `position_ids`, `labels` (1, T), `cu_seq_lens_q` (N + 1,), `max_length_q`,
            see [`pack`]; `next_sentence_label` (N,) if the examples have one.
        """
        masked = [self._mask(example["input_ids"], example["mask_seed"]) for example in examples]
        batch = pack(
            {
                "input_ids": [input_ids for input_ids, _ in masked],
                "token_type_ids": [example["token_type_ids"] for example in examples],
                "labels": [labels for _, labels in masked],
            }
        )
        if "next_sentence_label" in examples[0]:
            batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
        return batch

    def _mask(self, ids: np.ndarray, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        return mask_tokens(
            ids,
            candidates=~self.is_special[ids],
            mask_token_id=self.mask_token_id,
            replacements=self.replacements,
            rng=np.random.default_rng(seed),
            mlm_probability=self.mlm_probability,
            mask_replace_prob=self.mask_replace_prob,
            random_replace_prob=self.random_replace_prob,
            continues_word=None if self.continues_word is None else self.continues_word[ids],
        )

    def describe(self, example: dict[str, Any], objective: Objective) -> str:
        """An example as the model sees it, wrapped to the width of the terminal; [`LEGEND`] says how to read it.

        Args:
            example: of a [`PretrainingDataset`].
            objective: the dataset's.
        """
        seen, labels = self._mask(example["input_ids"], example["mask_seed"])
        facts = [f"{len(seen)} tokens", f"{np.count_nonzero(labels != IGNORE_INDEX)} to predict"]
        if is_pair := "next_sentence_label" in example:
            facts.insert(0, PAIR_LABELS[objective][example["next_sentence_label"]])
        lines = [", ".join(facts)]
        ends = np.flatnonzero(example["input_ids"] == self.tokenizer.sep_token_id).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            text = self._text(*(ids[start + 1 : end] for ids in (example["input_ids"], seen, labels)))
            lines += textwrap.wrap(
                f"{'AB'[number] if is_pair else '-'}  {text}",
                width=shutil.get_terminal_size().columns,
                subsequent_indent="   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        return "\n".join(lines)

    def _text(self, true: np.ndarray, seen: np.ndarray, labels: np.ndarray) -> str:
        prefix = getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None) or "##"
        pieces, seen_pieces = (self.tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in (true, seen))
        text = ""
        for piece, seen_piece, label in zip(pieces, seen_pieces, labels, strict=True):
            goes_on = piece.startswith(prefix) and text != ""
            text += "" if goes_on or not text else " "
            if label == IGNORE_INDEX:
                text += piece.removeprefix(prefix) if goes_on else piece
            else:
                text += f"{seen_piece}{{{piece}}}"
        return text
