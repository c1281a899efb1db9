"""`snugbert prepare`: text -> word pieces in memory-mapped Arrow, once; what happens when text or disk let it down."""

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
import psutil
import pyarrow as pa
import pytest
from filelock import FileLock

import snugbert
from snugbert.cli import main as snugbert_command
from snugbert.trainers.command_line import InputError
from snugbert.trainers.pretraining import corpus as corpus_module
from snugbert.trainers.pretraining.corpus import open_corpus, parts_of, prepare_corpus
from snugbert.trainers.pretraining.documents import (
    TextArguments,
    find_files,
    read_documents,
    read_lines,
    split_sentences,
)
from snugbert.trainers.pretraining.prepare import prepare_in_cache

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
    prepare_corpus(folder, parts_of(text_of(*files)), tokenizer, show_progress=False, **options)
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
from snugbert.trainers.pretraining.documents import TextArguments

tokenize = corpus._Worker.__call__
corpus._Worker.__call__ = lambda worker, batch: (time.sleep(0.1), tokenize(worker, batch))[1]
corpus.BLOCK_TOKENS = corpus.BATCH_CHARACTERS = 10_000
tokenizer = snugbert.SnugBertTokenizer(vocab=sys.argv[1])
parts = corpus.parts_of(TextArguments(train_file=[sys.argv[2]]))
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
    for part in parts_of(text, shards=3):
        prepare_corpus(tmp_path / "shards", [part], tokenizer, show_progress=False)
    shards = content(open_corpus(tmp_path / "shards", tokenizer))
    assert sorted(shards) == sorted(content(corpus))
    assert open_corpus(tmp_path / "shards", tokenizer).num_documents == 10
    title = TextArguments(dataset_name=str(data), text_column_name="title")
    with pytest.raises(InputError, match="another text, tokenizer or settings"):
        prepare_corpus(tmp_path / "shards", parts_of(title, shards=3), tokenizer, show_progress=False)
    datasets.Dataset.from_dict({"body": rows[:5]}).to_parquet(data / "train.parquet")
    os.utime(data / "train.parquet", (1, 1))
    _, changed = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"), show_progress=False)
    assert changed.num_documents == 5
