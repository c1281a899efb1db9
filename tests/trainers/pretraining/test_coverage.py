"""How much of the text an epoch shows."""

import logging

import numpy as np
import pytest
from synthetic import make_corpus

from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.coverage import log_coverage, measure_coverage
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


def test_rows_that_an_epoch_does_not_use_do_not_count(words_tokenizer, tmp_path):
    documents = [[[8 + word] * 9 for word in range(20)] for _ in range(20)]
    dataset = PretrainingDataset(make_corpus([documents]), words_tokenizer, 23, "mlm", epochs_dir=tmp_path)
    table, size = dataset.open_table(0), len(dataset)
    assert dataset.find_unused(0) == [] and measure_coverage(dataset.corpus, table) == 1
    dataset._length -= 3  # as if the first epoch had fewer examples
    unused = dataset.find_unused(0)
    assert len(unused) == 3 and 0 <= min(unused) and max(unused) < size
    share = measure_coverage(dataset.corpus, table, unused)
    assert share == pytest.approx(1 - table["length"][unused].sum() / dataset.corpus.num_tokens)
