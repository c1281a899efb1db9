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
from snugbert.errors import RunStopped

# Commands that do not need the package. The last line prints the imported modules.
FAST = """
import sys
from snugbert_cli import main
assert main(["--version"]) == 0
assert main([]) == main(["--help"]) == 0
assert main(["gleu", "--help"]) == 2
assert main(["glue", "--output-dri", "x"]) == 2
assert main(["pretrain", "--train_file", "nowhere/*.txt"]) == 2
assert main(["pretrain", "--language", "german"]) == 2
assert main(["squad", "--report_to", "wandbb"]) == 2
print(*sys.modules)
"""


def test_usage_version_and_an_unknown_command_import_nothing_heavy():
    process = subprocess.run([sys.executable, "-c", FAST], capture_output=True, text=True, check=True)
    usage = snugbert_cli.format_usage()
    version, rest = process.stdout.split("\n", 1)
    assert version == f"snugbert {snugbert.__version__}"
    assert rest.startswith(f"{usage}\n{usage}\n")
    unknown, *mistakes = process.stderr.splitlines()
    assert unknown == (
        f"snugbert: error: unknown command 'gleu'. Did you mean glue? Commands: {', '.join(snugbert_cli.COMMANDS)}."
    )
    assert mistakes[:3] == [
        "snugbert glue: error: unknown argument --output-dri. Did you mean --output_dir? "
        "`snugbert glue --help` lists the arguments.",
        "snugbert pretrain: error: --train_file: nowhere/*.txt: no such file.",
        "snugbert pretrain: error: --language 'german' is not a language code. Did you mean de?",
    ]
    assert mistakes[3].startswith("snugbert squad: error: --report_to: unknown value 'wandbb'. Did you mean wandb?")
    assert not {"snugbert", "torch", "transformers", "numpy", "argparse"} & set(rest.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("snugbert pre", {"prepare", "pretrain", "predict"}),
        ("snugbert glue --train_f", {"--train_file"}),
        ("snugbert export in --calib", {"--calibration_file"}),
        ("snugbert pretrain --train_file cor", {"corpus.txt", "corpus.txt.gz"}),
        ("snugbert convert cor", {"corpus.txt", "corpus.txt.gz"}),
    ],
)
def test_the_shell_completes_commands_flags_and_files(line, expected, tmp_path):
    (tmp_path / "corpus.txt").touch()
    (tmp_path / "corpus.txt.gz").touch()
    answer = tmp_path / "answer"
    # What the function of `register-python-argcomplete` sets.
    shell = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "IFS": "\n"}
    shell |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "_ARGCOMPLETE_IFS": "\n"}
    command = [sys.executable, "-X", "importtime", "-m", "snugbert_cli"]
    process = subprocess.run(command, cwd=tmp_path, env=os.environ | shell, capture_output=True, text=True, check=True)
    assert {word.strip() for word in answer.read_text().splitlines()} == expected
    assert "argcomplete" in process.stderr and "numpy" not in process.stderr


def test_only_packages_of_the_extras_are_named(monkeypatch, capsys):
    """If another module is missing, the traceback is kept."""

    def fails(name: str, arguments: list[str]):
        module = "own_reporter" if name == "ner" else "datasets.x"
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(snugbert_cli, "run_command", fails)
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
    monkeypatch.setattr(snugbert_cli, "run_command", mock.Mock(side_effect=error))
    assert snugbert_cli.main(["pretrain"]) == status
    assert capsys.readouterr().err.startswith(f"snugbert pretrain: error: {message}")


def test_a_flag_of_help_never_runs_a_command(tmp_path, monkeypatch, capsys):
    """It would run as if peft were not installed."""
    (tmp_path / "--help").write_text("list: true\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        snugbert_cli.main(["prepare", "--config", "--help"])
    assert capsys.readouterr().out.startswith("usage: snugbert prepare ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_fails_so_that_the_next_one_does_not_run(number, monkeypatch, capsys):
    """In a shell, `snugbert pretrain && snugbert glue` ends."""

    def stop(name, arguments):
        raise RunStopped(number)

    monkeypatch.setattr(snugbert_cli, "run_command", stop)
    assert snugbert_cli.main(["pretrain"]) == 128 + number
    assert capsys.readouterr().err == ""


def test_ctrl_c_at_any_moment_is_one_message(monkeypatch, capsys):
    """Also while modules are imported, which takes seconds."""

    class Interrupt:
        def find_spec(self, name, *args):
            if name == "safetensors":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "safetensors")
    monkeypatch.setattr(sys, "meta_path", [Interrupt(), *sys.meta_path])
    assert snugbert_cli.main(["pretrain", "--help"]) == 130
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
