"""`snugbert vocabulary`: reproducible files in every format of text, what it prints, and clear errors."""

import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import vocabularies
from transformers import BertTokenizer
from vocabularies import DOCUMENTS, learn_all, train

from snugbert import SnugBertTokenizer
from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.vocabulary.learning import KINDS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_the_folder_opens_as_snugberts_and_as_berts_tokenizer(tmp_path: Path, text_file: Path, do_lower_case: bool):
    casing = "--do_lower_case" if do_lower_case else "--no_do_lower_case"
    tokens = train(tmp_path / "tok", "--train_file", text_file, casing)
    tokenizer = SnugBertTokenizer.from_pretrained(tmp_path / "tok")
    assert tokenizer.convert_ids_to_tokens(range(len(tokenizer))) == tokens
    assert sorted(tokenizer.all_special_ids) == [0, 1, 2, 3, 4]
    assert tokenizer.model_max_length == 512
    bert = BertTokenizer(vocab=str(tmp_path / "tok" / "vocab.txt"), do_lower_case=do_lower_case)
    for document in DOCUMENTS:
        ids = tokenizer(document)["input_ids"]
        assert ids == bert(document)["input_ids"]
        assert tokenizer.unk_token_id not in chain.from_iterable(ids)
    assert ("The" in tokens) is not do_lower_case


def test_bad_text_is_counted(tmp_path: Path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"body": "two words"}\n{"body": "b\xffd"}\n{"body": null}\n')
    train(tmp_path / "tok", "--train_file", rows, "--text_column_name", "body", "--on_bad_text", "skip")
    printed = capsys.readouterr().out
    assert "tokens (wordpiece) from 2 words (2 distinct)." in printed
    assert f"Note: --on_bad_text skip: 2 bad lines left out. The first: {rows}, line 2: not UTF-8" in printed


def test_an_output_folder_is_replaced_only_on_request(tmp_path: Path, text_file: Path):
    first = train(tmp_path / "tok", "--train_file", text_file)
    with pytest.raises(InputError, match=r"already contains tokenizer.json. .*--overwrite_output_dir"):
        train(tmp_path / "tok", "--train_file", text_file, "--vocab_size", "60")
    assert (tmp_path / "tok" / "vocab.txt").read_text(encoding="utf-8").splitlines() == first
    arguments = ("--train_file", text_file, "--vocab_size", "60", "--overwrite_output_dir")
    assert len(train(tmp_path / "tok", *arguments)) == 60
    bpe = ["--model", "bpe", "--overwrite_output_dir", "--output_dir", str(tmp_path / "tok")]
    run_command("vocabulary", ["--train_file", str(text_file), *bpe])
    assert not (tmp_path / "tok/vocab.txt").exists()  # otherwise the folder would open as WordPiece
    with pytest.raises(InputError, match=r"is a file\. Choose a folder"):
        train(text_file, "--train_file", text_file)


@pytest.mark.slow
def test_two_processes_write_identical_files(tmp_path: Path):
    """The library alone fails this, because the order of a hash map breaks its ties (huggingface/tokenizers#1794)."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    environment = {"PYTHONHASHSEED": "1", "RAYON_NUM_THREADS": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, vocabularies.__file__, there]
    process = subprocess.Popen(command, env=os.environ | environment)
    learn_all(here)
    assert process.wait(timeout=120) == 0
    files = sorted(path.relative_to(here) for path in here.rglob("*.*"))
    assert len({path.parent for path in files} - {Path()}) == 2 * len(KINDS)
    for file in files:
        assert (here / file).read_bytes() == (there / file).read_bytes(), file


def test_a_dataset_gives_the_vocabulary_of_its_files(tmp_path: Path, text_file: Path):
    (tmp_path / "dataset").mkdir()
    lines = "".join(json.dumps({"body": "\n".join(document)}) + "\n" for document in DOCUMENTS)
    (tmp_path / "dataset/train.jsonl").write_text(lines, encoding="utf-8")
    rows = train(tmp_path / "rows", "--dataset_name", tmp_path / "dataset", "--text_column_name", "body")
    assert rows == train(tmp_path / "txt", "--train_file", text_file)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"", [], "the text is empty"),
        (b"\x01\x07", [], "the text contains no words"),
        (b"abc abc", ["--vocab_size", "9"], r"--vocab_size 9 is too small. .* at least 10\."),
        (b"abc", ["--model", "byte-bpe", "--vocab_size", "260"], r"too small. The 256 bytes .* at least 261\."),
        (b"abc", ["--min_frequency", "0"], "--min_frequency 0 must be at least 1"),
        (b"abc", ["--dataset_name", "imdb"], "--train_file and --dataset_name cannot be combined"),
    ],
)
def test_wrong_input_is_a_clear_error_and_writes_nothing(tmp_path, content, arguments, message):
    corpus = tmp_path / "corpus.txt"
    corpus.write_bytes(content)
    with pytest.raises(InputError, match=message):
        train(tmp_path / "tok", "--train_file", corpus, *arguments)
    assert not list(tmp_path.glob("tok/*"))
