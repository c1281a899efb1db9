"""The first steps of every run."""

import os

import pytest
from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.trainers.run_setup import move_hub_token, set_up


@pytest.mark.parametrize("name", ["learning_rate", "seed", "data_seed"])
def test_negative_values_are_rejected(name, tmp_path):
    with pytest.raises(InputError, match=f"--{name} -1 must not be negative"):
        set_up(TrainingArguments(str(tmp_path), use_cpu=True, **{name: -1}))


def test_the_token_moves_to_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "other")
    args = TrainingArguments(str(tmp_path), use_cpu=True, hub_token="secret")
    move_hub_token(args)
    assert os.environ["HF_TOKEN"] == "secret" and args.hub_token is True
