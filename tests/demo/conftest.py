"""Fixtures of the demo's tests."""

from pathlib import Path

import pytest
import torch
from demo_checkpoints import VOCABULARY, train_checkpoints

import snugbert


@pytest.fixture(scope="session")
def tokenizer() -> snugbert.SnugBertTokenizer:
    return snugbert.SnugBertTokenizer({word: index for index, word in enumerate(VOCABULARY)})


@pytest.fixture(scope="session")
def checkpoints(tokenizer, tmp_path_factory) -> dict[str, Path]:
    """Folders by the names of [`train_checkpoints`]."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads only wait for each other on models this small
    try:
        return train_checkpoints(tmp_path_factory.mktemp("checkpoints"), tokenizer)
    finally:
        torch.set_num_threads(threads)
