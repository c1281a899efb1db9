"""Initial weights from bigrams.

Counts and mutual information are compared with the formula on dense matrices. Models get their weights from the text
of a Markov chain: only its bigrams help to predict it.
"""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from synthetic import make_corpus

import snugbert
from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import Block
from snugbert.errors import InputError
from snugbert.trainers.pretraining import bigrams
from snugbert.trainers.pretraining.bigrams import (
    PRIOR_COUNT,
    check_bigram_config,
    count_bigrams,
    initialize_from_bigrams,
    weigh_bigrams,
)


def test_bigrams_are_counted_within_documents(monkeypatch):
    """They cross sentences, but not documents. Several blocks are counted, seven pairs at a time."""
    monkeypatch.setattr(bigrams, "PAIRS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(30, size=size).tolist() for size in sizes] for sizes in rng.integers(1, 9, size=(60, 3))
    ]
    expected = np.zeros((40, 40))
    for document in documents:
        for left, right in pairwise(token for sentence in document for token in sentence):
            expected[left, right] += 1
    corpus = make_corpus([documents[:1], documents[1:20], documents[20:]])
    np.testing.assert_array_equal(count_bigrams(corpus.blocks, 40).toarray(), expected)


def test_mutual_information_equals_its_formula():
    counts = np.random.default_rng(0).poisson(0.5, size=(6, 6)).astype(float)
    p = np.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    side = weigh_bigrams(scipy.sparse.csr_array(counts), p)
    smoothed = (counts + PRIOR_COUNT * p) / (counts.sum(axis=1, keepdims=True) + PRIOR_COUNT)
    expected = np.sqrt(np.outer(p, p)) * np.log(smoothed / p)
    np.testing.assert_allclose(side.times(np.eye(6)), expected, atol=1e-14)
    np.testing.assert_allclose(side.transposed_times(np.eye(6)), expected.T, atol=1e-14)


MASK, SPECIAL, WORDS, LENGTH, HELD_OUT = 4, 5, 60, 40, 200
VOCAB_SIZE = SPECIAL + WORDS
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def tokenizer():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS))]
    return snugbert.SnugBertTokenizer({token: index for index, token in enumerate(tokens)})


@pytest.fixture(scope="module")
def transitions() -> np.ndarray:
    """p(next word | word). *Shape:* (words, words)"""
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.full(WORDS, 0.2), size=WORDS)


@pytest.fixture(scope="module")
def text(transitions) -> np.ndarray:
    """A document per row."""
    rng = np.random.default_rng(1)
    cumulated = transitions.cumsum(axis=1)
    columns = [rng.integers(WORDS, size=15_000)]
    for _ in range(LENGTH - 1):
        columns.append((cumulated[columns[-1]] < rng.random(15_000)[:, None]).sum(axis=1).clip(max=WORDS - 1))
    return np.stack(columns, axis=1)


@pytest.fixture(scope="module")
def corpus(text) -> Corpus:
    """All documents but the last ones. Each is one sentence."""
    documents = text[:-HELD_OUT] + SPECIAL
    offsets = np.arange(len(documents) + 1)
    return Corpus([Block(documents.ravel(), offsets * LENGTH, offsets)], digest="")


@pytest.fixture(scope="module")
def batch(text) -> dict[str, torch.Tensor]:
    """The last documents. Each has one masked word, which is not the first or last one."""
    rows, columns = torch.arange(HELD_OUT), 2 + torch.arange(HELD_OUT) % (LENGTH - 2)
    input_ids = torch.nn.functional.pad(torch.from_numpy(text[-HELD_OUT:]) + SPECIAL, (1, 1))
    input_ids[:, 0], input_ids[:, -1] = 2, 3
    labels = torch.full_like(input_ids, -100)
    labels[rows, columns] = input_ids[rows, columns]
    return {"input_ids": input_ids.index_put((rows, columns), torch.tensor(MASK)), "labels": labels}


