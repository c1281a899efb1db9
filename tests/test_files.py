"""JSON that may be hostile, digests, errors while files are written, and locks."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from snugbert.data.squad import read_questions
from snugbert.data.tables import read_rows
from snugbert.errors import InputError
from snugbert.files import (
    explaining_failed_writes,
    hash_json,
    holds_lock,
    lock_file,
    parse_json,
    replacing,
    write_atomically,
)

NO_SPACE = os.strerror(errno.ENOSPC)
HOSTILE_JSON = {
    "[" * 100_000 + "]" * 100_000: "nested too deeply",
    '{"a": ' * 100_000 + "1" + "}" * 100_000: "nested too deeply",
    "9" * 5000: "Exceeds the limit .4300 digits.",
    r'"\ud83d\ude00 \uDe00"': r"remove \\ude00, an unpaired surrogate: line 1 column ",
    r'"\\ud83d\udc00"': r"remove \\udc00, an unpaired surrogate",
}


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=["lists", "objects", "digits", "half", "second half"])
def test_hostile_json_gives_an_error_of_one_sentence(text, tmp_path):
    message = HOSTILE_JSON[text]
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    for name, content in (("rows.jsonl", '{"a": 1}\n{"a": ' + text + "}"), ("list.json", '[{"a": ' + text + "}]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=f"{name}.*: not JSON \\({message}"):
            list(read_rows(tmp_path / name))
    with pytest.raises(InputError, match=f"list.json: not JSON \\({message}"):
        read_questions(tmp_path / "list.json", "list.json")


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert hash_json({"a": 1, "b": [2]}) == hash_json({"b": [2], "a": 1}) != hash_json({"a": 1, "b": [3]})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, NO_SPACE), f"{NO_SPACE}. The disk is probably full. Free some space and try again."),
        (OSError(errno.EROFS, "Read-only"), "Read-only. Fix this and try again."),
        (Exception("No space (os error 28)"), "No space (os error 28). The disk is probably full."),  # of tokenizers
        (SafetensorError("I/O error"), "I/O error. The disk is probably full."),
    ],
)
def test_the_error_names_the_folder_and_the_reason(error, reason):
    with pytest.raises(InputError) as caught, explaining_failed_writes(Path("out"), "try again"):
        raise error
    assert str(caught.value).startswith("out could not be written: ") and reason in str(caught.value)


def test_torch_reports_a_full_disk_and_other_errors_pass():
    with pytest.raises(InputError, match=r"^out could not be written: .*The disk is probably full"):
        with explaining_failed_writes(Path("out"), "try again"):
            torch.save({"x": torch.ones(10**6)}, "/dev/full")
    for error in (Exception("other"), RuntimeError("other"), InputError("other"), KeyError("other")):
        with pytest.raises(type(error), match=r"^'?other'?$"), explaining_failed_writes(Path("out"), "try again"):
            raise error


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path):
    file = tmp_path / "results.json"
    write_atomically(file, "old")
    with pytest.raises(KeyError), replacing(file) as unfinished:
        unfinished.write_text("half")
        raise KeyError
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
    with replacing(file, tmp_path / "other") as unfinished:
        unfinished.write_text("new")
        assert file.read_text() == "old" and unfinished.name == "other"
    assert file.read_text() == "new" and list(tmp_path.iterdir()) == [file]


def test_a_lock_is_released_and_removed_at_the_end(tmp_path):
    """`trainers/run/test_run_lock.py` kills processes that hold it."""
    file = tmp_path / "new" / ".lock"
    with lock_file(file):
        assert holds_lock(file) and not holds_lock(tmp_path / ".lock")
        with pytest.raises(InputError, match=f"^process {os.getpid()} on .* has locked "), lock_file(file, seconds=0):
            pass
    assert not file.exists() and not holds_lock(file)
    with lock_file(file, seconds=0):
        pass
