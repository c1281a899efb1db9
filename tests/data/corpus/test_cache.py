"""Prepared text in the cache is reused and renewed."""

import errno
import os

import pytest
from prepared import content, text_arguments

from snugbert.data.corpus import preparation
from snugbert.data.corpus.cache import prepare_in_cache
from snugbert.data.data_arguments import TextArguments
from snugbert.errors import InputError


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

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(preparation, "lock_file", refuse)
    assert prepared() == folder
    with pytest.raises(InputError, match="Read-only file system"):  # another setting, so another folder
        prepared("skip")
