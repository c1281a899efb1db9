"""Sentences of CoNLL-2003, and a tokenizer."""

from dataclasses import replace

import pytest
from conll import choose_labels, load_splits
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from snugbert.tasks.tagged_sentences import TagSplit


@pytest.fixture(scope="session")
def part(data_dir) -> TagSplit:
    """Whole documents with about 400 sentences."""
    arguments = {"validation_file": str(data_dir / "conll2003/valid.txt.gz"), "max_eval_samples": 401}
    split = load_splits(("validation",), **arguments)["validation"]
    last = split.sentences[400].document
    return replace(split, sentences=[s for s in split.sentences if s.document < last])


@pytest.fixture(scope="session")
def labels(part) -> list[str]:
    return choose_labels({"train": part}, [])


@pytest.fixture(scope="session")
def tokenizer(minilm) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(minilm)
