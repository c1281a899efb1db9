"""`snugbert prepare`: text -> word pieces in memory-mapped Arrow, once; what happens when text or disk let it down."""

import gzip
import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import psutil
import pyarrow as pa
import pytest
from filelock import FileLock

import snugbert
from snugbert.errors import InputError
from snugbert.trainers.documents import TextArguments, find_files, read_documents, read_lines, split_sentences
from snugbert.trainers.pretraining import corpus as corpus_module
from snugbert.trainers.pretraining.corpus import open_corpus, plan_parts, prepare_corpus
from snugbert.trainers.pretraining.examples import ROW, PretrainingDataset
from snugbert.trainers.pretraining.prepare import prepare_in_cache
from snugbert_cli import main as snugbert_command

DOCUMENTS = [["A line. And more of it.", "Another line."], ["Zwei Zeilen, ja."], ["ein Café", "€ 5"]]


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    return snugbert.SnugBertTokenizer(vocab=str(data_dir / "vocab/bert-base-uncased-vocab.txt"))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and batches of a few documents, so that a small text has many of them."""
    monkeypatch.setattr(corpus_module, "BLOCK_TOKENS", 20_000)
    monkeypatch.setattr(corpus_module, "BATCH_CHARACTERS", 20_000)


def text_of(*files) -> TextArguments:
    return TextArguments(train_file=[str(file) for file in files])


def prepare(folder, tokenizer, *files, **options):
    prepare_corpus(folder, plan_parts(text_of(*files)), tokenizer, show_progress=False, **options)
    return open_corpus(folder, tokenizer)


def content(corpus) -> list[list[list[int]]]:
    """Documents of sentences of word pieces."""
    return [
        [
            block.tokens[block.sentences[sentence] : block.sentences[sentence + 1]].tolist()
            for sentence in range(block.documents[document], block.documents[document + 1])
        ]
        for block in corpus.blocks
        for document in range(len(block.documents) - 1)
    ]


# --- documents --------------------------------------------------------------------------------------------------


def write_documents(folder, suffix):
    file = folder / f"text{suffix}"
    if suffix == ".parquet":
        datasets.Dataset.from_dict({"text": ["\n".join(lines) for lines in DOCUMENTS]}).to_parquet(file)
        return file
    if ".jsonl" in suffix:
        plain = "".join(json.dumps({"text": "\n".join(lines)}) + "\n" for lines in DOCUMENTS).encode()
    else:
        plain = "\ufeff".encode() + "\n\n".join("\n".join(lines) for lines in DOCUMENTS).encode()
    if suffix.endswith(".gz"):
        plain = gzip.compress(plain)
    elif suffix.endswith(".zst"):  # in two frames, as parallel compressors write
        plain = b"".join(pa.compress(half, "zstd", asbytes=True) for half in (plain[:20], plain[20:]))
    file.write_bytes(plain)
    return file


SUFFIXES = [".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_holds_the_same_documents(tmp_path, suffix):
    file = write_documents(tmp_path, suffix)
    assert list(read_documents([file])) == DOCUMENTS
    assert list(read_lines([file])) == [line for document in DOCUMENTS for line in document]


def test_files_are_found_by_pattern_once_each(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    found = find_files([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c.jsonl")])
    assert [file.name for file in found] == ["a.txt", "b.txt", "c.jsonl"]


# --- word pieces and boundaries ---------------------------------------------------------------------------------


def test_sentences_and_documents_are_where_they_should_be(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sleep", "run", "."]
    tokenizer = snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
    (tmp_path / "text.txt").write_text("Cats sleep. Sleep run run.\ncats\n\n\x01\n\nRun.\n\n[MASK] run")
    (block,) = prepare(tmp_path / "split", tokenizer, tmp_path / "text.txt").blocks
    assert block.tokens.tolist() == [5, 6, 8, 6, 7, 7, 8, 5, 7, 8, 1, 1, 1, 7]  # [MASK]: no special token
    assert block.sentences.tolist() == [0, 3, 7, 8, 10, 14]
    assert block.documents.tolist() == [0, 3, 4, 5]
    assert block.tokens.dtype == np.uint16
    (block,) = prepare(tmp_path / "lines", tokenizer, tmp_path / "text.txt", language=None).blocks
    assert block.sentences.tolist() == [0, 7, 8, 10, 14]


@pytest.mark.parametrize("cased", [False, True])
def test_word_pieces_are_the_tokenizers_own_in_any_number_of_processes(data_dir, tmp_path, small_blocks, cased):
    """Against the tokenizer on whole sentences, without memory of words; files are the same, byte for byte."""
    vocabulary = data_dir / f"vocab/bert-base-{'cased' if cased else 'uncased'}-vocab.txt"
    tokenizer = snugbert.SnugBertTokenizer(vocab=str(vocabulary), do_lower_case=not cased)
    files = [data_dir / "wikitext2/valid.docs.txt.gz", data_dir / "wiki_en/validation.txt.gz"]
    corpus = prepare(tmp_path / "2", tokenizer, *files, num_workers=2)
    sentences = [split_sentences(document, "en") for document in read_documents(files)]
    expected = [tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"] for document in sentences]
    assert content(corpus) == expected
    assert len(corpus.blocks) > 10
    assert (corpus.num_documents, corpus.num_sentences) == (108, sum(map(len, expected)))
    if not cased:
        again = prepare(tmp_path / "1", tokenizer, *files, num_workers=1)
        assert again.digest == corpus.digest
        (name,) = (file.name for file in (tmp_path / "1").glob("*.arrow"))
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_a_tokenizer_that_looks_across_spaces_gets_whole_sentences(tmp_path, tokenizer):
    """With a token that has a space in it, a word's pieces depend on its neighbour."""
    tokenizer = snugbert.SnugBertTokenizer(tokenizer.get_vocab())
    tokenizer.add_tokens(["new york"])
    (tmp_path / "text.txt").write_text("from new york to new jersey\n")
    expected = tokenizer("from new york to new jersey", add_special_tokens=False)["input_ids"]
    assert len(expected) == 5
    assert content(prepare(tmp_path / "corpus", tokenizer, tmp_path / "text.txt")) == [[expected]]


