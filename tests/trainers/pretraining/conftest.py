"""Corpora of real text, tokenized, for the tests of pretraining."""

from pathlib import Path

import pytest
from synthetic import make_corpus

import snugbert
from snugbert.trainers.documents import read_documents, split_sentences
from snugbert.trainers.pretraining.corpus import Corpus


@pytest.fixture(scope="session")
def tokenizer(data_dir):
    """The uncased tokenizer of BERT."""
    return snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))


@pytest.fixture(scope="session")
def corpus(data_dir, tokenizer) -> Corpus:
    """The validation text of WikiText-2, in three blocks."""
    return read_corpus(data_dir / "wikitext2/valid.docs.txt.gz", tokenizer)


@pytest.fixture(scope="session")
def corpora(data_dir, tokenizer, corpus) -> dict[str, Corpus]:
    """Books, Wikipedia and WikiText-2."""
    files = {"books_en": "books_en/train-00.txt.gz", "wiki_en": "wiki_en/train.txt.gz"}
    return {name: read_corpus(data_dir / file, tokenizer) for name, file in files.items()} | {"wikitext2": corpus}


def read_corpus(file: Path, tokenizer) -> Corpus:
    documents = []
    for document in read_documents([file]):
        encoded = tokenizer(split_sentences(document, "en"), add_special_tokens=False, verbose=False)
        documents.append([sentence for sentence in encoded["input_ids"] if sentence])
    third = len(documents) // 3
    return make_corpus([documents[:third], documents[third : 2 * third], documents[2 * third :]])
