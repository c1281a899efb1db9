"""Fixtures of text and corpora."""

import pytest
from text_fixtures import small, small_blocks, words_tokenizer  # noqa: F401

import snugbert


@pytest.fixture(scope="session")
def tokenizer(data_dir) -> snugbert.SnugBertTokenizer:
    """An uncased tokenizer with the most frequent tokens of BERT's. Each corpus stores a hash of the vocabulary."""
    tokens = (data_dir / "vocab/bert-base-uncased-vocab.txt").read_text(encoding="utf-8").splitlines()[:4000]
    tokens = [token for token in tokens if not token.startswith("[unused")]
    return snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})