def test_other_libraries_open_the_parts(data_dir, tmp_path, tokenizer):
    corpus = prepare(tmp_path, tokenizer, data_dir / "wikitext2/valid.docs.txt.gz")
    rows = datasets.Dataset.from_file(str(tmp_path / "part-00000-of-00001.arrow"))
    assert rows["sentences"][:] == content(corpus)


def test_hard_text(tmp_path, tokenizer):
    """Nothing of it is an error: it is text, or it is nothing."""
    lines = {
        "empty.txt": "\n \n\n" * 10_000,
        "empty.jsonl": '{"text": ""}\n{"text": null}\n' * 5_000,
        "one.txt": "A document of one sentence.",
        "half.jsonl": '{"text": "Half a \\ud83d character."}',
        "nul.txt": "One \0 sentence\0. And another.",
        "words.txt": "word " * 2_000_000,
        "unbroken.txt": "x" * 1_000_000,
    }
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    corpus = prepare(tmp_path / "corpus", tokenizer, *(tmp_path / name for name in lines))
    one, half, nul, words, unbroken = content(corpus)
    decoded = [tokenizer.decode(sentence) for sentence in chain(one, half, nul)]
    assert decoded == ["a document of one sentence.", "half a character.", "one sentence.", "and another."]
    assert (len(words), len(words[0]), set(words[0])) == (1, 2_000_000, {tokenizer.vocab["word"]})
    assert unbroken == [[tokenizer.unk_token_id]]  # WordPiece gives up on words of more than 100 characters


# --- once, restartable, never out of date -----------------------------------------------------------------------


