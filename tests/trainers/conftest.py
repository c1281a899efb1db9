"""Fixtures of text and corpora, and the arguments of a short run of `snugbert pretrain`."""

import numpy as np
import pytest
from text_fixtures import books, corpus, small, small_blocks, tokenizer, words_tokenizer  # noqa: F401

import snugbert


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """Short documents, a tokenizer for them, and the arguments of a run that takes seconds."""
    folder = tmp_path_factory.mktemp("pretraining")
    rng = np.random.default_rng(0)
    topics = [[f"w{topic}{word}" for word in "abcd"] for topic in range(3)]
    lines = []
    for _ in range(120):
        topic = topics[rng.integers(3)]
        lines += [" ".join(rng.choice(topic, size=rng.integers(4, 9))) + " ." for _ in range(6)] + [""]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "validation.txt").write_text("\n".join(lines[:140]))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(word for topic in topics for word in topic)]
    snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}).save_pretrained(folder / "tok")
    return {
        "tokenizer_name": folder / "tok",
        "config_name": "tiny",
        "train_file": folder / "text.txt",
        "validation_file": folder / "validation.txt",
        "lines_are_sentences": "true",
        "max_seq_length": 40,
        "per_device_train_batch_size": 16,
        "max_steps": 8,
        "logging_steps": 2,
        "use_cpu": "true",
        "disable_tqdm": "true",
    }
