"""Preparing a corpus: its content, the Python API, interruptions and full disks."""

import errno
import json
import os
import resource
import signal
import time
from itertools import islice
from unittest.mock import Mock

import datasets
import forked
import numpy as np
import psutil
import pytest
from prepared import content, prepare, text_arguments

import snugbert
from snugbert.data import tokenizing as document_tokenizer
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_in_cache
from snugbert.data.data_arguments import TextArguments
from snugbert.data.documents import read_documents
from snugbert.errors import InputError
from snugbert.files import lock_file
from snugbert_cli import main as snugbert_command


def test_boundaries_of_sentences_and_documents_by_hand(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cats", "sleep", "run", "."]
    tokenizer = snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})
    (tmp_path / "text.txt").write_text("Cats sleep. Sleep run run.\ncats\n\n\x01\n\nRun.\n\n[MASK] run")
    (block,) = prepare(tmp_path / "split", tokenizer, tmp_path / "text.txt").blocks
    assert block.tokens.tolist() == [5, 6, 8, 6, 7, 7, 8, 5, 7, 8, 1, 1, 1, 7]  # "[MASK]" is not the special token
    assert block.sentences.tolist() == [0, 3, 7, 8, 10, 14]
    assert block.documents.tolist() == [0, 3, 4, 5]
    assert block.tokens.dtype == np.uint16
    (block,) = prepare(tmp_path / "lines", tokenizer, tmp_path / "text.txt", language=None).blocks
    assert block.sentences.tolist() == [0, 7, 8, 10, 14]