def test_an_interrupted_preparation_goes_on_where_it_stopped(data_dir, tmp_path, tokenizer, small_blocks, monkeypatch):
    """Cut off within a block: the result is the file of a straight run, and what was there is not tokenized again."""
    file = data_dir / "wikitext2/valid.docs.txt.gz"
    prepare(tmp_path / "straight", tokenizer, file, num_workers=1)
    (straight,) = (tmp_path / "straight").glob("*.arrow")
    whole = straight.read_bytes()
    partial = tmp_path / "resumed" / f"{straight.name}.partial"
    partial.parent.mkdir()
    tokenized = []
    tokenize = corpus_module._Worker.__call__
    monkeypatch.setattr(
        corpus_module._Worker,
        "__call__",
        lambda worker, batch: tokenized.append(len(batch)) or tokenize(worker, batch),
    )
    for length, fewer in ((len(whole) * 2 // 3, True), (40, False), (len(whole) - 3, True)):
        partial.write_bytes(whole[:length])
        tokenized.clear()
        prepare(partial.parent, tokenizer, file, num_workers=1)
        assert partial.with_suffix("").read_bytes() == whole
        assert (sum(tokenized) < 40) == fewer  # of 60 documents
        partial.with_suffix("").unlink()
    # What another tokenizer began is of no use.
    other = snugbert.SnugBertTokenizer({**tokenizer.get_vocab(), "zzzz": len(tokenizer)})
    partial.write_bytes(whole[: len(whole) * 2 // 3])
    prepare(partial.parent, other, file, num_workers=1)
    assert content(open_corpus(partial.parent, other)) == content(open_corpus(tmp_path / "straight", tokenizer))


SLOW_PREPARATION = """
import sys, time
from pathlib import Path
import snugbert
from snugbert.trainers.pretraining import corpus
from snugbert.trainers.documents import TextArguments

tokenize = corpus._Worker.__call__
corpus._Worker.__call__ = lambda worker, batch: (time.sleep(0.1), tokenize(worker, batch))[1]
corpus.BLOCK_TOKENS = corpus.BATCH_CHARACTERS = 10_000
tokenizer = snugbert.SnugBertTokenizer(vocab=sys.argv[1])
parts = corpus.plan_parts(TextArguments(train_file=[sys.argv[2]]))
corpus.prepare_corpus(Path(sys.argv[3]), parts, tokenizer, num_workers=2, show_progress=False)
"""


def test_a_killed_preparation_leaves_no_process_and_no_lock(data_dir, tmp_path):
    arguments = [data_dir / "vocab/bert-base-uncased-vocab.txt", data_dir / "wikitext2/valid.docs.txt.gz", tmp_path]
    process = subprocess.Popen([sys.executable, "-c", SLOW_PREPARATION, *map(str, arguments)])
    partial = tmp_path / "part-00000-of-00001.arrow.partial"
    while not partial.exists() or partial.stat().st_size < 50_000:
        assert process.poll() is None
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    # From Python 3.14 on, a pool also starts a process that looks after shared memory.
    children = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    assert len(children) == 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    with FileLock(tmp_path / ".part-00000-of-00001.arrow.lock", timeout=20):
        assert not list(tmp_path.glob("*.arrow"))


def test_a_changed_text_is_never_taken_for_the_old_one(tmp_path, tokenizer):
    file, cache = tmp_path / "text.txt", str(tmp_path / "cache")
    file.write_text("Old words here.\n\nAnd here.\n")

    def prepared(**options):
        return prepare_in_cache(text_of(file), tokenizer, "en", cache, show_progress=False, **options)

    folder, old = prepared()
    stamp = next(folder.glob("*.arrow")).stat().st_mtime_ns
    assert prepared()[1].digest == old.digest
    os.utime(file)  # touched, not changed
    assert prepared()[1].digest == old.digest
    assert next(folder.glob("*.arrow")).stat().st_mtime_ns == stamp
    stat = file.stat()
    file.write_text("New words here.\n\nAnd here.\n")  # of the same size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    folder_of_new, new = prepared()
    assert folder_of_new == folder and new.digest != old.digest
    assert tokenizer.decode(content(new)[0][0]) == "new words here."
    assert prepared(documents="half", keeps=lambda number: number == 1)[1].num_documents == 1


def test_a_corpus_is_refused_with_another_tokenizer_or_in_part(tmp_path, tokenizer, capsys):
    names = [f"{name}.txt" for name in "abcde"]
    for name in names:
        (tmp_path / name).write_text(f"Text of {name}. With two sentences.\n\nAnd two documents.\n")
    tokenizer.save_pretrained(tmp_path / "tok")
    whole = prepare(tmp_path / "whole", tokenizer, *(tmp_path / name for name in names))
    arguments = ["prepare", "--tokenizer_name", str(tmp_path / "tok"), "--train_file", str(tmp_path / "*.txt")]
    store = tmp_path / "store"
    for shard in ("3/3", "1/3"):
        assert snugbert_command([*arguments, "--output_dir", str(store), "--shard", shard]) == 0
    assert "1 of 3 parts are not there yet: part-00001-of-00003.arrow" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"part-00001-of-00003\.arrow is missing"):
        open_corpus(store, tokenizer)
    assert snugbert_command([*arguments, "--output_dir", str(store), "--shard", "2/3"]) == 0
    assert "snugbert pretrain" in capsys.readouterr().out
    assert content(open_corpus(store, tokenizer)) == content(whole)
    other = snugbert.SnugBertTokenizer({**tokenizer.get_vocab(), "zzzz": len(tokenizer)})
    with pytest.raises(InputError, match="was prepared with another tokenizer"):
        open_corpus(store, other)
    # Parts of another text, division or settings are not mixed in.
    (tmp_path / "other").mkdir()
    for name in names[:3]:
        shutil.copy(tmp_path / name, tmp_path / "other")
    others = [*arguments[:-1], str(tmp_path / "other/*.txt")]
    assert snugbert_command([*others, "--output_dir", str(store), "--shard", "1/3"]) == 2
    assert "of another text, tokenizer or settings" in capsys.readouterr().err
    assert snugbert_command([*arguments, "--output_dir", str(store), "--shard", "1/2"]) == 2
    assert "of another text, tokenizer or settings" in capsys.readouterr().err
    assert snugbert_command([*arguments, "--output_dir", str(store), "--lines_are_sentences", "true"]) == 2
    part = store / "part-00001-of-00003.arrow"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"part-00001-of-00003.arrow is damaged .*prepare"):
        open_corpus(store, tokenizer)
    shutil.rmtree(store)
    with pytest.raises(InputError, match="holds no prepared corpus"):
        open_corpus(store, tokenizer)


BAD = [
    (["--shard", "4/3"], "must be i/n with i from 1 to n"),
    (["--shard", "1/9"], "1 files cannot be shared among 9 shards"),
    (["--preprocessing_num_workers", "0"], "must be at least 1"),
    (["--train_file", "nowhere.txt"], "there is no file nowhere.txt"),
    (["--output_dir", "text.txt"], "text.txt: "),
    (["--train_file", "cut.txt.zst"], "not a whole Zstandard file"),
]


@pytest.mark.parametrize(("more", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input_is_one_sentence(tmp_path, tokenizer, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tok")
    Path("text.txt").write_text("A text.\n")
    Path("cut.txt.zst").write_bytes(pa.compress(b"A text.\n" * 1000, "zstd", asbytes=True)[:-4])
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "text.txt", "--output_dir", "out"]
    assert snugbert_command([*arguments, *more]) == 2
    error = capsys.readouterr().err.rpartition("snugbert prepare: error: ")[2]
    assert message in error and len(error.splitlines()) == 1
    assert not list(Path(".").glob("out/part-*.arrow"))


def test_a_full_disk_is_one_sentence_and_loses_nothing(data_dir, tmp_path, tokenizer):
    """A limit on the size of files stands for a full disk; afterwards the same command goes on."""
    tokenizer.save_pretrained(tmp_path / "tok")
    file = data_dir / "wikitext2/valid.docs.txt.gz"
    prepare(tmp_path / "straight", tokenizer, file)
    arguments = ["prepare", "--tokenizer_name", str(tmp_path / "tok"), "--train_file", str(file)]
    command = [sys.executable, "-m", "snugbert", *arguments, "--output_dir", str(tmp_path / "corpus")]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    process = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert process.returncode == 2
    error = process.stderr.rpartition("snugbert prepare: error: ")[2]
    assert "File too large; what has been prepared stays" in error and len(error.splitlines()) == 1
    assert not list((tmp_path / "corpus").glob("*.arrow"))
    with pytest.raises(InputError, match="holds no prepared corpus"):
        open_corpus(tmp_path / "corpus", tokenizer)
    assert snugbert_command([*arguments, "--output_dir", str(tmp_path / "corpus")]) == 0
    assert content(open_corpus(tmp_path / "corpus", tokenizer)) == content(
        open_corpus(tmp_path / "straight", tokenizer)
    )


def test_a_dataset_is_prepared_by_rows_and_notices_a_change(tmp_path, tokenizer):
    rows = [f"Row {number}. It has two sentences." for number in range(10)]
    data = tmp_path / "data"
    datasets.Dataset.from_dict({"body": rows}).to_parquet(data / "train.parquet")
    text = TextArguments(dataset_name=str(data), text_column_name="body")
    _, corpus = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"), show_progress=False)
    assert [tokenizer.decode(document[0]) for document in content(corpus)] == [
        f"row {number}." for number in range(10)
    ]
    for part in plan_parts(text, shards=3):
        prepare_corpus(tmp_path / "shards", [part], tokenizer, show_progress=False)
    shards = content(open_corpus(tmp_path / "shards", tokenizer))
    assert sorted(shards) == sorted(content(corpus))
    assert open_corpus(tmp_path / "shards", tokenizer).num_documents == 10
    title = TextArguments(dataset_name=str(data), text_column_name="title")
    with pytest.raises(InputError, match="another text, tokenizer or settings"):
        prepare_corpus(tmp_path / "shards", plan_parts(title, shards=3), tokenizer, show_progress=False)
    datasets.Dataset.from_dict({"body": rows[:5]}).to_parquet(data / "train.parquet")
    os.utime(data / "train.parquet", (1, 1))
    _, changed = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"), show_progress=False)
    assert changed.num_documents == 5


# --- a damaged corpus -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words_tokenizer():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask", *(f"w{number}" for number in range(90))]
    return snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})


@pytest.fixture
def small(tmp_path, words_tokenizer, monkeypatch):
    """A corpus of a few short blocks: its folder, its only file and that file's bytes."""
    monkeypatch.setattr(corpus_module, "BLOCK_TOKENS", 60)
    monkeypatch.setattr(corpus_module, "BATCH_CHARACTERS", 100)
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


def metadata_of(stream: bytes) -> list[int]:
    """The positions of an Arrow stream that are not values: its schema, and the layout of each block."""
    positions, start = [], 0
    while start < len(stream):
        length = int.from_bytes(stream[start + 4 : start + 8], "little")
        positions += range(start, start + 8 + length)
        has_body = len(positions) > 8 + length and length > 0
        start += 8 + length + (len(pa.ipc.read_message(stream[start:]).body) if has_body else 0)
    return positions


def patches(stream: bytes, number: int) -> list[bytes]:
    """The stream with a bit, byte, 32-bit or 64-bit number of its metadata changed, or cut off."""
    rng = random.Random(0)
    positions = metadata_of(stream)
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
    """Opens patched files and resumes patched unfinished ones. Writes each attempt to `log` first."""
    corpus_module.BLOCK_TOKENS, corpus_module.BATCH_CHARACTERS = 60, 100  # as in the fixture
    expected = content(open_corpus(small.folder, tokenizer))
    for number, patched in enumerate(patches(small.bytes, 1500)):
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


def test_a_patched_file_is_refused_or_the_same(small, words_tokenizer, tmp_path):
    """In a process of its own: before files were validated, a patched length ended it with a signal."""
    log = tmp_path / "log"
    process = multiprocessing.get_context("spawn").Process(target=open_patched, args=(small, words_tokenizer, log))
    process.start()
    process.join(120)
    process.kill()
    assert process.exitcode == 0, log.read_text()


def test_a_patched_length_is_refused(small, words_tokenizer):
    """A billion word pieces instead of a few in the first block."""
    tokens = open_corpus(small.folder, words_tokenizer).blocks[0].tokens
    at = small.bytes.index(len(tokens).to_bytes(8, "little"), len(pa.ipc.open_stream(small.bytes).schema.serialize()))
    small.file.write_bytes(small.bytes[:at] + (10**9).to_bytes(8, "little") + small.bytes[at + 8 :])
    with pytest.raises(InputError, match=r"part-00000-of-00001.arrow is damaged .*Remove it and prepare"):
        open_corpus(small.folder, words_tokenizer)


def documents_of(sentences=(0, 2, 3, 4), documents=(0, 2, 3), tokens=(5, 6, 7, 8), kind=None):
    nested = pa.array(tokens, kind or pa.uint16())
    for offsets in (sentences, documents):
        nested = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), nested)
    return nested


