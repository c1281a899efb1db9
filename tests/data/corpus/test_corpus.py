"""A prepared corpus opens in other processes, in libraries and from a bucket. Damaged parts are refused."""

import pickle
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from prepared import content, prepare
from safetensors.numpy import load, save

from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.part_files import make_index, write_index
from snugbert.errors import InputError


def test_datasets_opens_the_parts_and_the_index_counts_what_they_contain(data_dir, tmp_path, tokenizer, small_blocks):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz", num_workers=1)
    documents, counts = content(corpus), corpus.counts
    sentences = [sentence for document in documents for sentence in document]
    assert len(counts.tokens) == len(corpus.blocks) > 5
    assert [corpus.num_documents, corpus.num_sentences] == [len(documents), len(sentences)]
    assert counts.token_ids.tolist() == np.bincount(np.concatenate(sentences)).tolist()
    rows = datasets.Dataset.from_file(str(tmp_path / "part-00000-of-00001.arrow"))
    assert rows["sentences"][:] == documents


def test_a_data_worker_does_not_verify_again(small, words_tokenizer):
    """A token id that was patched after opening is visible in the worker, and refused by the next process."""
    corpus = open_corpus(small.folder, words_tokenizer)
    last_token = corpus.blocks[-1].tokens[-1:].tobytes()
    at = small.bytes.rindex(last_token, 0, -8)
    with small.file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff")
    assert pickle.loads(pickle.dumps(corpus)).blocks[-1].tokens[-1] == 2**16 - 1
    with pytest.raises(InputError, match=r"part-00000-of-00001.arrow is damaged \(the checksum of block .* prepare"):
        content(open_corpus(small.folder, words_tokenizer))


def test_a_part_of_another_corpus_is_refused(small, words_tokenizer):
    for suffix in (".arrow", ".index"):
        small.file.with_name(f"part-00000-of-00002{suffix}").touch()
    with pytest.raises(InputError, match=r"part-00000-of-00001\.arrow and part-00000-of-00002\.arrow belong to diff"):
        open_corpus(small.folder, words_tokenizer)


@pytest.mark.parametrize("change", ["no JSON", "null", '{"settings": 3}'])
def test_metadata_of_another_form_is_refused(small, words_tokenizer, change):
    schema = pa.ipc.open_stream(small.bytes).schema
    header = schema.with_metadata({b"snugbert": change.encode()}).serialize().to_pybytes()
    small.file.write_bytes(header + small.bytes[len(schema.serialize()) :])
    write_index(make_index(small.file), small.file.with_suffix(".index"))
    with pytest.raises(InputError, match=r"is damaged \(not part of a corpus"):
        open_corpus(small.folder, words_tokenizer)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokens", lambda tokens: tokens[:-1]),  # a block less
        ("tokens", lambda tokens: tokens * 0),
        ("offsets", lambda offsets: offsets[::-1].copy()),
        ("offsets", None),
    ],
)
def test_an_inconsistent_index_is_a_clear_error(small, words_tokenizer, name, change):
    index = small.file.with_suffix(".index")
    arrays = load(index.read_bytes())
    values = arrays.pop(name)
    index.write_bytes(save(arrays | ({name: change(values)} if change else {})))
    with pytest.raises(InputError, match=r"part-00000-of-00001\.index is damaged .* Remove this file and prepare"):
        open_corpus(small.folder, words_tokenizer)


# --- blocks of a corpus in a bucket, and their cache ---


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
    """Also an empty one. A whole block of a killed run is used."""
    open_stored(bucket, words_tokenizer, tmp_path / "blocks").blocks.ensure(range(3))
    folder = tmp_path / "blocks"
    (folder / "00000001.block").write_bytes(bytes((folder / "00000001.block").stat().st_size))
    (folder / "00000002.block").write_bytes(b"")
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
