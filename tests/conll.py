"""Helpers for the tests on CoNLL-2003."""

import pytest

from snugbert.data.conll import Sentence
from snugbert.tasks.tagging import Tagging, TagSplit
from snugbert.tasks.tagging_arguments import NerDataArguments

PARTS = ("train", "validation", "test")
FILES = dict(zip(PARTS, ("train", "valid", "test"), strict=True))


@pytest.fixture(scope="session")
def conll(data_dir) -> dict[str, TagSplit]:
    """The sentences of CoNLL-2003."""
    files = {f"{part}_file": str(data_dir / "conll2003" / f"{name}.txt.gz") for part, name in FILES.items()}
    return load_splits(PARTS, **files)


def load_splits(
    parts: tuple[str, ...] | None = None, cache_dir: str | None = None, **arguments
) -> dict[str, TagSplit]:
    """Reads the parts that the arguments of the task select."""
    return Tagging(NerDataArguments(**arguments)).load_splits(parts, cache_dir=cache_dir)


def choose_labels(splits: dict[str, TagSplit], known: list[str]) -> list[str]:
    """Returns the labels that the task chooses."""
    tagging = make_tagging([])
    tagging.choose_labels(splits, known)
    return tagging.labels


def make_tagging(labels: list[str], scheme: str | None = None, **arguments) -> Tagging:
    """Returns the task for these labels and the scheme of the data."""
    tagging = Tagging(NerDataArguments(**{"validation_file": __file__, **arguments}))
    tagging.labels, tagging.scheme = labels, scheme
    return tagging


def all_tags(split: TagSplit) -> list[list[str]]:
    return [sentence.tags for sentence in split.sentences]


def convert_tags(tags: list[str], scheme: str) -> list[str]:
    """Converts BIO to another scheme by looking at the neighbors of each tag."""
    result = []
    for before, tag, after in zip(["O", *tags], tags, [*tags[1:], "O"], strict=False):
        mark, kind = tag[0], tag[2:]
        if mark != "O" and scheme == "iob1":
            mark = "B" if mark == "B" and before[2:] == kind else "I"
        elif mark != "O" and scheme != "bio":
            continues = after == f"I-{kind}"
            last, only = {"iobes": "ES", "bilou": "LU"}[scheme]
            mark = mark if continues else only if mark == "B" else last
        result.append(f"{mark}-{kind}" if kind else "O")
    return result


def join_documents(split: TagSplit) -> TagSplit:
    """Joins the sentences of each document."""
    documents: dict[object, list[Sentence]] = {}
    for sentence in split.sentences:
        documents.setdefault(sentence.document, []).append(sentence)
    return split._replace(
        sentences=[
            Sentence([word for s in ss for word in s.words], [tag for s in ss for tag in s.tags], ss[0].row, document)
            for document, ss in documents.items()
        ]
    )


# name -> change of the sentences, maximum tokens of a window, document context
WAYS = {
    "sentences": (lambda split: split, 128, False),
    "long sentences": (join_documents, 128, False),
    "short windows": (lambda split: split, 12, False),
    "document context": (lambda split: split, 64, True),
}
