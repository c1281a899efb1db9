"""Fixtures for the tests of the benchmarks. `make test-benchmarks` runs the long ones."""

from pathlib import Path

import pytest
import torch
from benchmark_files import BENCHMARKS, write_little_data

from snugbert import SnugBertConfig, SnugBertModel, SnugBertTokenizer


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("side_by_side.RATE_SECONDS", 0.001)  # a run of ten that measure the rate of products


@pytest.fixture(scope="session")
def little_data(data_dir, tmp_path_factory) -> Path:
    return write_little_data(data_dir, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tiny_model(minilm, tmp_path_factory) -> str:
    """A model of two layers without dropout, with large random weights, so that labels are not decided by rounding."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = SnugBertConfig.from_size(
        "tiny",
        hidden_size=64,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,
    )
    SnugBertModel(config).save_pretrained(folder)
    SnugBertTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return str(folder)