DAMAGED = {
    "id": ("word piece id 98 is outside the vocabulary of 98", documents_of(tokens=(5, 6, 98, 8))),
    "empty sentence": ("overlap, are empty", documents_of(sentences=(0, 2, 2, 4))),
    "empty document": ("overlap, are empty", documents_of(documents=(0, 0, 3))),
    "offset back": ("Offset invariant failure|non-monotonic", documents_of(sentences=(0, 3, 2, 4))),
    "offset beyond": ("Offset invariant failure|out of bounds", documents_of(sentences=(0, 2, 10**9, 4))),
    "no id": ("missing values", documents_of(tokens=(5, None, 7, 8))),
    "no document": ("missing values", pa.array([[[5]], None], pa.list_(pa.list_(pa.uint16())))),
    "signed": ("other columns", documents_of(kind=pa.int16())),
    "flat": ("other columns", pa.array([[5], [6]], pa.list_(pa.uint16()))),
}


def write_part(file, columns, metadata):
    schema = pa.schema([(name, column.type) for name, column in columns.items()], metadata)
    with pa.ipc.new_stream(file, schema) as stream:
        stream.write(pa.record_batch(list(columns.values()), schema=schema))


@pytest.mark.parametrize("case", DAMAGED)
def test_a_broken_promise_is_refused(small, words_tokenizer, case):
    message, sentences = DAMAGED[case]
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": documents_of()}, metadata)
    assert content(open_corpus(small.folder, words_tokenizer)) == [[[5, 6], [7]], [[8]]]
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": sentences}, metadata)
    with pytest.raises(InputError, match=f"part-00000-of-00001.arrow is damaged .*({message}).* prepare the text"):
        open_corpus(small.folder, words_tokenizer)


