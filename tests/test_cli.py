"""The command `snugbert`: its help, its exit status, its messages, and output that nobody reads."""

import errno
import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoConfig

import snugbert
import snugbert_cli
from snugbert import VocabularyArguments, train_vocabulary
from snugbert.cli import main as command_line
from snugbert.errors import COMMAND, InputError, RunStopped, format_count
from snugbert_cli import main

# Commands that do not need the package. The last line prints the imported modules.
FAST = """
import sys
from snugbert_cli import main
assert main(["--version"]) == 0
assert main([]) == main(["--help"]) == 0
assert main(["gleu", "--help"]) == 2
print(*sys.modules)
"""


def test_usage_version_and_an_unknown_command_import_nothing_heavy(capsys):
    process = subprocess.run([sys.executable, "-c", FAST], capture_output=True, text=True, check=True)
    usage = snugbert_cli.format_usage()
    version, rest = process.stdout.split("\n", 1)
    assert version == f"snugbert {snugbert.__version__}"
    assert rest.startswith(f"{usage}\n{usage}\n")
    commands = ", ".join(snugbert_cli.COMMANDS)
    assert process.stderr == f"snugbert: error: unknown command 'gleu'. Did you mean glue? Commands: {commands}.\n"
    assert not {"snugbert", "torch", "transformers", "numpy", "argparse"} & set(rest.splitlines()[-1].split())
    for word, hint in (("train", "Did you mean pretrain?"), ("classify", "unknown command 'classify'. Commands: ")):
        assert snugbert_cli.main([word]) == 2 and hint in capsys.readouterr().err


MISSING = ModuleNotFoundError("No module named 'nothing'", name="nothing")
OLD = ModuleNotFoundError("No module named 'datasets.x'", name="datasets.x")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MISSING, 2, "snugbert glue: error: the package nothing is not installed. Run: pip install 'snugbert[tra"),
        (OLD, 2, "snugbert glue: error: the package datasets is too old. Run: pip install -U 'snugbert[train]'"),
        (OSError(errno.ENOSPC, ""), 2, "snugbert glue: error: a disk is full. Free some space, and run the same"),
        (KeyboardInterrupt(), 130, "\nsnugbert glue: interrupted. Partial output was kept."),
        # In a shell, `snugbert pretrain && snugbert glue` ends.
        (RunStopped(signal.SIGTERM), 143, ""),
        (RunStopped(signal.SIGINT), 130, ""),
    ],
)
def test_an_error_is_one_message_and_a_status(error, status, message, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "run_command", mock.Mock(side_effect=error))
    assert snugbert_cli.main(["glue"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith(message) and len(printed.splitlines()) == len(message.splitlines())


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda folder: json.loads("{"), "Expecting property name enclosed in double quotes"),
        (lambda folder: pq.read_table(folder / "nothing.parquet"), "nothing.parquet"),
        (lambda folder: gzip.decompress(b"\x1f\x8b"), "Compressed file ended before the end-of-stream marker"),
        (lambda folder: AutoConfig.for_model("nonsense"), "Unrecognized model identifier: nonsense"),
    ],
)
def test_an_error_of_a_library_about_the_input_is_one_line(read, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "run_command", lambda name, arguments: read(tmp_path))
    assert snugbert_cli.main(["glue"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("snugbert glue: error: ") and message in printed and len(printed.splitlines()) == 1


@pytest.mark.parametrize("fail", [lambda: int("x"), lambda: np.zeros(2) + np.zeros(3), lambda: {}["x"]])
def test_a_bug_keeps_its_traceback(fail, monkeypatch):
    monkeypatch.setattr(command_line, "run_command", lambda name, arguments: fail())
    with pytest.raises((ValueError, KeyError)):
        snugbert_cli.main(["glue"])


def test_output_that_nobody_reads_is_no_error():
    """As with `| head`, which closes its end when it has enough, and in a service without output."""
    reading, writing = os.pipe()
    os.close(reading)
    command = f"{sys.executable} -m snugbert_cli --help"
    process = subprocess.run(command.split(), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert process.stderr == "" and process.returncode in (0, 141)
    process = subprocess.run(["bash", "-c", f"{command} >&-"], stderr=subprocess.PIPE)
    assert process.returncode == 0 and process.stderr == b""


# --- messages ---


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
