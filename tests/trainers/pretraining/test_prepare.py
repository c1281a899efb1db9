"""`snugbert prepare`: shards, mismatches, and wrong arguments."""

from pathlib import Path

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from prepared import content, prepare, text_arguments

import snugbert
from snugbert.data.corpus.corpus import open_corpus
from snugbert.data.corpus.preparation import prepare_parts
from snugbert.data.corpus.text_parts import plan_parts
from snugbert.errors import InputError
from snugbert_cli import main as snugbert_command


def test_an_incomplete_or_mismatched_corpus_is_refused(tmp_path, words_tokenizer, capsys):
    names = [f"{name}.txt" for name in "abcde"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"Text w{number} w2 w3. With w4 w5 w6.\n\nAnd w7 w8 w9.\n")
    words_tokenizer.save_pretrained(tmp_path / "tok")
    whole = prepare(tmp_path / "whole", words_tokenizer, *(tmp_path / name for name in names))
    arguments = ["prepare", "--tokenizer_name", str(tmp_path / "tok"), "--train_file", str(tmp_path / "*.txt")]
    folder = tmp_path / "corpus"
    for shard in ("3/3", "1/3"):
        assert snugbert_command([*arguments, "--output_dir", str(folder), "--shard", shard]) == 0
    assert "Still missing 1 of 3 parts: part-00001-of-00003.arrow" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"missing or unfinished, such as part-00001-of-00003\.arrow"):
        open_corpus(folder, words_tokenizer)
    assert snugbert_command([*arguments, "--output_dir", str(folder), "--shard", "2/3"]) == 0
    assert "10 documents, 15 sentences" in capsys.readouterr().out
    assert content(open_corpus(folder, words_tokenizer)) == content(whole)
    other = snugbert.SnugBertTokenizer({**words_tokenizer.get_vocab(), "zzzz": len(words_tokenizer)})
    with pytest.raises(InputError, match="was prepared with a different tokenizer"):
        open_corpus(folder, other)
    # Parts of another text, division or settings are not mixed with these.
    others = [*arguments[:-1], str(tmp_path / "[abc].txt"), "--shard", "1/3"]
    for other in (others, [*arguments, "--shard", "1/2"], [*arguments, "--lines_are_sentences", "true"]):
        assert snugbert_command([*other, "--output_dir", str(folder)]) == 2
        assert "has other settings" in capsys.readouterr().err
    part = folder / "part-00001-of-00003.arrow"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"part-00001-of-00003.arrow is damaged .*prepare"):
        open_corpus(folder, words_tokenizer)


WRONG_ARGUMENTS = [
    (["--shard", "1/9"], "more shards (9) than text files (1)"),
    (["--output_dir", "text.txt"], "File exists"),
    (["--train_file", "cut.txt.zst"], "damaged or incomplete"),
]


@pytest.mark.parametrize(("more", "message"), WRONG_ARGUMENTS, ids=[message[:30] for _, message in WRONG_ARGUMENTS])
def test_wrong_arguments_are_a_clear_error(tmp_path, words_tokenizer, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    words_tokenizer.save_pretrained("tok")
    Path("text.txt").write_text("w1 w2 w3.\n")
    Path("cut.txt.zst").write_bytes(pa.compress(b"w1 w2 w3.\n" * 1000, "zstd", asbytes=True)[:-4])
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "text.txt", "--output_dir", "out"]
    assert snugbert_command([*arguments, *more]) == 2
    error = capsys.readouterr().err.rpartition("snugbert prepare: error: ")[2]
    assert message in error and len(error.splitlines()) == 1
    assert not list(Path(".").glob("out/part-*.index"))


@pytest.mark.parametrize(("name", "content"), [("blank.txt", b"\n \n\x01\n"), ("empty.jsonl", b'{"text": ""}\n')])
def test_empty_text_is_refused(tmp_path, words_tokenizer, monkeypatch, capsys, name, content):
    monkeypatch.chdir(tmp_path)
    words_tokenizer.save_pretrained("tok")
    Path(name).write_bytes(content)
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", name, "--output_dir", "out"]
    assert snugbert_command(arguments) == 2
    assert "out: no documents.\n" in capsys.readouterr().err
    Path("text.txt").write_text("w1 w2 w3.\n")  # a shard may be empty
    arguments[4:] = [name, "text.txt", "--output_dir", "shards"]
    assert snugbert_command([*arguments, "--shard", "1/2"]) == 0
    assert snugbert_command([*arguments, "--shard", "2/2"]) == 0
    assert open_corpus("shards", words_tokenizer).num_documents == 1


def test_unknown_tokens_are_counted(tmp_path, words_tokenizer, monkeypatch, capsys, caplog):
    """In the last shard that is prepared, and in a corpus that is prepared already."""
    monkeypatch.chdir(tmp_path)
    words_tokenizer.save_pretrained("tok")
    Path("a.txt").write_text("w1 w2 w3 w4 w5 w6 w7\n\n" * 2)
    Path("b.txt").write_text("w1 w2 w3 w4 other\n\n")
    arguments = ["prepare", "--tokenizer_name", "tok", "--train_file", "a.txt", "b.txt", "--output_dir", "out"]
    for shard, warns in (("2/2", False), ("1/2", True), ("1/2", True)):
        assert snugbert_command([*arguments, "--shard", shard]) == 0
        assert caplog.text.count("out: 5% of the tokens are [UNK], text that the vocabulary cannot") == warns
        caplog.clear()
    Path("none.txt").write_text("no such words\n\nare known\n")
    assert snugbert_command([*arguments[:4], "none.txt", "--output_dir", "none"]) == 2
    assert "none: every token is [UNK], so no token can be masked." in capsys.readouterr().err


def test_a_bucket_that_does_not_answer_is_not_damage(tmp_path, words_tokenizer, monkeypatch):
    monkeypatch.setattr("snugbert.storage.inputs.HF_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("w1 w2\n")
    parts = plan_parts(text_arguments(tmp_path / "text.txt"))
    prepare_parts("memory:///corpus", parts, words_tokenizer, show_progress=False)
    read = MemoryFileSystem.cat_file

    def fail(store, path, *args, **options):
        if path.endswith(".arrow"):
            raise OSError("broken")
        return read(store, path, *args, **options)

    corpus = open_corpus("memory:///corpus", words_tokenizer)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    with pytest.raises(InputError, match="the store does not answer"):
        corpus.blocks[0]
