"""Helpers for the tests on CoNLL-2003."""

from dataclasses import replace

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.conll import Sentence
from snugbert.tasks.base import list_labels
from snugbert.tasks.tagged_sentences import TagSplit
from snugbert.tasks.tagging import Tagging

PARTS = ("train", "validation", "test")


def load_splits(
    parts: tuple[str, ...] | None = None, cache_dir: str | None = None, **arguments
) -> dict[str, TagSplit]:
    """Reads the parts that the arguments of the task select."""
    tagging = Tagging(**arguments)
    return tagging.read_splits(tagging.find_sources(parts, cache_dir=cache_dir))


def choose_labels(splits: dict[str, TagSplit], known: list[str]) -> list[str]:
    """Returns the labels that the task chooses for a checkpoint with the labels `known`."""
    tagging, config = Tagging(), SnugBertConfig(id2label=dict(enumerate(known)))
    tagging.choose_labels(splits, config)
    assert list_labels(config) == tagging.labels
    return tagging.labels


def make_tagging(labels: list[str], tokenizer=None, max_length: int = 128, **arguments) -> Tagging:
    """Returns the task for these labels and this tokenizer."""
    tagging = Tagging(**arguments)
    tagging.labels = labels
    if tokenizer is not None:
        tagging.use_tokenizer(tokenizer, max_length)
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
            inside, last, only = {"iobes": "IES", "bilou": "ILU", "bmes": "MES"}[scheme]
            mark = mark.replace("I", inside) if continues else only if mark == "B" else last
        result.append(f"{mark}-{kind}" if kind else "O")
    return result


def join_documents(split: TagSplit) -> TagSplit:
    """Joins the sentences of each document."""
    documents: dict[object, list[Sentence]] = {}
    for sentence in split.sentences:
        documents.setdefault(sentence.document, []).append(sentence)
    return replace(
        split,
        sentences=[
            Sentence([word for s in ss for word in s.words], [tag for s in ss for tag in s.tags], ss[0].row, document)
            for document, ss in documents.items()
        ],
    )


# name -> change of the sentences, maximum tokens of a window, document context
WAYS = {
    "sentences": (lambda split: split, 128, False),
    "long sentences": (join_documents, 128, False),
    "short windows": (lambda split: split, 12, False),
    "document context": (lambda split: split, 64, True),
}
