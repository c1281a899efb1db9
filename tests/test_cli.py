"""The command `snugbert`: its help, its exit status, and output that nobody reads."""

import errno
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

import snugbert
import snugbert_cli
from snugbert.cli import main as command_line
from snugbert.errors import RunStopped

# Commands that do not need the package. The last line prints the imported modules.
FAST = """
import sys
from snugbert_cli import main
assert main(["--version"]) == 0
assert main([]) == main(["--help"]) == 0
assert main(["gleu", "--help"]) == 2
print(*sys.modules)
"""


def test_usage_version_and_an_unknown_command_import_nothing_heavy():
    process = subprocess.run([sys.executable, "-c", FAST], capture_output=True, text=True, check=True)
    usage = snugbert_cli.format_usage()
    version, rest = process.stdout.split("\n", 1)
    assert version == f"snugbert {snugbert.__version__}"
    assert rest.startswith(f"{usage}\n{usage}\n")
    commands = ", ".join(snugbert_cli.COMMANDS)
    assert process.stderr == f"snugbert: error: unknown command 'gleu'. Did you mean glue? Commands: {commands}.\n"
    assert not {"snugbert", "torch", "transformers", "numpy", "argparse"} & set(rest.splitlines()[-1].split())


@pytest.mark.parametrize(("word", "hint"), [("train", "pretrain"), ("eval", "evaluate"), ("classify", None)])
def test_an_unknown_command_gets_a_suggestion(word, hint, capsys):
    assert snugbert_cli.main([word]) == 2
    message = capsys.readouterr().err
    assert f"Did you mean {hint}?" in message if hint else "Did you mean" not in message


def test_only_packages_of_the_extras_are_named(monkeypatch, capsys):
    """If another module is missing, the traceback is kept."""

    def fails(name: str, arguments: list[str]):
        module = "own_reporter" if name == "ner" else "datasets.x"
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(command_line, "run_command", fails)
    with pytest.raises(ModuleNotFoundError, match="own_reporter"):
        snugbert_cli.main(["ner"])
    assert snugbert_cli.main(["glue"]) == 2
    assert "the package datasets.x is not installed. Run: pip install 'snugbert[train]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 2, "a disk is full. Free some space, and run the same"),
    ],
)
def test_what_has_no_message_gets_a_sentence(error, status, message, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "run_command", mock.Mock(side_effect=error))
    assert snugbert_cli.main(["pretrain"]) == status
    assert capsys.readouterr().err.startswith(f"snugbert pretrain: error: {message}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_fails_so_that_the_next_one_does_not_run(number, monkeypatch, capsys):
    """In a shell, `snugbert pretrain && snugbert glue` ends."""

    def stop(name, arguments):
        raise RunStopped(number)

    monkeypatch.setattr(command_line, "run_command", stop)
    assert snugbert_cli.main(["pretrain"]) == 128 + number
    assert capsys.readouterr().err == ""


def test_ctrl_c_is_one_message(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "run_command", mock.Mock(side_effect=KeyboardInterrupt))
    assert snugbert_cli.main(["pretrain"]) == 130
    assert capsys.readouterr().err.startswith("\nsnugbert pretrain: interrupted. Partial output was kept.")


@pytest.mark.parametrize(("end", "status"), [(">&-", 0), ("> /dev/full", 2)])
def test_output_that_goes_nowhere(end, status):
    """A command that a service starts may have no standard output, or one that is full."""
    command = f"{sys.executable} -m snugbert_cli --version {end}"
    process = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert process.returncode == status and "Traceback" not in process.stderr


@pytest.mark.parametrize("command", ["snugbert_cli --help", "snugbert_cli --version"])
def test_output_that_nobody_reads_is_no_error(command):
    """As with `| head`, which closes its end when it has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", *command.split()]
    process = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert process.stderr == "" and process.returncode in (0, 141)
