"""Damaged and hostile files of every format are read, or refused with one message.

`python tests/helpers/fuzz.py --seed 2` reads other files.
"""

import subprocess
import sys

import forked
import fuzz
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.FORMATS)
def test_some_mutated_files(name):
    numbers = range(10 if name == "checkpoint" else 30)  # reading a checkpoint trains a step
    process = forked.run(fuzz.find_defects, name, numbers)
    assert process.returncode == 0, process.stdout + process.stderr
    assert " refused" in process.stdout


@pytest.mark.slow
@pytest.mark.long
def test_three_thousand_mutated_files_of_each_format():
    subprocess.run([sys.executable, fuzz.__file__], check=True)
