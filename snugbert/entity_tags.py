"""Tagging schemes of named entities (BIO, IOB1, IOBES, BILOU): tags to entities and back."""

import re
from collections.abc import Iterable, Sequence

from seqeval.metrics.sequence_labeling import get_entities

TAG = re.compile(r"O|[BIELSU]-.+")
# What the first word of an entity, those within, its last word, and its only word begin with. BIO is also called IOB2.
# IOB1, that of CoNLL-2003's original files, has B- only where an entity touches another of its type before it.
SCHEMES = {
    "bio": ("B", "I", "I", "B"),
    "iob1": ("I", "I", "I", "I"),
    "iobes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
}


def decode_tags(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The entities that tags of any scheme stand for, read as `conlleval` reads them: type, first and last word.

    A tag that its scheme does not allow where it stands is read for what it seems to mean: an I- that continues
    nothing begins an entity.
    """
    standard = {"L-": "E-", "U-": "S-"}  # BILOU's letters, last and unit
    return get_entities([standard.get(tag[:2], tag[:2]) + tag[2:] for tag in tags])


def encode_tags(entities: Iterable[tuple[str, int, int]], number: int, scheme: str) -> list[str]:
    """The tags of `number` words in a scheme, of which [`decode_tags`] makes the same entities.

    Args:
        entities: type, first and last word, from left to right.
        number: of words.
        scheme: one of [`SCHEMES`].
    """
    tags = ["O"] * number
    for kind, first, last in entities:
        begin, inside, end, single = SCHEMES[scheme]
        if scheme == "iob1" and first and tags[first - 1][2:] == kind:
            begin = single = "B"
        marks = [single] if first == last else [begin, *[inside] * (last - first - 1), end]
        tags[first : last + 1] = [f"{mark}-{kind}" for mark in marks]
    return tags
