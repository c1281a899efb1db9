"""Counts in messages, and the names of arguments. The tests of the commands cover [`InputError`]."""

import pickle

import pytest

from snugbert import VocabularyArguments, train_vocabulary
from snugbert.errors import COMMAND, InputError, format_count
from snugbert_cli import main

# message with flags -> message in Python
MESSAGES = {
    "Set --text_column_names.": "Set text_column_names.",
    "--vocab_size 5 must be above the 12 tokens.": "vocab_size 5 must be above the 12 tokens.",
    "(--bf16 true) and --no_nsp or --seed": "(bf16 true) and no_nsp or seed",
    "--corpus: run `snugbert prepare --shard 1/2` again.": "corpus: run `snugbert prepare --shard 1/2` again.",
    "a--b, x --- y and a flag": "a--b, x --- y and a flag",
}


@pytest.mark.parametrize(("flags", "arguments"), MESSAGES.items())
def test_messages_name_flags_in_a_command_and_arguments_in_python(flags, arguments, monkeypatch):
    error = InputError(flags)
    assert str(error) == flags
    monkeypatch.delenv(COMMAND)
    assert str(error) == arguments and str(InputError(f"{error}")) == arguments
    assert str(pickle.loads(pickle.dumps(error))) == arguments


def test_the_command_line_sets_its_form_and_python_has_its_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("a")
    monkeypatch.delenv(COMMAND)
    text = {"train_file": tmp_path / "text.txt", "output_dir": tmp_path / "a", "vocab_size": 3}
    with pytest.raises(InputError, match=r"^vocab_size 3 is too small\."):
        train_vocabulary(VocabularyArguments(**text))
    assert main(["vocabulary", *(word for name, value in text.items() for word in (f"--{name}", str(value)))]) == 2
    assert "error: --vocab_size 3 is too small." in capsys.readouterr().err


def test_counts_are_singular_or_plural():
    assert [format_count(number, "row") for number in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
