"""`snugbert prepare`: shards, mismatches and wrong arguments."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from prepared import content, prepare

import snugbert
from snugbert.data.corpus.corpus import open_corpus
from snugbert.errors import InputError
from snugbert_cli import main as snugbert_command


def test_an_incomplete_or_mismatched_corpus_is_refused(tmp_path, tokenizer, capsys):
    names = [f"{name}.txt" for name in "abcde"]
    for name in names:
        (tmp_path / name).write_text(f"Text of {name}. With two sentences.\n\nAnd two documents.\n")
    tokenizer.save_pretrained(tmp_path / "tok")
    whole = prepare(tmp_path / "whole", tokenizer, *(tmp_path / name for name in names))
    arguments = ["prepare", "--tokenizer_name", str(tmp_path / "tok"), "--train_file", str(tmp_path / "*.txt")]
    folder = tmp_path / "corpus"
    for shard in ("3/3", "1/3"):
        assert snugbert_command([*arguments, "--output_dir", str(folder), "--shard", shard]) == 0
    assert "Still missing 1 of 3 parts: part-00001-of-00003.arrow" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"part-00001-of-00003\.arrow is missing"):
        open_corpus(folder, tokenizer)
    assert snugbert_command([*arguments, "--output_dir", str(folder), "--shard", "2/3"]) == 0
    assert "10 documents, 15 sentences" in capsys.readouterr().out
    assert content(open_corpus(folder, tokenizer)) == content(whole)
    other = snugbert.SnugBertTokenizer({**tokenizer.get_vocab(), "zzzz": len(tokenizer)})
    with pytest.raises(InputError, match="was prepared with a different tokenizer"):
        open_corpus(folder, other)
    # Parts of another text, division or settings are not mixed with these.
    (tmp_path / "other").mkdir()
    for name in names[:3]:
        shutil.copy(tmp_path / name, tmp_path / "other")
    others = [*arguments[:-1], str(tmp_path / "other/*.txt")]
    assert snugbert_command([*others, "--output_dir", str(folder), "--shard", "1/3"]) == 2
    assert "has other settings" in capsys.readouterr().err
    assert snugbert_command([*arguments, "--output_dir", str(folder), "--shard", "1/2"]) == 2
    assert "has other settings" in capsys.readouterr().err
    assert snugbert_command([*arguments, "--output_dir", str(folder), "--lines_are_sentences", "true"]) == 2
    part = folder / "part-00001-of-00003.arrow"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"part-00001-of-00003.arrow is damaged .*prepare"):
        open_corpus(folder, tokenizer)
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="contains no prepared corpus"):
        open_corpus(folder, tokenizer)


WRONG_ARGUMENTS = [
    (["--shard", "4/3"], "must be i/n with i from 1 to n"),
    (["--shard", "1/9"], "more shards (9) than text files (1)"),
    (["--preprocessing_num_workers", "0"], "must be at least 1"),
    (["--train_file", "nowhere.txt"], "nowhere.txt: no such file"),
    (["--output_dir", "text.txt"], "Not a directory"),
    (["--train_file", "cut.txt.zst"], "damaged or incomplete"),
]


@pytest.mark.parametrize(("more", "message"), WRONG_ARGUMENTS, ids=[message[:30] for _, message in WRONG_ARGUMENTS])
def test_wrong_arguments_are_a_clear_error(tmp_path, tokenizer, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tok")
    Path("text.txt").write_text("A text.\n")
    Path("cut.txt.zst").write_bytes(pa.compress(b"A text.\n" * 1000, "zstd", asbytes=True)[:-4])
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "text.txt", "--output_dir", "out"]
    assert snugbert_command([*arguments, *more]) == 2
    error = capsys.readouterr().err.rpartition("snugbert prepare: error: ")[2]
    assert message in error and len(error.splitlines()) == 1
    assert not list(Path(".").glob("out/part-*.index"))


@pytest.mark.parametrize(
    ("name", "content"), [("empty.txt", b""), ("blank.txt", b"\n \n\x01\n"), ("empty.jsonl", b'{"text": ""}\n')]
)
def test_empty_text_is_refused(tmp_path, tokenizer, monkeypatch, capsys, name, content):
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tok")
    Path(name).write_bytes(content)
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", name, "--output_dir", "out"]
    assert snugbert_command(arguments) == 2
    assert "out: no documents.\n" in capsys.readouterr().err
    Path("text.txt").write_text("A text.\n")  # a shard may be empty
    arguments[4:] = [name, "text.txt", "--output_dir", "shards"]
    assert snugbert_command([*arguments, "--shard", "1/2"]) == 0
    assert snugbert_command([*arguments, "--shard", "2/2"]) == 0
    assert open_corpus("shards", tokenizer).num_documents == 1


def test_bad_text_is_counted(tmp_path, tokenizer, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tokenizer.save_pretrained("tok")
    Path("text.txt").write_bytes(b"A text.\nBad \xff text.\n\nThe end.\n")
    Path("rows.jsonl").write_bytes(b'{"text": "A row."}\n{"text": null}\n{}\n')
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "text.txt", "rows.jsonl", "--output_dir"]
    assert snugbert_command([*arguments, "out"]) == 2
    error = capsys.readouterr().err
    assert "text.txt, line 2: not UTF-8 (invalid start byte). Convert the file to UTF-8, for example" in error
    assert snugbert_command([*arguments, "out", "--on_bad_text", "skip"]) == 0
    output = capsys.readouterr()
    assert "--on_bad_text skip: 3 bad lines left out. The first: text.txt, line 2: not UTF-8" in output.err
    assert "3 documents, 3 sentences" in output.out
    assert snugbert_command([*arguments, "replaced", "--on_bad_text", "replace"]) == 0
    output = capsys.readouterr()
    assert "--on_bad_text replace: 1 bad line repaired, 2 bad lines left out. The first: text.txt," in output.err
    assert "3 documents, 4 sentences" in output.out


def test_unknown_tokens_are_counted(tmp_path, words_tokenizer, monkeypatch, capsys, caplog):
    """In the last shard that is prepared, and in a corpus that is prepared already."""
    monkeypatch.chdir(tmp_path)
    words_tokenizer.save_pretrained("tok")
    Path("a.txt").write_text("w1 w2 w3 w4 w5 w6 w7\n\n" * 2)
    Path("b.txt").write_text("w1 w2 w3 w4 other\n\n")
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "a.txt", "b.txt", "--preprocessing_num_workers"]
    arguments += ["2", "--output_dir"]
    advice = "text that the vocabulary cannot represent. Use another tokenizer, or train one on this text with `snug"
    for shard, warns in (("2/2", False), ("1/2", True), ("1/2", True)):
        assert snugbert_command([*arguments, "out", "--shard", shard]) == 0
        warning = f"out: 5% of the tokens are [UNK], {advice}"
        assert (warning in caplog.text) == warns and (not warns or len(caplog.records) == 1)
        caplog.clear()
    Path("none.txt").write_text("no such words\n\nare known\n")
    message = "every token is [UNK], so no token can be masked. Use another tokenizer"
    assert snugbert_command([*arguments[:4], "none.txt", "--output_dir", "none"]) == 2
    assert f"none: {message}" in capsys.readouterr().err
