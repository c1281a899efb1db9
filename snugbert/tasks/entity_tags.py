"""Converts tags of named entities (BIO, IOB1, IOBES or BILOU) to entities and back."""

import re
from collections.abc import Iterable, Sequence

from seqeval.metrics.sequence_labeling import get_entities

TAG = re.compile(r"O|[BIELSU]-.+")
# Scheme -> prefixes of the first, inner, last and only word of an entity. BIO is also called IOB2. IOB1, the scheme of
# CoNLL-2003's original files, uses B- only if an entity directly follows another entity of the same type.
SCHEMES = {
    "bio": ("B", "I", "I", "B"),
    "iob1": ("I", "I", "I", "I"),
    "iobes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
}


def list_types(tags: Iterable[str]) -> set[str]:
    """Returns the entity types of tags, such as LOC of B-LOC. Labels that are not tags have no type."""
    return {tag[2:] for tag in tags if TAG.fullmatch(tag)} - {""}


def decode_tags(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the entities of a sentence as (type, first word, last word), for tags of any scheme.

    Invalid tags are read as in `conlleval`: an I- that does not continue an entity begins one.
    """
    iobes_prefixes = {"L-": "E-", "U-": "S-"}  # from BILOU
    return get_entities([iobes_prefixes.get(tag[:2], tag[:2]) + tag[2:] for tag in tags])


def encode_tags(entities: Iterable[tuple[str, int, int]], num_words: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence. It reverses [`decode_tags`].

    Args:
        entities: (type, first word, last word), from left to right.
        num_words: number of words in the sentence.
        scheme: one of [`SCHEMES`].
    """
    tags = ["O"] * num_words
    for kind, first, last in entities:
        begin, inside, end, single = SCHEMES[scheme]
        if scheme == "iob1" and first and tags[first - 1][2:] == kind:
            begin = single = "B"
        prefixes = [single] if first == last else [begin, *[inside] * (last - first - 1), end]
        tags[first : last + 1] = [f"{prefix}-{kind}" for prefix in prefixes]
    return tags


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Returns the tags of a sentence in another scheme. [`decode_tags`] decides how invalid tags are read."""
    return encode_tags(decode_tags(tags), len(tags), scheme)


def find_invalid_tags(tags: Sequence[str], scheme: str) -> list[tuple[int, str]]:
    """Returns the words of a sentence whose tags are invalid in a scheme, each with the tag that `conlleval` reads.

    A tag is invalid in a scheme if [`convert_tags`] changes it.
    """
    pairs = zip(tags, convert_tags(tags, scheme), strict=True)
    return [(word, expected) for word, (tag, expected) in enumerate(pairs) if tag != expected]
