"""Fixtures for the tests of the benchmarks, which `make test-benchmarks` runs."""

import pytest
import torch
from benchmark_files import BENCHMARKS
from transformers import AutoTokenizer, BertConfig, BertModel

from snugbert_cli import main as snugbert_command


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("side_by_side.RATE_SECONDS", 0.001)  # a run of ten that measure the rate of products


@pytest.fixture
def steps(tmp_path, monkeypatch) -> list[str]:
    """The folders of a benchmark's steps, which run in this process."""
    folders = []

    def run(command, log):
        folders.append(log.parent.relative_to(tmp_path / "out").as_posix())
        return snugbert_command(command[3:])

    monkeypatch.setattr("pretraining_ladder.run_process", run)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return folders


@pytest.fixture
def tiny_bert(minilm, tmp_path) -> str:
    torch.manual_seed(0)  # for the same scores in every run
    model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64))
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(minilm).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")
