"""The recipes: next sentences, sentence order, full sentences."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_score
from synthetic import make_corpus

from snugbert.trainers.pretraining.examples import ROW
from snugbert.trainers.pretraining.sentence_pairs import full_sentences, next_sentence_pairs, sentence_order_pairs

pytestmark = pytest.mark.slow


def table_of(corpus, objective, max_seq_length=128, short_seq_prob=0.1, seed=0) -> np.ndarray:
    rows = []
    for number, block in enumerate(corpus.blocks):
        rng = Random(f"{seed} {number}")
        if objective == "nsp":
            rows += next_sentence_pairs(corpus, number, max_seq_length, short_seq_prob, rng)
        elif objective == "sop":
            rows += sentence_order_pairs(block, number, max_seq_length, short_seq_prob, rng)
        else:
            rows += full_sentences(block, number, max_seq_length)
    return np.array(rows, dtype=ROW)


def numbers(table, name) -> np.ndarray:
    return table[name].astype(np.int64)


def document_of(corpus, blocks, positions) -> np.ndarray:
    """Index of the document of each token, for tokens of several blocks."""
    result = np.empty(len(positions), dtype=np.int64)
    for number, block in enumerate(corpus.blocks):
        here = blocks == number
        starts = block.sentences[block.documents]
        result[here] = np.searchsorted(starts, positions[here], side="right") - 1 + corpus.document_starts[number]
    return result


@pytest.mark.parametrize("max_seq_length", [128, 32, 5])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_pairs_follow_the_recipe(corpus, objective, max_seq_length):
    table = table_of(corpus, objective, max_seq_length, short_seq_prob=0.0)
    first, second, label = (numbers(table, name) for name in ("length", "second_length", "label"))
    start, second_start = numbers(table, "start"), numbers(table, "second_start")
    document = document_of(corpus, table["block"], start)
    second_document = document_of(corpus, table["second_block"], second_start)
    assert first.min() >= 1 and second.min() >= 1
    assert (first + second).max() == max_seq_length - 3
    assert (document == document_of(corpus, table["block"], start + first - 1)).all()
    assert (second_document == document_of(corpus, table["second_block"], second_start + second - 1)).all()
    uncut = first + second < max_seq_length - 3
    if objective == "nsp":
        is_next = label == 0
        assert (document[is_next] == second_document[is_next]).all()
        assert (second_start >= start + first)[is_next].all()
        assert (second_start == start + first)[is_next & uncut].all()
        assert (document != second_document)[~is_next].all()
        # All documents give random second segments equally often, but never from their first sentence.
        expected = np.diff(corpus.document_starts) / corpus.num_documents * (~is_next).sum()
        assert chisquare(np.bincount(table["second_block"][~is_next]), expected).pvalue > 1e-4
        document_starts = [block.sentences[block.documents] for block in corpus.blocks]
        for number, starts in enumerate(document_starts):
            assert not np.isin(second_start[~is_next & (table["second_block"] == number)], starts).any()
    else:
        in_order = np.where(label == 0, second_start - start - first, start - second_start - second)
        assert (document == second_document).all()
        assert (in_order >= 0).all() and (in_order[uncut] == 0).all()
    if max_seq_length == 128:  # no pair with a short target is cut
        short = table_of(corpus, objective, 128, short_seq_prob=1.0)
        lengths = numbers(short, "length") + numbers(short, "second_length")
        assert lengths.mean() < 100
        assert (lengths < 125).mean() > 0.5


@pytest.mark.parametrize("objective", ["nsp", "sop", "mlm"])
def test_text_is_used_once(corpus, objective):
    """Every token is in one first or real second segment, unless truncation of its own pair dropped it."""

    def find_best_spans(table):
        for row in table:
            yield int(row["block"]), int(row["start"]), int(row["length"])
            if objective == "sop" or (objective == "nsp" and row["label"] == 0):
                yield int(row["second_block"]), int(row["second_start"]), int(row["second_length"])

    def used(table):
        counts = [np.zeros(len(block.tokens), dtype=int) for block in corpus.blocks]
        for block, start, length in find_best_spans(table):
            counts[block][start : start + length] += 1
        return counts

    # Pairs that are longer than every document are never truncated.
    longest = max(np.diff(block.sentences[block.documents]).max() for block in corpus.blocks)
    for counts in used(table_of(corpus, objective, int(longest) + 3, short_seq_prob=0.5)):
        assert (counts == 1).all()
    table = table_of(corpus, objective)
    for counts in used(table):
        assert counts.max() == 1
        assert counts.mean() == 1 if objective == "mlm" else counts.mean() > 0.85
    if objective == "mlm":
        return
    # Only full pairs were truncated. So unused text is always next to a full pair, and only segments of full pairs
    # begin or end within a sentence.
    full = numbers(table, "length") + numbers(table, "second_length") == 125
    assert 0.5 < full.mean() < 1
    owners = [
        (*span, bool(is_full)) for row, is_full in zip(table, full, strict=True) for span in find_best_spans([row])
    ]
    for (block, start, length, is_full), (next_block, next_start, _, next_is_full) in pairwise(sorted(owners)):
        sentences = corpus.blocks[block].sentences
        assert is_full or np.isin([start, start + length], sentences).all()
        if block == next_block and not is_full and not next_is_full:
            assert start + length == next_start


@pytest.mark.parametrize(("name", "tolerance"), [("books_en", 0.005), ("wiki_en", 0.02), ("wikitext2", 0.02)])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_labels_are_balanced_and_pairs_are_full(corpora, name, tolerance, objective):
    table = table_of(corpora[name], objective)
    assert abs(table["label"].mean() - 0.5) < (tolerance if objective == "nsp" else 0.02)
    assert (numbers(table, "length") + numbers(table, "second_length") + 3).mean() > 0.9 * 128


@pytest.mark.parametrize("max_seq_length", [64, 128, 512])
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_lengths_barely_reveal_the_label(corpora, objective, max_seq_length):
    """A classifier on both lengths and their sum barely beats always predicting the more frequent label."""
    epochs = [
        table_of(corpora["books_en"], objective, max_seq_length, seed=seed) for seed in range(max_seq_length // 48 + 1)
    ]
    table = np.concatenate(epochs)
    first, second, label = (numbers(table, name) for name in ("length", "second_length", "label"))
    lengths = np.stack([first, second, first + second], axis=1)
    accuracy = cross_val_score(
        HistGradientBoostingClassifier(max_iter=40, early_stopping=False), lengths, label, cv=3
    ).mean()
    # Neighboring sentences have similar lengths. Pairs of 64 tokens reveal most: 1.2 to 1.5 points.
    assert accuracy - max(label.mean(), 1 - label.mean()) < (0.02 if max_seq_length == 64 else 0.015)
    # Whether the second segment ends within a sentence does not reveal the label either.
    ends = second + numbers(table, "second_start")
    at_end = np.zeros(len(table), dtype=bool)
    for number, block in enumerate(corpora["books_en"].blocks):
        here = table["second_block"] == number
        at_end[here] = np.isin(ends[here], block.sentences)
    assert 0.2 < at_end.mean() < 0.8
    assert abs(at_end[label == 0].mean() - at_end[label == 1].mean()) < 0.03


def test_short_documents():
    sentence = [1000, 1001, 1002, 1003]
    alone = make_corpus([[[sentence]] * 20])
    assert (table_of(alone, "nsp")["label"] == 1).all()  # nothing follows a single sentence
    halves = table_of(alone, "sop")
    assert len(halves) == 20 and (halves["length"] == 2).all() and (halves["second_length"] == 2).all()
    assert len(table_of(make_corpus([[[[7]], [sentence]]]), "sop")) == 1  # a single token cannot be split
    # A sentence longer than a pair is cut, with others or alone.
    long = make_corpus([[[list(range(1000, 1500))] * 3, [sentence], [list(range(1000, 1500))]]] * 2)
    for objective in ("nsp", "sop"):
        for seed in range(20):
            table = table_of(long, objective, seed=seed)
            assert (numbers(table, "length") + numbers(table, "second_length")).max() == 125
            assert min(table["length"].min(), table["second_length"].min()) >= 1


def test_labels_stay_balanced_if_many_pairs_are_forced():
    rng = np.random.default_rng(0)
    documents = [[[1000] * rng.integers(5, 40) for _ in range(rng.integers(1, 4))] for _ in range(3000)]
    assert abs(table_of(make_corpus([documents]), "nsp", 32)["label"].mean() - 0.5) < 0.01
