"""The cache of a corpus in a bucket: damage, what a killed run left, and its limit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from prepared import prepare

from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.errors import InputError

PART = "part-00000-of-00001.arrow"


@pytest.fixture
def stored(tmp_path, words_tokenizer, monkeypatch, bucket):
    """A corpus of 20 small blocks on the disk, and the same in a bucket."""
    monkeypatch.setattr(preparation, "BLOCK_TOKENS", 50)
    monkeypatch.setattr(preparation, "BATCH_CHARACTERS", 50)
    rng = np.random.default_rng(0)
    lines = [" ".join(f"w{word}" for word in rng.integers(90, size=30)) for _ in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    corpus = prepare(tmp_path / "corpus", words_tokenizer, tmp_path / "text.txt", language=None, num_workers=1)
    shutil.copytree(tmp_path / "corpus", bucket.folder / "corpus")
    return corpus


def open_stored(bucket, tokenizer, folder: Path):
    return open_corpus(f"{bucket.url}/corpus", tokenizer, folder)


def equal(corpus, other, numbers) -> bool:
    return all(np.array_equal(corpus.blocks[number].tokens, other.blocks[number].tokens) for number in numbers)


def test_a_damaged_block_in_the_cache_is_downloaded_again(stored, bucket, words_tokenizer, tmp_path):
    """Also what a killed run left: a whole block is used, an unfinished one is removed."""
    open_stored(bucket, words_tokenizer, tmp_path / "blocks").blocks.ensure(range(3))
    folder = tmp_path / "blocks"
    (folder / "00000001.block").write_bytes(bytes((folder / "00000001.block").stat().st_size))
    (folder / "00000002.block").write_bytes(b"")
    (folder / "_00000003.block").write_bytes(b"half")
    (folder / "blocks.lock").write_text("process 1 on another machine")
    corpus = open_stored(bucket, words_tokenizer, folder)
    corpus.blocks.ensure(range(5))
    corpus.blocks.keep(range(5))
    assert equal(corpus, stored, range(5))
    assert sorted(file.name for file in folder.iterdir()) == [f"{number:08d}.block" for number in range(5)]


def test_a_damaged_block_in_the_bucket_is_one_error(stored, bucket, words_tokenizer, tmp_path):
    corpus = open_stored(bucket, words_tokenizer, tmp_path / "blocks")
    file = bucket.folder / "corpus" / PART
    content = bytearray(file.read_bytes())
    content[-40] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{PART} is damaged \(the checksum of block 19 .* prepare the text again"):
        corpus.blocks.ensure(range(20))
    assert equal(corpus, stored, range(19))
    file.write_bytes(content[:-8])
    with pytest.raises(InputError, match=rf"{PART} is damaged \(it has [\d,]+ bytes instead of"):
        open_stored(bucket, words_tokenizer, tmp_path / "blocks")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{PART}: no such file"):
        corpus.blocks.ensure([19])


def test_removing_blocks_touches_neither_the_bucket_nor_a_reader(stored, bucket, words_tokenizer, tmp_path):
    corpus = open_stored(bucket, words_tokenizer, tmp_path / "blocks")
    before = (bucket.folder / "corpus" / PART).read_bytes()
    corpus.blocks.ensure(range(4))
    mapped = corpus.blocks[2].tokens
    corpus.blocks.keep([0])
    assert [file.name for file in (tmp_path / "blocks").iterdir()] == ["00000000.block"]
    assert np.array_equal(mapped, stored.blocks[2].tokens)
    assert (bucket.folder / "corpus" / PART).read_bytes() == before
