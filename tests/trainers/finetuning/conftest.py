"""Fixtures for tests of fine-tuning."""

import pytest
from finetuning_examples import make_tokenizer

from snugbert import SnugBertTokenizer
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments


@pytest.fixture(scope="session")
def tokenizer() -> SnugBertTokenizer:
    return make_tokenizer()


@pytest.fixture
def model_args() -> FineTunedModelArguments:
    return FineTunedModelArguments(config_name="tiny", tokenizer_name=".")