@pytest.mark.parametrize(
    ("old", "new"), [((0, 2, 3, 4), (1, 2, 3, 4)), ((0, 2, 3, 4), (0, 1, 2, 3)), ((0, 2, 3, 0), (0, 1, 2, 0))]
)
def test_offsets_that_leave_text_out_are_refused(small, words_tokenizer, old, new):
    """In place, because Arrow writes only what the offsets span."""
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    write_part(small.file, {"document": pa.array([0, 4]), "sentences": documents_of()}, metadata)
    part, (old, new) = small.file.read_bytes(), (np.array(offsets, np.int32).tobytes() for offsets in (old, new))
    small.file.write_bytes(part[: part.rindex(old)] + new + part[part.rindex(old) + len(old) :])
    with pytest.raises(InputError, match="leave word pieces out"):
        open_corpus(small.folder, words_tokenizer)


def test_documents_out_of_order_and_a_missing_end_are_refused(small, words_tokenizer):
    metadata = pa.ipc.open_stream(small.bytes).schema.metadata
    for numbers in ([4, 4], [4, 3], [-1, 3]):
        write_part(small.file, {"document": pa.array(numbers), "sentences": documents_of()}, metadata)
        with pytest.raises(InputError, match="documents are not in order"):
            open_corpus(small.folder, words_tokenizer)
    write_part(small.file, {"sentences": documents_of()}, metadata)
    with pytest.raises(InputError, match="other columns"):
        open_corpus(small.folder, words_tokenizer)
    small.file.write_bytes(small.bytes[:-8])  # after the last block, where Arrow sees a whole stream
    with pytest.raises(InputError, match="its end is missing"):
        open_corpus(small.folder, words_tokenizer)
    small.file.rename(small.folder / "part-x.arrow")
    with pytest.raises(InputError, match=r"part-x\.arrow does not belong"):
        open_corpus(small.folder, words_tokenizer)


