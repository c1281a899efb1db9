"""Batches of random tokens with the lengths of real texts, for both sides of the measurements on a GPU."""

from typing import Any

import numpy as np
from side_by_side import Batch
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

from snugbert import SnugBertTokenizer
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.evaluation.held_out_text import pad_batch
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining

# Tokens of a sequence at each 5 % of the distribution, from the shortest to the longest. BERT's uncased vocabulary.
PAIR_LENGTHS = (20, 107, 126, *[128] * 18)  # sentence pairs of `snugbert pretrain` from English books
GLUE_LENGTHS = {  # training sets, cut at 128 tokens
    "sst2": (3, 4, 4, 5, 5, 6, 7, 8, 8, 9, 10, 12, 13, 14, 16, 18, 21, 23, 28, 34, 61),
    "qnli": (14, 27, 30, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 58, 61, 66, 71, 80, 128),
    "mrpc": (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103),
}
HEADS = {
    "pretraining": "PreTraining",
    "classification": "SequenceClassification",
    "tagging": "TokenClassification",
}
LABELS = 3


def make_vocabulary(size: int) -> dict[str, int]:
    """Returns BERT's special tokens, a period, and words of four letters."""
    letters = [chr(ord("a") + letter) for letter in range(26)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = (
        letters[n // 26**3] + letters[n // 26**2 % 26] + letters[n // 26 % 26] + letters[n % 26] for n in range(size)
    )
    return {token: index for index, token in enumerate([*tokens, *words][:size])}


def draw_lengths(distribution: tuple[int, ...], count: int, longest: int, rng: np.random.Generator) -> list[int]:
    """Draws lengths from one of the tables above, at most `longest`."""
    points = np.linspace(0, 1, len(distribution))
    drawn = np.interp(rng.random(count), points, distribution).round().astype(int)
    return np.minimum(drawn, longest).tolist()


def make_example(length: int, vocabulary: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draws the tokens of a pair; up to 4 tokens, of one sentence."""
    ids = rng.integers(5, vocabulary, length)
    ids[0], ids[-1] = 2, 3  # [CLS], [SEP]
    middle = length // 2 if length > 4 else length - 1
    ids[middle] = 3
    return {"input_ids": ids.tolist(), "token_type_ids": [0] * (middle + 1) + [1] * (length - middle - 1)}


def make_pretraining_examples(
    lengths: list[int], vocabulary: int, rng: np.random.Generator
) -> tuple[list[dict[str, Any]], SnugBertDataCollatorForPretraining]:
    """Returns pairs, half of them random, and the data collator of PretrainingTrainer."""
    examples = [
        make_example(length, vocabulary, rng) | {"next_sentence_label": index % 2, "mask_seed": index}
        for index, length in enumerate(lengths)
    ]
    return examples, SnugBertDataCollatorForPretraining(SnugBertTokenizer(vocab=make_vocabulary(vocabulary)))


def make_pretraining_batches(
    lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides."""
    examples, collate = make_pretraining_examples(lengths, vocabulary, rng)
    packed = [collate(examples[start : start + batch_size]) for start in range(0, len(examples), batch_size)]
    return {"ours": packed, "stock": [pad_batch(batch, 0) for batch in packed]}


def make_fine_tuning_batches(
    task: str, lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides, with random labels, for "classification" or "tagging"."""
    tokenizer = SnugBertTokenizer(vocab=make_vocabulary(vocabulary))
    pad = (DataCollatorForTokenClassification if task == "tagging" else DataCollatorWithPadding)(tokenizer)
    pack = SnugBertDataCollatorWithPacking()
    features = []
    for length in lengths:
        labels = rng.integers(LABELS, size=length).tolist()
        label = {"labels": labels} if task == "tagging" else {"label": labels[0]}
        features.append(make_example(length, vocabulary, rng) | label)
    parts = [features[start : start + batch_size] for start in range(0, len(features), batch_size)]
    return {
        "ours": [pack(part) for part in parts],
        "stock": [dict(pad([dict(feature) for feature in part])) for part in parts],  # some collators remove labels
    }
