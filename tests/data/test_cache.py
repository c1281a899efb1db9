"""Prepared text in the cache is reused, renewed, listed and removed."""

import errno
import os

import pytest
from prepared import content, text_arguments

from snugbert.data import preparation
from snugbert.data.cache import prepare_in_cache
from snugbert.data.data_arguments import TextArguments
from snugbert.errors import InputError
from snugbert.files import lock_file
from snugbert_cli import main as snugbert_command


def test_changed_text_is_prepared_again(tmp_path, tokenizer):
    file, cache = tmp_path / "text.txt", str(tmp_path / "cache")
    file.write_text("Old words here.\n\nAnd here.\n")

    def prepared(**options):
        return prepare_in_cache(text_arguments(file), tokenizer, "en", cache, show_progress=False, **options)

    folder, old = prepared()
    stamp = next(folder.glob("*.arrow")).stat().st_mtime_ns
    assert prepared()[1].digest == old.digest
    os.utime(file)  # touched, not changed
    assert prepared()[1].digest == old.digest
    assert next(folder.glob("*.arrow")).stat().st_mtime_ns == stamp
    stat = file.stat()
    file.write_text("New words here.\n\nAnd here.\n")  # same size
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new_folder, new = prepared()
    assert new_folder == folder and new.digest != old.digest
    assert tokenizer.decode(content(new)[0][0]) == "new words here."
    assert prepared(documents="half", keeps=lambda number: number == 1)[1].num_documents == 1


def test_a_read_only_cache_is_used_if_everything_is_prepared(tmp_path, tokenizer, monkeypatch):
    file, cache = tmp_path / "text.txt", str(tmp_path / "cache")
    file.write_text("Two words.\n\nAnd more.\n")

    def prepared(on_bad_text="error"):
        text = TextArguments(train_file=[str(file)], on_bad_text=on_bad_text)
        return prepare_in_cache(text, tokenizer, "en", cache, show_progress=False)[0]

    folder = prepared()

    def refuse(*_, **__):  # permissions do not stop root
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(preparation, "lock_file", refuse)
    assert prepared() == folder
    with pytest.raises(InputError, match="Read-only file system"):  # another setting, so another folder
        prepared("skip")


@pytest.fixture
def cache(small, words_tokenizer, tmp_path):
    """Two folders of prepared text: a complete one, and an unfinished one that was used later."""
    other = tmp_path / "other.txt"
    other.write_text("w1 w2\n\nw3\n")
    folders = []
    for file in (small.text, other):
        folder, _ = prepare_in_cache(
            text_arguments(file), words_tokenizer, None, str(tmp_path / "cache"), num_workers=1, show_progress=False
        )
        folders.append(folder)
    (part,) = folders[1].glob("*.arrow")
    part.rename(f"{part}.partial")
    os.utime(folders[0], (0, 0))
    return folders


def test_list_prints_the_cached_text(cache, tmp_path, capsys):
    arguments = ["prepare", "--cache_dir", str(tmp_path / "cache")]
    (cache[0] / "epochs").mkdir()
    (cache[0] / "epochs" / "0123456789abcdef-0.examples").write_bytes(bytes(10**7))
    os.utime(cache[0], (0, 0))
    assert snugbert_command([*arguments, "--list"]) == 0
    header, complete, unfinished, total = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "size", "last", "used", "state", "text", "settings"]
    assert complete.startswith(f"{cache[0].name}  ") and unfinished.startswith(f"{cache[1].name}  ")
    assert " 1970-01-01 " in complete and " complete " in complete and " text.txt " in complete
    assert complete.split()[1] == "10.0MB"  # with the tables of examples
    assert " unfinished " in unfinished and " other.txt " in unfinished and " lines, all, tokenizer " in unfinished
    assert total.startswith("prepared texts: 2, ") and total.endswith(str(tmp_path / "cache" / "snugbert"))
    (part,) = cache[0].glob("*.arrow")
    part.write_bytes(b"nothing")
    assert snugbert_command([*arguments, "--list"]) == 0
    assert " damaged" in capsys.readouterr().out
    assert snugbert_command(["prepare", "--list", "--cache_dir", str(tmp_path / "nowhere")]) == 0
    assert "prepared texts: 0, " in capsys.readouterr().out