ORIGINS = [
    "no JSON",
    "\xff",
    "[" * 100_000,
    "[]",
    "null",
    '{"settings": 3}',
    '{"settings": {"format": 1}, "sources": []}',
]


@pytest.mark.parametrize("change", [*ORIGINS, "tokenizer", "sources", "name", "identity"])
def test_metadata_of_another_form_is_refused(small, words_tokenizer, change):
    """`prepare` makes such a part again, if it may replace what is there."""
    expected = content(open_corpus(small.folder, words_tokenizer))
    schema = pa.ipc.open_stream(small.bytes).schema
    origin = json.loads(schema.metadata[b"snugbert"])
    if change == "tokenizer":
        origin["settings"]["tokenizer"] = ["a list"]
    elif change == "sources":
        origin["sources"] = {"name": "text.txt"}
    elif change in ("name", "identity"):
        origin["sources"][0][change] = [["a", "list"]]
    metadata = {b"snugbert": change.encode("latin-1") if change in ORIGINS else json.dumps(origin).encode()}
    header = schema.with_metadata(metadata).serialize().to_pybytes()
    small.file.write_bytes(header + small.bytes[len(schema.serialize()) :])
    with pytest.raises(InputError, match=r"is damaged \(it is not a part of a corpus"):
        open_corpus(small.folder, words_tokenizer)
    with pytest.raises(InputError, match="--overwrite_output_dir"):
        prepare(small.folder, words_tokenizer, small.text, language=None)
    assert content(prepare(small.folder, words_tokenizer, small.text, language=None, replace=True)) == expected


