"""The command `snugbert`: its help, its exit status, and output that nobody reads."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

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
print(*sys.modules)
"""


def test_usage_version_and_an_unknown_command_import_nothing_heavy():
    process = subprocess.run([sys.executable, "-c", FAST], capture_output=True, text=True, check=True)
    usage = snugbert_cli.format_usage()
    version, rest = process.stdout.split("\n", 1)
    assert version == f"snugbert {snugbert.__version__}"
    assert rest.startswith(f"{usage}\n{usage}\n")
    assert (
        process.stderr == f"snugbert: error: unknown command 'gleu'. Commands: {', '.join(snugbert_cli.COMMANDS)}.\n"
    )
    assert not {"snugbert", "torch", "transformers", "numpy", "argparse"} & set(rest.splitlines()[-1].split())


def test_only_packages_of_the_extras_are_named(monkeypatch, capsys):
    """If another module is missing, the traceback is kept."""

    def fails(module: str):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    commands = {
        "own": snugbert_cli.Command("own_reporter", "train", ""),
        "glue": snugbert_cli.Command("datasets.x", "train", ""),
    }
    monkeypatch.setattr(snugbert_cli, "COMMANDS", commands)
    monkeypatch.setattr(snugbert_cli, "import_module", fails)
    with pytest.raises(ModuleNotFoundError, match="own_reporter"):
        snugbert_cli.main(["own"])
    assert snugbert_cli.main(["glue"]) == 2
    assert "the package datasets.x is not installed. Run: pip install 'snugbert[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_command_fails_so_that_the_next_one_does_not_run(number, monkeypatch, capsys):
    """In a shell, `snugbert pretrain && snugbert glue` ends."""

    def stop(argv):
        raise RunStopped(number)

    monkeypatch.setattr(snugbert_cli, "import_module", lambda module: SimpleNamespace(main=stop))
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


@pytest.mark.parametrize("command", ["snugbert_cli --help", "snugbert_cli --version", "snugbert glue --help"])
def test_output_that_nobody_reads_is_no_error(command):
    """As with `| head`, which closes its end when it has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", *command.split()]
    process = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert process.stderr == "" and process.returncode in (0, 141)
