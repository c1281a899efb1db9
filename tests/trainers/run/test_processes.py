"""The Hub token moves to the environment before a run begins."""

import os

from transformers import TrainingArguments

from snugbert.trainers.run.processes import move_hub_token


def test_the_token_moves_to_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "other")
    args = TrainingArguments(str(tmp_path), use_cpu=True, hub_token="secret")
    move_hub_token(args)
    assert os.environ["HF_TOKEN"] == "secret" and args.hub_token is True