def test_a_data_worker_does_not_validate_again(small, words_tokenizer):
    corpus = open_corpus(small.folder, words_tokenizer)
    last_token = corpus.blocks[-1].tokens[-1:].tobytes()
    at = small.bytes.rindex(last_token, 0, -8)
    with small.file.open("r+b") as stream:
        stream.seek(at)
        stream.write(b"\xff\xff")
    assert pickle.loads(pickle.dumps(corpus)).blocks[-1].tokens[-1] == 2**16 - 1
    with pytest.raises(InputError, match="id 65535 is outside the vocabulary of 98"):
        open_corpus(small.folder, words_tokenizer)


def pairs(corpus, folder):
    return PretrainingDataset(corpus, 2, 3, folder, max_seq_length=16)


def test_a_table_of_examples_that_was_cut_off_is_made_again(small, words_tokenizer, tmp_path):
    corpus = open_corpus(small.folder, words_tokenizer)
    expected = len(pairs(corpus, tmp_path / "epochs"))
    (table,) = (tmp_path / "epochs").glob("*.examples")
    whole = table.read_bytes()
    assert len(whole) == expected * ROW.itemsize
    for length in (0, 20, len(whole) - 1):
        table.write_bytes(whole[:length])
        assert len(pairs(corpus, tmp_path / "epochs")) == expected
        assert table.read_bytes() == whole


# --- other systems ----------------------------------------------------------------------------------------------


def test_processes_that_are_not_forked_do_the_same(small, words_tokenizer, tmp_path, monkeypatch):
    """As on macOS and Windows: what they need is pickled. The files are the same, byte for byte."""
    written = []
    for system in ("linux", "darwin"):
        monkeypatch.setattr(corpus_module, "sys", SimpleNamespace(platform=system))
        folder = tmp_path / system
        corpus = prepare(folder, words_tokenizer, small.text, language=None, num_workers=2)
        pairs(corpus, folder)
        written.append([file.read_bytes() for file in sorted(folder.iterdir()) if "lock" not in file.name])
    assert len(written[0]) == 2 and written[0][1] == small.bytes
    assert written[0] == written[1]


