"""The pretraining collator: masks examples, and packs them into a batch or formats them as text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import decoders
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerBase

from snugbert.cli.arguments import COUNT, SHARE, check_ranges
from snugbert.data.packed_batches import pack
from snugbert.data.tokenizing import splits_words
from snugbert.errors import InputError, explain_choice
from snugbert.gpu.row_sizes import pad_row
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.masking import mask_tokens
from snugbert.trainers.pretraining.pretraining_arguments import (
    MASKINGS,
    PAIR_LABELS,
    Objective,
    parse_mask_rates,
)

# Explanations of the output of `describe`.
LEGEND = (
    "input{label}: [MASK]{word} is masked, other{word} is replaced by a random token, word{word} is unchanged but "
    "must be predicted. Tokens without braces have no label."
)
ELECTRA_LEGEND = (
    "input{label} of the generator: [MASK]{word} is masked, word{word} is unchanged but must be predicted. The "
    "discriminator reads the generator's predictions in these places. Tokens without braces have no label."
)


@dataclass
class SnugBertDataCollatorForPretraining:
    """Masks examples and packs them into a batch without padding.

    The masks of an example depend only on its `mask_seed`, which a [`PretrainingDataset`] sets. They do not depend on
    the batch, the data worker or the process. Examples without `mask_seed` get masks from torch's random state.
    Special tokens are never masked, and never replace another token.

    Args:
        tokenizer: a fast tokenizer with [CLS], [SEP] and [MASK].
        mlm_probability: share of the tokens to predict, 0.15 in the paper (section 3.1). Or the first and the last
            share of a run, such as "0.3:0.15" in GPT-BERT (Charpentier and Samuel, 2024). [`PretrainingTrainer`] then
            changes it linearly with the steps. Evaluation and other trainers use the last rate.
        mask_replace_prob: share of the predicted tokens to replace with [MASK], 0.8 in the paper (A.1).
        random_replace_prob: share of the predicted tokens to replace with a random token, 0.1 in the paper. All other
            predicted tokens stay unchanged.
        replacement_keys: whether batches contain a random number for each masked token, from which ELECTRA's generator
            samples the token that replaces it.
        pad_to_multiple_of: fills the row up to a multiple of this number of tokens, see [`pad_row`]. None: no padding.
        masking: what to mask: "tokens" (the default), "words" (all tokens of a word or none) or "spans" of words, see
            [`choose_spans`]. WordPiece marks the words in its vocabulary. With other tokenizers, examples need
            `continues_word`, see [`PretrainingDataset`].

    Attributes:
        mask_rates: the first and the last share of tokens to predict.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float | str = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    replacement_keys: bool = False
    pad_to_multiple_of: int | None = None
    masking: str = "tokens"

    def __post_init__(self):
        check_ranges(self, pad_to_multiple_of=COUNT, mask_replace_prob=SHARE, random_replace_prob=SHARE)
        self.mask_rates = parse_mask_rates(self.mlm_probability)
        if self.masking not in MASKINGS:
            raise InputError(explain_choice("--masking", self.masking, MASKINGS))
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise InputError(
                f"mask_replace_prob {self.mask_replace_prob} and random_replace_prob {self.random_replace_prob} must "
                "add up to at most 1."
            )
        self.mask_token_id = self.tokenizer.mask_token_id  # cached: looking it up takes microseconds
        self.is_special = np.isin(np.arange(len(self.tokenizer)), self.tokenizer.all_special_ids)
        self.replacements = np.flatnonzero(~self.is_special)
        self.continues_word: np.ndarray | None = None  # whether each token of the vocabulary continues a word
        model = self.tokenizer.backend_tokenizer.model
        if self.masking == "tokens":
            return
        if isinstance(model, WordPiece):
            tokens = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
            self.continues_word = np.array([token.startswith(model.continuing_subword_prefix) for token in tokens])
        elif not splits_words(self.tokenizer):
            raise InputError(
                f"--masking {self.masking}: the tokenizer does not split text into words. Use --masking tokens."
            )

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Makes a packed batch of N examples with T tokens in total.

        Args:
            examples: with `input_ids`; optionally `token_type_ids`, `next_sentence_label`, `mask_seed`,
                `continues_word`, and `mlm_probability` instead of the collator's. All examples have the same keys.

        Returns:
            `input_ids`, `position_ids`, `labels` (1, T), `cu_seq_lens_q` (N + 1,), `max_length_q` and `label_indices`
            (M,), see [`pack`]; `token_type_ids` (1, T) and `next_sentence_label` (N,) if the examples have them;
            `replacement_keys` (M,) if they are requested. With `pad_to_multiple_of`, the row is filled.
        """
        generators = [self._make_generator(example) for example in examples]
        masked = [self._mask(example, rng) for example, rng in zip(examples, generators, strict=True)]
        input_ids, labels = zip(*masked, strict=True)
        token_arrays: dict[str, Sequence[np.ndarray]] = {"input_ids": input_ids, "labels": labels}
        if "token_type_ids" in examples[0]:
            token_arrays["token_type_ids"] = [np.asarray(example["token_type_ids"]) for example in examples]
        batch = pack(token_arrays)
        if "next_sentence_label" in examples[0]:
            batch["next_sentence_label"] = torch.tensor([example["next_sentence_label"] for example in examples])
        if self.replacement_keys:
            counts = [np.count_nonzero(each != IGNORE_INDEX) for each in labels]
            keys = [rng.integers(-(2**63), 2**63, count) for rng, count in zip(generators, counts, strict=True)]
            batch["replacement_keys"] = torch.from_numpy(np.concatenate(keys))
        return batch if self.pad_to_multiple_of is None else pad_row(batch, self.pad_to_multiple_of)

    def _make_generator(self, example: Mapping[str, Any]) -> np.random.Generator:
        seed = example["mask_seed"] if "mask_seed" in example else int(torch.randint(2**63 - 1, ()))
        return np.random.default_rng(seed)

    def _mask(self, example: Mapping[str, Any], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        ids = np.asarray(example["input_ids"])
        return mask_tokens(
            ids,
            candidates=~self.is_special[ids],
            mask_token_id=self.mask_token_id,
            replacements=self.replacements,
            rng=rng,
            mlm_probability=example.get("mlm_probability", self.mask_rates[1]),
            mask_replace_prob=self.mask_replace_prob,
            random_replace_prob=self.random_replace_prob,
            continues_word=self._find_continuations(example, ids),
            spans=self.masking == "spans",
        )

    def _find_continuations(self, example: Mapping[str, Any], ids: np.ndarray) -> np.ndarray | None:
        if self.masking == "tokens":
            return None
        if self.continues_word is not None:
            return self.continues_word[ids]
        if "continues_word" not in example:
            raise InputError(
                f"--masking {self.masking}: the examples have no `continues_word`. Prepare the text with "
                "`store_words`. With another trainer, or with your own collator around this one, set "
                "remove_unused_columns=False."
            )
        return np.asarray(example["continues_word"])

    def describe(self, example: dict[str, Any], objective: Objective) -> str:
        """Formats a masked example as text, with a line per segment. [`LEGEND`] explains the format."""
        seen, labels = self._mask(example, self._make_generator(example))
        facts = [f"{len(seen)} tokens", f"{np.count_nonzero(labels != IGNORE_INDEX)} to predict"]
        if is_pair := "next_sentence_label" in example:
            facts.insert(0, PAIR_LABELS[objective][example["next_sentence_label"]])
        lines = [", ".join(facts)]
        ends = np.flatnonzero(example["input_ids"] == self.tokenizer.sep_token_id).tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            part = slice(start + 1, end)
            text = self._format_span(example["input_ids"][part], seen[part], labels[part])
            lines.append(f"{'AB'[number] if is_pair else '-'}  {text}")
        return "\n".join(lines)

    def _format_span(self, original: np.ndarray, seen: np.ndarray, labels: np.ndarray) -> str:
        tokens, seen_tokens = (self.tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in (original, seen))
        if "ByteLevel" in repr(self.tokenizer.backend_tokenizer.decoder):
            tokens, seen_tokens = (list(map(_decode_bytes, each)) for each in (tokens, seen_tokens))
        return " ".join(
            token if label == IGNORE_INDEX else f"{seen_token}{{{token}}}"
            for token, seen_token, label in zip(tokens, seen_tokens, labels, strict=True)
        )


def _decode_bytes(token: str) -> str:
    """Makes a token of byte-level BPE readable, unless it is part of a character. The mark of a space (Ġ) stays."""
    text = decoders.ByteLevel().decode([token])
    return text.replace(" ", "Ġ") if text.isprintable() and "\ufffd" not in text else token
