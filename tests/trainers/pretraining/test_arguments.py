"""The arguments of pretraining: defaults, errors, and what importing them costs."""

import subprocess
import sys

import pytest

from snugbert.errors import InputError
from snugbert.trainers.pretraining.arguments import PretrainingArguments, PretrainingDataArguments, parse_phases

HEAVY = ("datasets", "pyarrow", "joblib", "matplotlib", "evaluate", "sentencex", "sklearn", "transformers.trainer")


def test_importing_the_command_imports_nothing_heavy():
    """`snugbert pretrain --help` must be fast."""
    code = "import sys, snugbert.trainers.pretraining.command; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    assert "snugbert.trainers.pretraining.arguments" in loaded
    assert not loaded & set(HEAVY)


def test_errors_are_value_errors():
    with pytest.raises(ValueError, match="--auto_find_batch_size is not supported"):
        PretrainingArguments(auto_find_batch_size=True, use_cpu=True)
    assert issubclass(InputError, ValueError)


def test_phases_are_parsed():
    assert parse_phases("128:90%, 512:10%") == [(128, 0.9), (512, 0.1)]
    assert PretrainingDataArguments(max_seq_length=64).lengths_and_shares == [(64, 1.0)]


def test_the_seed_of_the_examples():
    assert PretrainingArguments(seed=3, use_cpu=True).examples_seed == 3
    assert PretrainingArguments(seed=3, data_seed=0, use_cpu=True).examples_seed == 0
