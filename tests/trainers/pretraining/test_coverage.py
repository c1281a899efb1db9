"""How much of the text an epoch shows."""

import logging

import numpy as np
from synthetic import make_corpus

from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.coverage import log_coverage
from snugbert.trainers.pretraining.examples import PretrainingDataset


def test_the_share_of_the_text_is_logged(words_tokenizer, tmp_path, caplog):
    rng = np.random.default_rng(0)
    documents = [[rng.integers(8, 98, rng.integers(5, 60)).tolist() for _ in range(10)] for _ in range(40)]
    dataset = PretrainingDataset(make_corpus([documents]), words_tokenizer, 32, epochs_dir=tmp_path)
    lengths = [len(sentence) for document in documents for sentence in document]
    steps_per_epoch = -(-len(dataset) // 8)
    phases = [Phase([1, 2], 3, 1), Phase(dataset, 3 * steps_per_epoch, 8)]
    with caplog.at_level(logging.INFO, "snugbert"):
        for step in (0, 3, 3 + 2 * steps_per_epoch, 3 + 3 * steps_per_epoch):
            log_coverage(phases, step)  # a list of features and a finished run have nothing to report
    first, second = [record.message for record in caplog.records if "the examples contain" in record.message]
    assert first.startswith("epoch 0: the examples contain 9") and second.startswith("epoch 2: ")
    assert first.endswith(
        f"Longest sentence: {max(lengths)} tokens. Split sentences (longer than 29 tokens): "
        f"{sum(length > 29 for length in lengths)}"
    )
