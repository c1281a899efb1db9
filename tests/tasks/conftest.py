"""Sentences of CoNLL-2003, and a tokenizer."""

from dataclasses import replace

import pytest
from conll import conll  # noqa: F401 (a fixture)
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from snugbert.tasks.tagged_sentences import TagSplit


@pytest.fixture(scope="session")
def part(conll) -> TagSplit:  # noqa: F811
    """Whole documents with about 400 sentences."""
    last = conll["validation"].sentences[400].document
    sentences = [s for s in conll["validation"].sentences if s.document < last]
    return replace(conll["validation"], sentences=sentences)


@pytest.fixture(scope="session")
def tokenizer(minilm) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm)
