"""A prepared corpus opens in other processes and libraries."""

import pickle

import datasets
import pyarrow as pa
import pytest
from prepared import content, prepare

from snugbert.data.corpus.corpus import open_corpus
from snugbert.errors import InputError


def test_datasets_opens_the_parts(data_dir, tmp_path, tokenizer):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz")
    rows = datasets.Dataset.from_file(str(tmp_path / "part-00000-of-00001.arrow"))
    assert rows["sentences"][:] == content(corpus)


def test_a_data_worker_does_not_verify_again(small, words_tokenizer):
    """A token id that was patched after opening is visible in the worker, and refused by the next process."""
    corpus = open_corpus(small.folder, words_tokenizer)
    last_token = corpus.blocks[-1].tokens[-1:].tobytes()
    at = small.bytes.rindex(last_token, 0, -8)
    with small.file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff")
    assert pickle.loads(pickle.dumps(corpus)).blocks[-1].tokens[-1] == 2**16 - 1
    changed = open_corpus(small.folder, words_tokenizer)
    with pytest.raises(InputError, match=r"part-00000-of-00001.arrow is damaged \(the checksum of block .* prepare"):
        content(changed)
    (small.folder / "part-00000-of-00001.index").unlink()  # as in parts of an older version
    with pytest.raises(InputError, match="id 65535 is outside the vocabulary of 98"):
        open_corpus(small.folder, words_tokenizer)


def test_a_patched_length_is_refused(small, words_tokenizer):
    """The first block claims a billion tokens instead of a few."""
    tokens = open_corpus(small.folder, words_tokenizer).blocks[0].tokens
    at = small.bytes.index(len(tokens).to_bytes(8, "little"), len(pa.ipc.open_stream(small.bytes).schema.serialize()))
    small.file.write_bytes(small.bytes[:at] + (10**9).to_bytes(8, "little") + small.bytes[at + 8 :])
    with pytest.raises(InputError, match="the checksum of block 0"):
        content(open_corpus(small.folder, words_tokenizer))
    (small.folder / "part-00000-of-00001.index").unlink()
    with pytest.raises(InputError, match=r"part-00000-of-00001.arrow is damaged .*Remove this file and prepare"):
        open_corpus(small.folder, words_tokenizer)


def make_documents(sentences=(0, 2, 3, 4), documents=(0, 2, 3), tokens=(5, 6, 7, 8)):
    nested = pa.array(tokens, pa.uint16())
    for offsets in (sentences, documents):
        nested = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), nested)
    return nested


DAMAGED = {
    "id": ("token id 98 is outside the vocabulary of 98", make_documents(tokens=(5, 6, 98, 8))),
    "offset back": ("Offset invariant failure|non-monotonic", make_documents(sentences=(0, 3, 2, 4))),
    "offset beyond": ("Offset invariant failure|out of bounds", make_documents(sentences=(0, 2, 10**9, 4))),
}


def write_part(file, columns, metadata):
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata)
    file.with_suffix(".index").unlink(missing_ok=True)
    with pa.ipc.new_stream(file, schema) as stream:
        stream.write(pa.record_batch(list(columns.values()), schema=schema))


@pytest.mark.parametrize("case", DAMAGED)
def test_a_block_that_breaks_an_invariant_is_refused(small, words_tokenizer, case):
    message, sentences = DAMAGED[case]
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": make_documents()}, metadata)
    assert content(open_corpus(small.folder, words_tokenizer)) == [[[5, 6], [7]], [[8]]]
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": sentences}, metadata)
    with pytest.raises(InputError, match=f"part-00000-of-00001.arrow is damaged .*({message}).* prepare the text"):
        open_corpus(small.folder, words_tokenizer)


def test_bits_of_words_that_do_not_fit_are_refused(small, words_tokenizer):
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    columns = {"document": pa.array([0, 4]), "sentences": make_documents()}
    write_part(small.file, columns | {"continues_word": pa.array([[False, True, False], [False]])}, metadata)
    (block,) = open_corpus(small.folder, words_tokenizer).blocks
    assert block.read_continuations(0, 4).tolist() == [False, True, False, False]
    for bits in ([[False, True], [False]], [[False, True, None], [False]]):
        write_part(small.file, columns | {"continues_word": pa.array(bits)}, metadata)
        with pytest.raises(InputError, match="word bits for 4 tokens"):
            open_corpus(small.folder, words_tokenizer)


def test_a_missing_end_and_a_stray_part_are_refused(small, words_tokenizer):
    small.file.write_bytes(small.bytes[:-8])  # Arrow reads a stream without its end marker
    with pytest.raises(InputError, match="truncated"):
        open_corpus(small.folder, words_tokenizer)
    small.file.rename(small.folder / "part-x.arrow")
    with pytest.raises(InputError, match=r"part-x\.arrow is not part of a corpus"):
        open_corpus(small.folder, words_tokenizer)
    small.file.with_name("part-00000-of-00002.arrow").write_bytes(small.bytes)
    with pytest.raises(InputError, match=r"part-x\.arrow and part-00000-of-00002\.arrow belong to different corpora"):
        open_corpus(small.folder, words_tokenizer)


ORIGINS = [
    "no JSON",
    "\xff",
    "[]",
    "null",
    '{"settings": 3}',
]


@pytest.mark.parametrize("change", ORIGINS)
def test_metadata_of_another_form_is_refused(small, words_tokenizer, change):
    """`prepare` replaces such a part only if it may."""
    expected = content(open_corpus(small.folder, words_tokenizer))
    schema = pa.ipc.open_stream(small.bytes).schema
    metadata = {b"snugbert": change.encode("latin-1")}
    header = schema.with_metadata(metadata).serialize().to_pybytes()
    small.file.write_bytes(header + small.bytes[len(schema.serialize()) :])
    with pytest.raises(InputError, match=r"is damaged \(not part of a corpus"):
        open_corpus(small.folder, words_tokenizer)
    with pytest.raises(InputError, match="--overwrite_output_dir"):
        prepare(small.folder, words_tokenizer, small.text, language=None)
    assert content(prepare(small.folder, words_tokenizer, small.text, language=None, replace=True)) == expected
