"""Converts tags of named entities (BIO, IOB1, IOBES, BILOU or BMES) to entities and back."""

import re
from collections.abc import Iterable, Sequence

from seqeval.metrics.sequence_labeling import get_entities

TAG = re.compile(r"O|[BIMELSU]-.+")
BARE_TAG = re.compile(r"[OBIMELSU]")  # without a type
BARE_TYPE = "ENTITY"  # the type of entities whose tags have no type
BARE = " without types"  # follows the name of the scheme if tags have no types
# Scheme -> prefixes of the first, inner, last and only word of an entity. BIO is also called IOB2. IOB1, the scheme of
# CoNLL-2003's original files, uses B- only if an entity directly follows another entity of the same type.
SCHEMES = {
    "bio": ("B", "I", "I", "B"),
    "iob1": ("I", "I", "I", "I"),
    "iobes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
    "bmes": ("B", "M", "E", "S"),
}


def are_entity_tags(tags: Iterable[str]) -> bool:
    """Whether most of the different tags are entity tags. Otherwise they are other tags, such as parts of speech."""
    others = {*tags} - {"O"}
    return 2 * sum(tag[:1] in "BIMELSU" and tag[1:2] in ("", "-") for tag in others) >= len(others)


def are_bare(tags: Iterable[str]) -> bool:
    """Whether tags are B, I and so on, without types."""
    others = {*tags} - {"O"}
    return bool(others) and all(map(BARE_TAG.fullmatch, others))


def add_type(tag: str) -> str:
    """Returns B-ENTITY for B. Tags with a type, and O, stay unchanged."""
    return f"{tag}-{BARE_TYPE}" if BARE_TAG.fullmatch(tag) and tag != "O" else tag


def list_types(tags: Iterable[str]) -> set[str]:
    """Returns the entity types of tags, such as LOC of B-LOC. Labels that are not tags have no type."""
    return {tag[2:] for tag in map(add_type, tags) if TAG.fullmatch(tag)} - {""}


def decode_tags(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the entities of a sentence as (type, first word, last word), for tags of any scheme.

    Invalid tags are read as in `conlleval`: an I- that does not continue an entity begins one.
    """
    iobes_prefixes = {"L-": "E-", "U-": "S-", "M-": "I-"}  # from BILOU and BMES
    return get_entities([iobes_prefixes.get(tag[:2], tag[:2]) + tag[2:] for tag in map(add_type, tags)])


def encode_tags(entities: Iterable[tuple[str, int, int]], num_words: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence. It reverses [`decode_tags`].

    Args:
        entities: (type, first word, last word), from left to right.
        num_words: number of words in the sentence.
        scheme: one of [`SCHEMES`], or its name and [`BARE`].
    """
    tags = ["O"] * num_words
    scheme, bare, _ = scheme.partition(BARE)
    for kind, first, last in entities:
        begin, inside, end, single = SCHEMES[scheme]
        if scheme == "iob1" and first and tags[first - 1][2:] == kind:
            begin = single = "B"
        prefixes = [single] if first == last else [begin, *[inside] * (last - first - 1), end]
        tags[first : last + 1] = [f"{prefix}-{kind}" for prefix in prefixes]
    return [tag[0] if bare and tag[2:] == BARE_TYPE else tag for tag in tags]


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """Returns the tags of a sentence in another scheme. [`decode_tags`] decides how invalid tags are read."""
    return encode_tags(decode_tags(tags), len(tags), scheme)


def find_invalid_tags(tags: Sequence[str], scheme: str) -> list[tuple[int, str]]:
    """Returns the words of a sentence whose tags are invalid in a scheme, each with the tag that `conlleval` reads.

    A tag is invalid in a scheme if [`convert_tags`] changes it.
    """
    pairs = zip(tags, convert_tags(tags, scheme), strict=True)
    return [(word, expected) for word, (tag, expected) in enumerate(pairs) if tag != expected]