def test_python_and_the_command_write_the_same_bytes(tmp_path, tokenizer):
    for name in "ab":
        rows = [{"body": f"Document {number} of {name} has a sentence. And another."} for number in range(10)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pattern = str(tmp_path / "*.jsonl")
    options = {"text_column_name": "body", "lines_are_sentences": True, "preprocessing_num_workers": 1}
    corpus = snugbert.prepare_corpus([pattern], tokenizer, tmp_path / "python", **options, show_progress=False)
    tokenizer.save_pretrained(tmp_path / "tok")
    flags = [argument for name, value in options.items() for argument in (f"--{name}", str(value))]
    arguments = ["--tokenizer_name", str(tmp_path / "tok"), "--train_file", pattern, *flags]
    assert snugbert_command(["prepare", *arguments, "--output_dir", str(tmp_path / "command")]) == 0
    first, second = (tmp_path / folder / "part-00000-of-00001.arrow" for folder in ("python", "command"))
    assert first.read_bytes() == second.read_bytes()
    assert corpus.num_documents == corpus.num_sentences == 20
    assert snugbert.open_corpus(str(tmp_path / "command"), tokenizer).digest == corpus.digest
    # Other settings replace the corpus only on request.
    with pytest.raises(InputError, match="has other settings"):
        snugbert.prepare_corpus(pattern, tokenizer, str(tmp_path / "python"), text_column_name="body")
    options = {"text_column_name": "body", "overwrite_output_dir": True, "show_progress": False}
    assert snugbert.prepare_corpus(pattern, tokenizer, tmp_path / "python", **options).num_sentences == 40


def prepare_slowly(tokenizer, file, folder):
    tokenize = document_tokenizer.DocumentTokenizer.__call__
    document_tokenizer.DocumentTokenizer.__call__ = lambda worker, batch: (time.sleep(0.1), tokenize(worker, batch))[1]
    preparation.BLOCK_TOKENS = preparation.BATCH_CHARACTERS = 10_000
    snugbert.prepare_corpus(file, tokenizer, folder, preprocessing_num_workers=2, show_progress=False)


@pytest.mark.slow
def test_a_killed_preparation_leaves_no_process_and_no_lock(data_dir, tmp_path, tokenizer):
    text = data_dir / "wikitext2/valid.docs.txt.gz"
    process = forked.start(prepare_slowly, tokenizer, text, tmp_path)
    part = tmp_path / "part-00000-of-00001.arrow"
    while not part.exists() or part.stat().st_size < 20_000:
        assert psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE, process.stderr
        time.sleep(0.02)
    children = psutil.Process(process.pid).children(recursive=True)
    # From Python 3.14 on, a pool also starts a process that tracks shared memory.
    children = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    assert len(children) == 2
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    with lock_file(tmp_path / ".part-00000-of-00001.arrow.lock", seconds=20):
        assert not part.with_suffix(".index").exists()
    continued, straight = (prepare(folder, tokenizer, text) for folder in (tmp_path, tmp_path / "straight"))
    assert content(continued) == content(straight)


def prepare_on_a_full_disk(arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    return snugbert_command(arguments)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(data_dir, tmp_path, tokenizer):
    """A limit on the file size stands in for a full disk. Without it, the same command continues."""
    tokenizer.save_pretrained(tmp_path / "tok")
    file = tmp_path / "text.txt"
    documents = islice(read_documents([data_dir / "wikitext2/valid.docs.txt.gz"]), 20)
    file.write_text("\n\n".join(map("\n".join, documents)), encoding="utf-8")
    prepare(tmp_path / "straight", tokenizer, file)
    arguments = ["prepare", "--tokenizer_name", str(tmp_path / "tok"), "--train_file", str(file)]
    process = forked.run(prepare_on_a_full_disk, [*arguments, "--output_dir", str(tmp_path / "corpus")])
    assert process.returncode == 2
    error = process.stderr.rpartition("snugbert prepare: error: ")[2]
    assert "could not be written: [Errno 27] File too large. The disk is probably full. Free some space and" in error
    assert len(error.splitlines()) == 1
    with pytest.raises(InputError, match=r"contains no prepared corpus"):
        open_corpus(tmp_path / "corpus", tokenizer)
    assert snugbert_command([*arguments, "--output_dir", str(tmp_path / "corpus")]) == 0
    both = [content(open_corpus(tmp_path / name, tokenizer)) for name in ("corpus", "straight")]
    assert both[0] == both[1]


def test_rows_of_a_dataset_are_documents_and_a_change_is_noticed(tmp_path, tokenizer):
    rows = [f"Row {number}. It has two sentences." for number in range(10)]
    data = tmp_path / "data"
    datasets.Dataset.from_dict({"body": rows}).to_parquet(data / "train.parquet")
    text = TextArguments(dataset_name=str(data), text_column_name="body")
    corpus = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"))
    decoded = [[tokenizer.decode(sentence) for sentence in document] for document in content(corpus)]
    assert decoded == [[f"row {number}.", "it has two sentences."] for number in range(10)]
    datasets.Dataset.from_dict({"body": rows[:5]}).to_parquet(data / "train.parquet")
    os.utime(data / "train.parquet", (1, 1))
    changed = prepare_in_cache(text, tokenizer, "en", str(tmp_path / "cache"))
    assert changed.num_documents == 5 and [*changed.sources] == ["dataset ./data"]


# --- the cache --------------------------------------------------------------------------------------------------


def test_changed_text_is_prepared_again(tmp_path, tokenizer):
    file, cache = tmp_path / "text.txt", str(tmp_path / "cache")
    file.write_text("Old words here.\n\nAnd here.\n")

    def prepared(**options):
        return prepare_in_cache(text_arguments(file), tokenizer, "en", cache, **options)

    old = prepared()
    stamp = next(old.folder.glob("*.arrow")).stat().st_mtime_ns
    assert prepared().folder == old.folder and next(old.folder.glob("*.arrow")).stat().st_mtime_ns == stamp
    os.utime(file)  # touched, not changed
    assert prepared().digest == old.digest
    stat = file.stat()
    file.write_text("New words here.\n\nAnd here.\n")  # same size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new = prepared()
    assert new.folder != old.folder and new.digest != old.digest
    assert tokenizer.decode(content(new)[0][0]) == "new words here."
    assert prepared(documents="half", keeps=lambda number: number == 1).num_documents == 1


def test_a_read_only_cache_is_used_if_everything_is_prepared(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "text.txt").write_text("Two words.\n\nAnd more.\n")

    def prepare_text(language):
        text = text_arguments(tmp_path / "text.txt")
        return prepare_in_cache(text, tokenizer, language, str(tmp_path / "cache")).folder

    folder = prepare_text("en")
    error = OSError(errno.EROFS, os.strerror(errno.EROFS))  # permissions do not stop root
    monkeypatch.setattr(os, "mkdir", Mock(side_effect=error))
    assert prepare_text("en") == folder
    with pytest.raises(InputError, match="Read-only file system"):  # another setting, so another folder
        prepare_text("de")
