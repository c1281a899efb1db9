"""Texts, and tokenizers learned from them."""

from itertools import islice
from pathlib import Path

import pytest
from vocabularies import DOCUMENTS

from snugbert.cli.main import run_command
from snugbert.data.documents import read_lines


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def some_text(tmp_path_factory, data_dir: Path) -> Path:
    """A sixth of the training text of Wikipedia."""
    file = tmp_path_factory.mktemp("text") / "wiki.txt"
    file.write_text("\n".join(islice(read_lines([data_dir / "wiki_en/train.txt.gz"]), 600)), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def bpe_folders(tmp_path_factory, some_text: Path) -> dict[str, Path]:
    """A BPE and a byte-level BPE tokenizer of 4,000 tokens."""
    folder = tmp_path_factory.mktemp("bpe")
    for kind in ("bpe", "byte-bpe"):
        arguments = ["--train_file", str(some_text), "--vocab_size", "4000"]
        run_command("vocabulary", ["--model", kind, *arguments, "--output_dir", str(folder / kind)])
    return {kind: folder / kind for kind in ("bpe", "byte-bpe")}