def test_the_logits_of_teachers_are_listed_and_cleaned(tmp_path, capsys):
    folder = tmp_path / "cache/snugbert/teachers"
    folder.mkdir(parents=True)
    (folder / f"{'a' * 32}.safetensors").write_bytes(b"0" * 3000)
    (folder / f"_17_{'b' * 32}.safetensors").write_bytes(b"0" * 1000)  # a killed run left it
    (folder / "mine.safetensors").write_bytes(b"0")
    prepare = ["prepare", "--cache_dir", str(tmp_path / "cache")]
    assert snugbert_command([*prepare, "--list"]) == 0
    assert "logits of teachers: 4.00kB (--clean teachers)" in capsys.readouterr().out
    assert snugbert_command([*prepare, "--clean", "teachers"]) == 0
    assert "removed the logits of teachers, 4.00kB" in capsys.readouterr().out
    assert [file.name for file in folder.iterdir()] == ["mine.safetensors"]
    assert snugbert_command([*prepare, "--clean", "teachers"]) == 2


def test_copies_for_stores_are_listed_and_cleaned_unless_they_are_in_use(tmp_path, capsys):
    root = tmp_path / "cache/snugbert"
    for name in ("staged/a/train.csv", "outputs/b/run/config.json", "blocks/c/00000000.block", "blocks/d/1.block"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(b"0" * 1000)
    prepare = ["prepare", "--cache_dir", str(tmp_path / "cache")]
    assert snugbert_command([*prepare, "--list"]) == 0
    listed = capsys.readouterr().out
    assert "outputs that may not be uploaded yet: 1.00kB (--clean outputs)" in listed
    assert "copies of blocks of corpora: 2.00kB (--clean blocks)" in listed
    with (
        lock_file(root / "staged/a/lock"),
        lock_file(root / "outputs/b/run/_lock"),
        lock_file(root / "blocks/c/blocks.lock"),
    ):
        assert snugbert_command([*prepare, "--clean", "all"]) == 2
    output = capsys.readouterr()
    assert "--clean: a running process uses staged/a, outputs/b, blocks/c. Try" in output.err
    assert "removed the copies of blocks of corpora, 1.00kB" in output.out
    assert snugbert_command([*prepare, "--clean", "staged", "outputs", "blocks"]) == 0
    assert not [path for path in root.rglob("*") if path.is_file()]


def test_clean_removes_prepared_text_and_nothing_else(cache, tmp_path, capsys):
    root = cache[0].parent
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "part-00000-of-00001.arrow").write_text("precious")
    (root / ("0" * 32)).symlink_to(elsewhere)  # named like ours
    (root / "model").mkdir()
    (root / "notes.txt").write_text("precious")
    foreign = root / ("1" * 32)  # named like ours, but holds no prepared text
    foreign.mkdir()
    (foreign / "notes.txt").write_text("precious")
    kept = {*elsewhere.rglob("*"), root / ("0" * 32), root / "model", root / "notes.txt", *foreign.iterdir()}
    clean = ["prepare", "--cache_dir", str(tmp_path / "cache"), "--clean"]

    assert snugbert_command([*clean, cache[0].name, "2" * 32]) == 2  # one name is unknown, so nothing is removed
    assert f"no prepared text named {'2' * 32} in {root}" in capsys.readouterr().err
    assert snugbert_command([*clean, "0" * 32]) == 2
    (cache[0] / "epochs").mkdir()  # as PretrainingDataset writes it
    for name in ("0123456789abcdef.lock", "0123456789abcdef-0.examples"):
        (cache[0] / "epochs" / name).touch()
    size = sum(file.stat().st_size for file in cache[0].iterdir() if file.is_file())
    with lock_file(cache[1] / ".part-00000-of-00001.arrow.lock"):
        assert snugbert_command([*clean, "all"]) == 2
    output = capsys.readouterr()
    assert not cache[0].exists() and list(cache[1].glob("*.partial"))
    assert f"removed {cache[0].name}" in output.out and f"{size / 1000:.2f}kB freed" in output.out
    assert f"a running process uses {cache[1].name}." in output.err
    assert snugbert_command([*clean, cache[1].name, "--list"]) == 0
    assert not cache[1].exists()
    assert "prepared texts: 0, " in capsys.readouterr().out
    assert all(path.exists() for path in kept)
    assert (elsewhere / "part-00000-of-00001.arrow").read_text() == "precious"