def make_model(corpus, tokenizer, kind=snugbert.SnugBertForMaskedLM, **config):
    torch.manual_seed(0)
    config = {"vocab_size": VOCAB_SIZE, "attn_implementation": "eager"} | NO_DROPOUT | config
    model = kind(snugbert.SnugBertConfig.from_size("tiny", **config)).eval()
    initialize_from_bigrams(model, corpus, tokenizer, 0, corpus.blocks)
    return model


@pytest.mark.parametrize(
    ("kind", "config", "excess"),
    [
        (snugbert.SnugBertForPreTraining, {}, 0.13),  # more dimensions than tokens
        (snugbert.SnugBertForMaskedLM, {"hidden_act": "relu", "hidden_size": 48, "pad_token_id": None}, 1.55),
        (snugbert.SnugBertForMaskedLM, {"hidden_size": 144, "num_attention_heads": 3, "vocab_size": 100}, 0.2),
    ],
    ids=["pretraining", "fewer dimensions than tokens", "three heads"],  # of which one stays random
)
def test_a_model_without_training_predicts_from_both_neighbors(
    kind, config, excess, corpus, tokenizer, batch, text, transitions
):
    """Its loss is at most `excess` nats above the loss of p(w | left) p(right | w), exact for Markov chains."""
    rows, columns = (batch["labels"] != -100).nonzero(as_tuple=True)
    left, right = (batch["input_ids"][rows, columns + offset] - SPECIAL for offset in (-1, 1))
    words = batch["labels"][rows, columns] - SPECIAL
    exact = transitions[left] * transitions[:, right].T
    exact_loss = -np.log(exact[rows, words] / exact.sum(axis=1)).mean()
    frequency_loss = -np.log(np.bincount(text.ravel())[words] / text.size).mean()
    assert exact_loss < frequency_loss - 2  # otherwise, the text would be too easy
    with torch.no_grad():
        loss = make_model(corpus, tokenizer, kind, **config)(**batch).loss.item()
    assert exact_loss < loss < exact_loss + excess


def test_two_heads_of_each_layer_attend_to_the_tokens_at_its_distance(corpus, tokenizer, batch):
    """A masked token in the second layer, for example, attends to the tokens two positions before and after."""
    model = make_model(corpus, tokenizer, num_hidden_layers=3)
    with torch.no_grad():
        layers = model(input_ids=batch["input_ids"], output_attentions=True).attentions
    rows, columns = (batch["labels"] != -100).nonzero(as_tuple=True)
    inside = (columns > 2) & (columns < LENGTH - 1)
    rows, columns = rows[inside], columns[inside]
    for distance, attentions in enumerate(layers, start=1):
        for head, offset in enumerate((-distance, distance)):
            assert attentions[rows, head, columns, columns + offset].mean() > 0.8


def test_every_weight_of_the_first_layer_can_learn(corpus, tokenizer, batch):
    """If a query and its key were both zero, neither would get a gradient. The same holds for values and outputs.

    The same text and seed give the same weights.
    """
    model, again = (make_model(corpus, tokenizer) for _ in range(2))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    model(**batch).loss.backward()
    attention = model.bert.encoder.layer[0].attention
    queries, keys = (module.weight.grad.any(dim=1) for module in (attention.self.query, attention.self.key))
    values, outputs = attention.self.value.weight.grad.any(dim=1), attention.output.dense.weight.grad.any(dim=0)
    assert (queries | keys).all() and (values | outputs).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": 1}, "needs at least 2 attention heads"),
        ({"num_attention_heads": 32}, "needs attention heads of at least 8 dimensions, not 4"),
        ({"embedding_size": 64}, "needs embeddings as wide as the layers"),
        ({"hidden_act": "tanh"}, "needs hidden_act gelu or relu, not tanh"),
        ({"position_embedding_type": "relative", "position_buckets": 8}, "needs learned positions"),
        ({"tie_word_embeddings": False}, "needs tied word embeddings"),
    ],
)
def test_models_that_cannot_have_such_weights_are_refused(config, message):
    with pytest.raises(InputError, match=f"^--bigram_init.*{message}"):
        check_bigram_config(snugbert.SnugBertConfig.from_size("tiny", **config))
