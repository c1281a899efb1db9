"""Fixtures that the tests of pretraining share."""

import random
from types import SimpleNamespace

import pytest
from corpora import prepare

import snugbert
from snugbert.trainers.pretraining import preparation


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    return snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and batches of a few documents, so that a small text has many of them."""
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 20_000)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 20_000)


@pytest.fixture(scope="module")
def words_tokenizer():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", *(f"w{number}" for number in range(90))]
    return snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})


@pytest.fixture
def small(tmp_path, words_tokenizer, monkeypatch):
    """A corpus of a few short blocks: its folder, its only file and that file's bytes."""
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
