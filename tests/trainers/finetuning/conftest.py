"""Fixtures for tests of fine-tuning."""

from pathlib import Path

import pytest
from finetuning_examples import make_tokenizer
from glue_examples import TOKENIZER, sentences
from tables import write_csv

from snugbert import SnugBertTokenizer


@pytest.fixture(scope="session")
def tokenizer() -> SnugBertTokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tokenizer and data: 160 examples to train on, 60 to score, 20 to predict."""
    folder = tmp_path_factory.mktemp("glue")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    write_csv(folder / "train.csv", sentences(160, seed=1))
    write_csv(folder / "dev.csv", sentences(60, seed=2))
    write_csv(folder / "test.csv", [{"sentence": row["sentence"]} for row in sentences(20, seed=3)])
    return folder
