"""Text of all lengths, on which an exported model is compared with the original.

Shapes: B texts of at most L tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from snugbert.data.text_lines import read_text_lines
from snugbert.errors import InputError
from snugbert.families.comparing import Batch

# Several languages and scripts, numbers, code and emoji. Every vocabulary has some of these words and lacks others.
PASSAGE = """
The kettle was still warm when Nora came home, so she made tea and read the letter again. It had taken nine days to
reach her. "We open on the 3rd," her brother wrote, "and I have not slept since." Could she bring the blue chairs?
Bread costs $4.75 in the shop on Mill Lane, but only 3.90 on Saturdays after 5 p.m.; most people wait.
The committee's report (pp. 112-140) found that 62.5 % of the bridges built before 1975 need repairs.
Der Zug nach Köln fährt um 7:42 Uhr ab, falls es nicht schneit. Où est passée la clé du grenier ?
El año pasado llovió más que nunca; los niños jugaban en la plaza. Мы встретились возле старого моста весной.
今日は朝から雨が降っています。北京的冬天很冷。 오늘은 시장에 갔다. القطار يصل في المساء. हम कल नदी के पास मिले।
def area(radius): return 3.14159 * radius ** 2  # see https://example.org/geometry?unit=cm
An enzyme called acetylcholinesterase breaks the signal down within a millisecond. Great news 🎉 the puppies are fine!
She did not like the film at first, yet by the end she was crying and laughing, and so was everyone around her.
"""
BATCH_SIZE = 32
READ_ALONE = ("Model", "ForMaskedLM", "ForTokenClassification", "ForReplacedTokenDetection")  # heads without pairs
SHORTEST = 12  # there are texts of every length up to this many tokens
GROWTH = 1.25  # each longer length is about this many times the previous length


def make_texts(tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[str]:
    """Cuts the passage into texts of 1 token up to more than `max_length` tokens, in an order that mixes lengths."""
    offsets = tokenizer(PASSAGE, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    ends = [end for _, end in offsets]
    lengths = list(range(1, SHORTEST + 1))
    while lengths[-1] < max_length:
        lengths.append(int(lengths[-1] * GROWTH))
    texts = []
    for index, length in enumerate([*lengths, *lengths]):
        start = (37 * index) % len(offsets)  # starts at other words each time
        repeated = PASSAGE[offsets[start][0] :] + PASSAGE * (length // len(offsets) + 1)
        rounds, last = divmod(start + length - 1, len(ends))
        texts.append(repeated[: rounds * len(PASSAGE) + ends[last] - offsets[start][0]].strip())
    return texts[::2] + texts[1::2]


def read_text_file(file: Path, limit: int | None = None) -> list[str]:
    """Reads at most `limit` lines of a text file that are not empty, also from .gz and .zst files."""
    texts: list[str] = []
    for line in read_text_lines(file):
        if line.strip():
            texts.append(line.strip())
        if len(texts) == limit:
            break
    if not texts:
        raise InputError(f"{file}: no text. Expected a text per line.")
    return texts


def make_batches(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    head: str,
    names: Sequence[str],
    max_length: int,
    size: int = BATCH_SIZE,
) -> list[Batch]:
    """Returns padded batches of the texts, in order.

    If the head reads pairs, every second text is paired with the next text, and every text for question answering.
    Multiple choice gets the next three texts as choices. `names` are the inputs to include.
    """
    options: dict[str, Any] = {"truncation": "longest_first", "max_length": max_length}
    features: list[list[Any]] = []  # of each text: one encoding, or one per choice
    for index, text in enumerate(texts):
        partners: list[str | None] = [texts[(index + step) % len(texts)] for step in (1, 2, 3)]
        if head != "ForMultipleChoice":
            is_pair = head == "ForQuestionAnswering" or (head not in READ_ALONE and index % 2)
            partners = partners[:1] if is_pair else [None]
        features.append([tokenizer(text, partner, **options) for partner in partners])
    batches = []
    for start in range(0, len(features), size):
        chosen = features[start : start + size]
        rows = [{name: encoding[name] for name in names} for encodings in chosen for encoding in encodings]
        padded = tokenizer.pad(rows, padding_side="right", return_tensors="np")
        shape = (len(chosen), 3, -1) if head == "ForMultipleChoice" else (len(chosen), -1)
        batches.append({name: np.asarray(padded[name], np.int64).reshape(shape) for name in names})
    return batches
