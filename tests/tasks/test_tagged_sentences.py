"""Tagging schemes: tags to entities and back."""

import random

import pytest
from conll import convert_tags

from snugbert.tasks.tagged_sentences import SCHEMES, TAG, are_entity_tags, decode_tags, encode_tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_entities_survive_every_scheme(scheme):
    generator = random.Random(0)
    for _ in range(200):
        tags: list[str] = []
        while len(tags) < 12:
            kind, length = generator.choice(["O", "PER", "LOC", "PER-X"]), generator.randint(1, 3)
            tags += ["O"] if kind == "O" else [f"B-{kind}", *[f"I-{kind}"] * (length - 1)]
        written = encode_tags(decode_tags(tags), len(tags), scheme)
        assert written == convert_tags(tags, scheme) and all(TAG.fullmatch(tag) for tag in written)
        assert decode_tags(written) == decode_tags(tags)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "B", "I"], True),
        (["B", "M", "E", "S"], True),
        (["O", "B-X", "B_X"], True),  # a mistake
        (["B-"], True),
        ([], True),
        (["NN", "VB", "DT", "O", "S", "I-X"], False),
        (["O", "PER", "LOC"], False),
    ],
)
def test_which_tags_mark_entities(tags, expected):
    assert are_entity_tags(tags) is expected


def test_invalid_tags_are_read_as_conlleval_reads_them():
    assert decode_tags(["O", "I-LOC", "I-PER", "I-PER"]) == [("LOC", 1, 1), ("PER", 2, 3)]
    assert decode_tags(["B-PER", "I-LOC", "I-LOC"]) == [("PER", 0, 0), ("LOC", 1, 2)]
