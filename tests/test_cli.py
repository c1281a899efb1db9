"""The command `snugbert`: its help, its exit status, output that nobody reads."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("end", "status"), [(">&-", 0), ("> /dev/full", 2)])
def test_output_that_goes_nowhere(end, status):
    """A command that a service starts may have no standard output, or one that is full."""
    command = f"{sys.executable} -m snugbert --version {end}"
    process = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert process.returncode == status and "Traceback" not in process.stderr


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["glue", "--help"]])
def test_output_that_nobody_reads_is_no_error(command):
    """As with `| head`, which closes its end when it has enough."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-m", "snugbert", *command], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert process.stderr == "" and process.returncode in (0, 141)
