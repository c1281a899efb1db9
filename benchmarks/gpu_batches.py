"""Batches of random tokens with the lengths of real texts, for both sides of the measurements on a GPU."""

from typing import Any

import numpy as np
from side_by_side import Batch
from transformers import (
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)

from snugbert import SnugBertTokenizer
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.evaluation.held_out_text import pad_batch
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining

# Tokens of a sequence at each 5 % of the distribution, from the shortest to the longest. BERT's uncased vocabulary.
PAIR_LENGTHS = {  # sentence pairs of `snugbert pretrain` from English books
    128: (20, 107, 126, *[128] * 18),
    512: (25, 315, 477, 503, 511, *[512] * 16),
}
GLUE_LENGTHS = {  # training sets, cut at 128 tokens
    "cola": (4, 6, 7, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 17, 20, 32),
    "sst2": (3, 4, 4, 5, 5, 6, 7, 8, 8, 9, 10, 12, 13, 14, 16, 18, 21, 23, 28, 34, 61),
    "stsb": (10, 15, 16, 17, 18, 19, 19, 20, 21, 22, 23, 24, 25, 26, 28, 31, 35, 42, 50, 60, 125),
    "qqp": (11, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31, 33, 35, 38, 42, 47, 55, 128),
    "wnli": (16, 21, 23, 24, 26, 27, 28, 28, 30, 31, 32, 34, 35, 37, 38, 42, 45, 52, 63, 72, 108),
    "mnli": (6, 16, 19, 22, 24, 26, 29, 31, 33, 35, 37, 39, 42, 44, 47, 50, 54, 58, 63, 72, 128),
    "qnli": (14, 27, 30, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 58, 61, 66, 71, 80, 128),
    "mrpc": (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103),
    "rte": (13, 29, 33, 37, 40, 43, 45, 47, 50, 53, 56, 59, 62, 67, 72, 85, 103, 120, 128, 128, 128),
}
HEADS = {
    "pretraining": "PreTraining",
    "masked LM": "MaskedLM",
    "next sentence": "NextSentencePrediction",
    "classification": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "tagging": "TokenClassification",
    "answers": "QuestionAnswering",
    "multiple choice": "MultipleChoice",
}
PRETRAINING_HEADS = ("PreTraining", "MaskedLM")
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


def make_pretraining_batches(
    lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides. Half of the pairs are random."""
    examples = [
        make_example(length, vocabulary, rng) | {"next_sentence_label": index % 2, "mask_seed": index}
        for index, length in enumerate(lengths)
    ]
    tokenizer = SnugBertTokenizer(vocab=make_vocabulary(vocabulary))
    collate = SnugBertDataCollatorForPretraining(tokenizer)
    packed = [collate(examples[start : start + batch_size]) for start in range(0, len(examples), batch_size)]
    return {"ours": packed, "stock": [pad_batch(batch, 0) for batch in packed]}


def make_fine_tuning_batches(
    task: str, lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides, with random labels, for a name in [`HEADS`]."""
    features = [label_example(task, make_example(length, vocabulary, rng), rng) for length in lengths]
    if task == "multiple choice":  # each example has two choices
        pairs = zip(features[::2], features[1::2], strict=True)
        features = [
            {"input_ids": [first["input_ids"], second["input_ids"]], "label": int(rng.integers(2))}
            for first, second in pairs
        ]
    tokenizer = SnugBertTokenizer(vocab=make_vocabulary(vocabulary))
    collators = {"multiple choice": DataCollatorForMultipleChoice, "tagging": DataCollatorForTokenClassification}
    pad = collators.get(task, DataCollatorWithPadding)(tokenizer)
    pack = SnugBertDataCollatorWithPacking()
    parts = [features[start : start + batch_size] for start in range(0, len(features), batch_size)]
    return {
        "ours": [pack(part) for part in parts],
        "stock": [dict(pad([dict(feature) for feature in part])) for part in parts],  # some collators remove labels
    }


def make_task_batches(
    task: str, lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides for a name in [`HEADS`]."""
    if HEADS[task] not in PRETRAINING_HEADS:
        return make_fine_tuning_batches(task, lengths, batch_size, vocabulary, rng)
    batches = make_pretraining_batches(lengths, batch_size, vocabulary, rng)
    if task == "masked LM":
        for batch in (*batches["ours"], *batches["stock"]):
            del batch["next_sentence_label"]
    return batches


def shortest_length(task: str) -> int:
    """Returns the smallest number of tokens for a name in [`HEADS`]. Pretraining needs words to mask."""
    return 5 if HEADS[task] in PRETRAINING_HEADS else 2


def count_labels(task: str) -> int:
    """Returns `num_labels` for a name in [`HEADS`]."""
    return {"regression": 1, "answers": 2}.get(task, LABELS)


def label_example(task: str, example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Adds random labels."""
    length = len(example["input_ids"])
    if task == "answers":
        start, end = sorted(rng.integers(0, length, 2).tolist())
        return {**example, "start_positions": start, "end_positions": end}
    labels: dict[str, Any] = {
        "next sentence": int(rng.integers(2)),
        "multi-label": rng.integers(0, 2, LABELS).astype(float).tolist(),
        "regression": float(rng.random()),
        "tagging": rng.integers(0, LABELS, length).tolist(),
    }
    return {**example, "labels" if task == "tagging" else "label": labels.get(task, int(rng.integers(LABELS)))}
