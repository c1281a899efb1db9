"""Tokenizers and tokenized text for the tests of pretraining."""

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from prepared import prepare
from synthetic import make_corpus

import snugbert
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.documents import read_documents, split_sentences


@pytest.fixture(scope="session")
def tokenizer(data_dir):
    """The uncased tokenizer of BERT."""
    return snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))


@pytest.fixture(scope="session")
def corpus(data_dir, tokenizer) -> Corpus:
    """The validation text of WikiText-2, in three blocks."""
    return read_corpus(data_dir / "wikitext2/valid.docs.txt.gz", tokenizer)


@pytest.fixture(scope="session")
def books(data_dir, tokenizer) -> Corpus:
    return read_corpus(data_dir / "books_en/train-00.txt.gz", tokenizer, share=0.4)


def read_corpus(file: Path, tokenizer, share: float = 1.0) -> Corpus:
    documents, texts = [], list(read_documents([file]))
    for document in texts[: round(share * len(texts))]:
        encoded = tokenizer(split_sentences(document, "en"), add_special_tokens=False, verbose=False)
        documents.append([sentence for sentence in encoded["input_ids"] if sentence])
    third = len(documents) // 3
    return make_corpus([documents[:third], documents[third : 2 * third], documents[2 * third :]])


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and batches of a few documents, so that a short text has many of them."""
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 20_000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 20_000)


@pytest.fixture(scope="session")
def words_tokenizer():
    """A tokenizer of 90 words."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", *(f"w{number}" for number in range(90))]
    return snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})


@pytest.fixture
def small(tmp_path, words_tokenizer, monkeypatch):
    """A corpus of a few short blocks: its folder, its only file, the bytes of this file, and the text."""
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 60)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 100)
    rng = random.Random(0)
    documents = [
        [" ".join(f"w{rng.randrange(90)}" for _ in range(rng.randint(2, 7))) for _ in range(rng.randint(1, 4))]
        for _ in range(20)
    ]
    documents[3][0] += " [MASK] w5"
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(lines) for lines in documents))
    prepare(tmp_path / "corpus", words_tokenizer, tmp_path / "text.txt", language=None, num_workers=1)
    (file,) = (tmp_path / "corpus").glob("*.arrow")
    return SimpleNamespace(folder=tmp_path / "corpus", file=file, bytes=file.read_bytes(), text=tmp_path / "text.txt")