# --- the cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(small, words_tokenizer, tmp_path):
    """The folders of two prepared texts, a whole one and an unfinished one that was used later."""
    other = tmp_path / "other.txt"
    other.write_text("w1 w2\n\nw3\n")
    folders = []
    for file in (small.text, other):
        folder, _ = prepare_in_cache(
            text_of(file), words_tokenizer, None, str(tmp_path / "cache"), num_workers=1, show_progress=False
        )
        folders.append(folder)
    (part,) = folders[1].glob("*.arrow")
    part.rename(f"{part}.partial")
    os.utime(folders[0], (0, 0))
    return folders


def test_the_cache_is_listed(cache, tmp_path, capsys):
    arguments = ["prepare", "--cache_dir", str(tmp_path / "cache")]
    assert snugbert_command([*arguments, "--list"]) == 0
    header, whole, unfinished, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "size", "last", "used", "state", "text", "settings"]
    assert whole.startswith(f"{cache[0].name}  ") and unfinished.startswith(f"{cache[1].name}  ")
    assert " 1970-01-01 " in whole and " whole " in whole and " text.txt " in whole
    assert " unfinished " in unfinished and " other.txt " in unfinished and " lines, all, tokenizer " in unfinished
    assert total.startswith("total: 2, ") and total.endswith(str(tmp_path / "cache" / "snugbert"))
    (part,) = cache[0].glob("*.arrow")
    part.write_bytes(b"nothing")
    assert snugbert_command([*arguments, "--list"]) == 0
    assert " damaged" in capsys.readouterr().out
    assert snugbert_command(["prepare", "--list", "--cache_dir", str(tmp_path / "nowhere")]) == 0
    assert "total: 0, " in capsys.readouterr().out


def test_the_cache_is_cleaned_and_nothing_else(cache, tmp_path, capsys):
    root = cache[0].parent
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "part-00000-of-00001.arrow").write_text("precious")
    (root / ("0" * 32)).symlink_to(elsewhere)  # named like ours
    (root / "model").mkdir()
    (root / "notes.txt").write_text("precious")
    foreign = root / ("1" * 32)  # named like ours, but with something that we do not write
    foreign.mkdir()
    (foreign / "part-00000-of-00001.arrow").symlink_to(elsewhere / "part-00000-of-00001.arrow")
    kept = {*elsewhere.rglob("*"), root / ("0" * 32), root / "model", root / "notes.txt", *foreign.iterdir()}
    clean = ["prepare", "--cache_dir", str(tmp_path / "cache"), "--clean"]

    assert snugbert_command([*clean, cache[0].name, "2" * 32]) == 2  # an unknown name: nothing is removed
    assert f"no prepared text named {'2' * 32} in {root}" in capsys.readouterr().err
    assert snugbert_command([*clean, "0" * 32]) == 2
    size = sum(file.stat().st_size for file in cache[0].iterdir())
    with FileLock(cache[1] / ".part-00000-of-00001.arrow.lock"):
        assert snugbert_command([*clean, "all"]) == 2
    output = capsys.readouterr()
    assert not cache[0].exists() and list(cache[1].glob("*.partial"))
    assert f"removed {cache[0].name}" in output.out and f"{size / 1000:.2f}kB freed" in output.out
    assert f"{cache[1].name} (a process is preparing it)" in output.err
    assert f"{foreign.name} (contains part-00000-of-00001.arrow, which SnugBERT did not write)" in output.err
    assert snugbert_command([*clean, cache[1].name, "--list"]) == 0
    assert not cache[1].exists()
    assert "total: 1, " in capsys.readouterr().out  # the foreign one
    assert all(path.exists() for path in kept)
    assert (elsewhere / "part-00000-of-00001.arrow").read_text() == "precious"


def test_only_the_cache_needs_no_text(tmp_path, capsys):
    assert snugbert_command(["prepare", "--tokenizer_name", "tok", "--train_file", "text.txt"]) == 2
    assert "--output_dir" in capsys.readouterr().err
    assert snugbert_command(["prepare", "--train_file", "text.txt", "--clean", "all"]) == 2
    assert "--clean and --list prepare no text" in capsys.readouterr().err
