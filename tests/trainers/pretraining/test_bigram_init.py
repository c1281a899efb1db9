"""Models with initial weights from bigrams, on the text of a Markov chain: only its bigrams help to predict it."""

from pathlib import Path

import forked
import numpy as np
import pytest
import torch
import transformers
from accelerate import PartialState
from pretraining_command import run
from synthetic import make_corpus

import snugbert
from snugbert.data.corpus import Block, Corpus
from snugbert.errors import InputError
from snugbert.trainers.pretraining.bigram_init import initialize_from_bigrams, share_weights

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
    initialize_from_bigrams(model, corpus, tokenizer, seed=0)
    return model


@pytest.fixture(scope="module")
def model(corpus, tokenizer):
    return make_model(corpus, tokenizer)


@pytest.mark.parametrize(
    ("kind", "config", "excess"),
    [
        (snugbert.SnugBertForPreTraining, {}, 0.15),  # more dimensions than tokens
        (snugbert.SnugBertForMaskedLM, {"hidden_act": "relu", "vocab_size": 100, "pad_token_id": None}, 0.2),
        (snugbert.SnugBertForMaskedLM, {"hidden_size": 144, "num_attention_heads": 3}, 0.2),  # one head stays random
        (snugbert.SnugBertForMaskedLM, {"hidden_size": 64, "num_attention_heads": 8}, 1.0),  # few dimensions
    ],
    ids=["pretraining", "masked", "three heads", "small heads"],
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


def test_stock_bert_has_the_same_loss(model, batch):
    stock = transformers.BertForMaskedLM(transformers.BertConfig(**model.config.to_dict() | {"model_type": "bert"}))
    stock.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert stock.eval()(**batch).loss.item() == pytest.approx(model(**batch).loss.item(), rel=1e-5)


def test_a_masked_token_attends_to_the_previous_and_the_next_token(model, batch):
    with torch.no_grad():
        first, *_ = model(input_ids=batch["input_ids"], output_attentions=True).attentions
    rows, columns = (batch["labels"] != -100).nonzero(as_tuple=True)
    for head, offset in enumerate((-1, 1)):
        weights = first[rows, head, columns, columns + offset]
        assert weights.mean() > 0.95 and weights.min() > 0.8


def test_every_weight_of_the_first_layer_can_learn(model, batch):
    """If a query and its key were both zero, neither would get a gradient. The same holds for values and outputs."""
    model.zero_grad()
    model(**batch).loss.backward()
    attention = model.bert.encoder.layer[0].attention
    queries, keys = (module.weight.grad.any(dim=1) for module in (attention.self.query, attention.self.key))
    values, outputs = attention.self.value.weight.grad.any(dim=1), attention.output.dense.weight.grad.any(dim=0)
    assert (queries | keys).all() and (values | outputs).all()


def test_the_same_text_and_seed_give_the_same_weights(model, corpus, tokenizer):
    again = make_model(corpus, tokenizer)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_attention_heads": 1}, "the model has one attention head, but needs one for each neighbor"),
        ({"num_attention_heads": 32}, "attention heads have 4 dimensions, but need at least 8"),
        ({"hidden_act": "tanh"}, "needs hidden_act gelu or relu, not tanh"),
        ({"position_embedding_type": "sinusoidal"}, "needs learned positions"),
        ({"tie_word_embeddings": False}, "needs tied word embeddings"),
    ],
)
def test_models_that_cannot_have_such_weights_are_refused(config, message, corpus, tokenizer):
    with pytest.raises(InputError, match=f"^--bigram_init.*{message}"):
        make_model(corpus, tokenizer, **config)


def test_text_without_bigrams_is_refused(tokenizer):
    with pytest.raises(InputError, match="every document is a single token"):
        make_model(make_corpus([[[[7]], [[8]]]]), tokenizer)


def test_other_weights_and_missing_text_are_refused(tmp_path, tokenizer, model, capsys):
    tokenizer.save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    arguments = {"bigram_init": "true", "use_cpu": "true", "output_dir": tmp_path / "run"}
    assert run(arguments, model_name_or_path=tmp_path, train_file=__file__) == 2
    assert "--bigram_init cannot be combined with --model_name_or_path" in capsys.readouterr().err
    more = {"config_name": "tiny", "tokenizer_name": tmp_path, "validation_file": __file__, "do_eval": "true"}
    assert run(arguments, **more) == 2
    assert "--bigram_init needs training text. Give --train_file" in capsys.readouterr().err


def share_and_save(folder: Path) -> None:
    process = PartialState(cpu=True).process_index
    torch.manual_seed(process)
    model = snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig.from_size("tiny", vocab_size=50))
    share_weights(model, torch.device("cpu"))
    torch.save(model.state_dict(), folder / f"{process}.pt")


def test_all_processes_get_the_weights_of_the_first(tmp_path):
    result = forked.run(share_and_save, tmp_path, processes=2)
    assert result.returncode == 0, result.stderr
    torch.manual_seed(0)
    expected = snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig.from_size("tiny", vocab_size=50)).state_dict()
    for process in range(2):
        weights = torch.load(tmp_path / f"{process}.pt")
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
