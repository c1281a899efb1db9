"""Sentences of CoNLL-2003, and a tokenizer."""

import pytest
from conll import FILES, PARTS
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from snugbert.trainers.ner.arguments import NerDataArguments
from snugbert.trainers.ner.data import NerSplit, load_splits


@pytest.fixture(scope="session")
def conll(data_dir) -> dict[str, NerSplit]:
    """The sentences of CoNLL-2003."""
    files = {f"{part}_file": str(data_dir / "conll2003" / f"{name}.txt.gz") for part, name in FILES.items()}
    return load_splits(NerDataArguments(**files), PARTS)


@pytest.fixture(scope="session")
def part(conll) -> NerSplit:
    """Whole documents with about 400 sentences."""
    last = conll["validation"].sentences[400].document
    return conll["validation"]._replace(sentences=[s for s in conll["validation"].sentences if s.document < last])


@pytest.fixture(scope="session")
def tokenizer(minilm) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm)
