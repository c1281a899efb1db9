"""The arguments of pretraining."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.pretraining.arguments import PretrainingArguments, PretrainingDataArguments, parse_phases


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
