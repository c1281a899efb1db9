"""A prepared corpus opens in other processes and libraries."""

import pickle
import random

import datasets
import forked
import numpy as np
import pyarrow as pa
import pytest
from prepared import content, prepare

from snugbert.data import preparation
from snugbert.data.corpus import open_corpus
from snugbert.errors import InputError


def test_datasets_opens_the_parts(data_dir, tmp_path, tokenizer):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz")
    rows = datasets.Dataset.from_file(str(tmp_path / "part-00000-of-00001.arrow"))
    assert rows["sentences"][:] == content(corpus)


def test_a_data_worker_does_not_validate_again(small, words_tokenizer):
    """A token id that was patched after opening is visible in the worker, and refused by the next `open_corpus`."""
    corpus = open_corpus(small.folder, words_tokenizer)
    last_token = corpus.blocks[-1].tokens[-1:].tobytes()
    at = small.bytes.rindex(last_token, 0, -8)
    with small.file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff")
    assert pickle.loads(pickle.dumps(corpus)).blocks[-1].tokens[-1] == 2**16 - 1
    with pytest.raises(InputError, match="id 65535 is outside the vocabulary of 98"):
        open_corpus(small.folder, words_tokenizer)


def metadata_positions(stream: bytes) -> list[int]:
    """The positions of the bytes that are not values: the schema, and the layout of each block."""
    positions, start = [], 0
    while start < len(stream):
        length = int.from_bytes(stream[start + 4 : start + 8], "little")
        positions += range(start, start + 8 + length)
        has_body = len(positions) > 8 + length and length > 0
        start += 8 + length + (len(pa.ipc.read_message(stream[start:]).body) if has_body else 0)
    return positions


def make_patches(stream: bytes, number: int) -> list[bytes]:
    """Copies of the stream with a bit, byte, 32-bit or 64-bit number of the metadata changed or removed."""
    rng = random.Random(0)
    positions = metadata_positions(stream)
    patched = []
    for _ in range(number):
        position, size = rng.choice(positions), rng.choice((0, 1, 1, 4, 8))
        position -= position % max(size, 1)
        value = rng.choice((0, 1, 2, -1, 8, 2**size, 10**9, -(2**31), 2**62)) % 256**size
        if size == 1 and rng.random() < 0.5:
            value = stream[position] ^ 1 << rng.randrange(8)
        rest = stream[position + size :] if size else b""
        patched.append(stream[:position] + value.to_bytes(size, "little") + rest)
    return patched


def open_patched(small, tokenizer, log):
    """Opens patched files, and continues patched unfinished ones. Writes each attempt to `log` first."""
    preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS = 60, 100  # as in the fixture
    expected = content(open_corpus(small.folder, tokenizer))
    for number, patched in enumerate(make_patches(small.bytes, 1500)):
        log.write_text(f"case {number}")
        small.file.write_bytes(patched)
        try:
            assert content(open_corpus(small.folder, tokenizer)) == expected
        except InputError as error:
            assert "\n" not in str(error)
        if number % 15 == 0:
            small.file.rename(f"{small.file}.partial")
            corpus = prepare(small.folder, tokenizer, small.text, language=None, num_workers=1)
            assert content(corpus) == expected


def test_a_patched_file_is_refused_or_gives_the_same_content(small, words_tokenizer, tmp_path):
    """Runs in a process of its own, because a patched length that is not refused would crash the process."""
    log = tmp_path / "log"
    process = forked.run(open_patched, small, words_tokenizer, log)
    assert process.returncode == 0, f"{log.read_text()}: {process.stderr}"


def test_a_patched_length_is_refused(small, words_tokenizer):
    """The first block claims a billion tokens instead of a few."""
    tokens = open_corpus(small.folder, words_tokenizer).blocks[0].tokens
    at = small.bytes.index(len(tokens).to_bytes(8, "little"), len(pa.ipc.open_stream(small.bytes).schema.serialize()))
    small.file.write_bytes(small.bytes[:at] + (10**9).to_bytes(8, "little") + small.bytes[at + 8 :])
    with pytest.raises(InputError, match=r"part-00000-of-00001.arrow is damaged .*Remove it and prepare"):
        open_corpus(small.folder, words_tokenizer)


def make_documents(sentences=(0, 2, 3, 4), documents=(0, 2, 3), tokens=(5, 6, 7, 8), kind=None):
    nested = pa.array(tokens, kind or pa.uint16())
    for offsets in (sentences, documents):
        nested = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), nested)
    return nested


DAMAGED = {
    "id": ("token id 98 is outside the vocabulary of 98", make_documents(tokens=(5, 6, 98, 8))),
    "empty sentence": ("invalid boundaries of sentences", make_documents(sentences=(0, 2, 2, 4))),
    "empty document": ("invalid boundaries of sentences", make_documents(documents=(0, 0, 3))),
    "offset back": ("Offset invariant failure|non-monotonic", make_documents(sentences=(0, 3, 2, 4))),
    "offset beyond": ("Offset invariant failure|out of bounds", make_documents(sentences=(0, 2, 10**9, 4))),
    "no id": ("missing values", make_documents(tokens=(5, None, 7, 8))),
    "no document": ("missing values", pa.array([[[5]], None], pa.list_(pa.list_(pa.uint16())))),
    "signed": ("unexpected columns", make_documents(kind=pa.int16())),
    "flat": ("unexpected columns", pa.array([[5], [6]], pa.list_(pa.uint16()))),
}


def write_part(file, columns, metadata):
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata)
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


@pytest.mark.parametrize(
    ("old", "new"), [((0, 2, 3, 4), (1, 2, 3, 4)), ((0, 2, 3, 4), (0, 1, 2, 3)), ((0, 2, 3, 0), (0, 1, 2, 0))]
)
def test_offsets_that_leave_text_out_are_refused(small, words_tokenizer, old, new):
    """Patched in place, because Arrow writes only the values that the offsets span."""
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": make_documents()}, metadata)
    part, (old, new) = small.file.read_bytes(), (np.array(offsets, np.int32).tobytes() for offsets in (old, new))
    small.file.write_bytes(part[: part.rindex(old)] + new + part[part.rindex(old) + len(old) :])
    with pytest.raises(InputError, match="invalid boundaries of sentences"):
        open_corpus(small.folder, words_tokenizer)


def test_documents_out_of_order_a_missing_end_and_a_stray_part_are_refused(small, words_tokenizer):
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    for numbers in ([4, 4], [4, 3], [-1, 3]):
        write_part(small.file, {"document": pa.array(numbers), "sentences": make_documents()}, metadata)
        with pytest.raises(InputError, match="documents are not in order"):
            open_corpus(small.folder, words_tokenizer)
    write_part(small.file, {"sentences": make_documents()}, metadata)
    with pytest.raises(InputError, match="unexpected columns"):
        open_corpus(small.folder, words_tokenizer)
    small.file.write_bytes(small.bytes[:-8])  # Arrow reads a stream without its end marker
    with pytest.raises(InputError, match="truncated"):
        open_corpus(small.folder, words_tokenizer)
    small.file.rename(small.folder / "part-x.arrow")
    with pytest.raises(InputError, match=r"part-x\.arrow does not belong"):
        open_corpus(small.folder, words_tokenizer)


ORIGINS = [
    "no JSON",
    "\xff",
    "[]",
    "null",
    '{"settings": 3}',
    '{"settings": {"format": 1}, "sources": []}',
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
