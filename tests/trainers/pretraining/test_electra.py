"""ELECTRA's generator and discriminator: loss, gradients, sampled tokens, files."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from synthetic import VOCAB_SIZE, ExamplesWithoutPairs, make_pair, packed_for_electra, padded
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, EvalPrediction

import snugbert
from snugbert.cli.model_arguments import ModelArguments
from snugbert.families.loading import load_config
from snugbert.trainers.pretraining.electra import ElectraPair, load_pair, sample_tokens
from snugbert.trainers.pretraining.scores import compute_metrics, sum_per_sequence
from snugbert.trainers.pretraining.training_log import TrainingLog, count_batch

STOCK_NAMES = {
    "bert.": "electra.",
    "cls.predictions.transform.": "generator_predictions.",
    "cls.predictions.decoder.": "generator_lm_head.",
    "cls.predictions.bias": "generator_lm_head.bias",
}


@pytest.fixture
def pair() -> ElectraPair:
    """Embeddings narrower than the discriminator and wider than the generator. Float64, no dropout, large weights."""
    torch.manual_seed(9)  # the generator draws an original token, too
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=VOCAB_SIZE, embedding_size=48, initializer_range=0.2)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return make_pair(config).double()


def make_batch() -> tuple[dict, dict]:
    """The same sequences as one packed batch and as one padded batch."""
    examples = [ExamplesWithoutPairs(8)[index] for index in range(8)]
    in_one_row = packed_for_electra(examples)
    return in_one_row, padded(examples) | {"replacement_keys": in_one_row["replacement_keys"]}


def stock_models(pair: ElectraPair) -> tuple[ElectraForMaskedLM, ElectraForPreTraining]:
    """transformers' own generator and discriminator with the same weights and shared embeddings."""
    models = []
    for model, stock_class in ((pair.generator, ElectraForMaskedLM), (pair.discriminator, ElectraForPreTraining)):
        stock = stock_class(ElectraConfig(**{**model.config.to_dict(), "model_type": "electra"})).double()
        weights = model.state_dict()
        for ours, theirs in STOCK_NAMES.items():
            weights = {
                theirs + name.removeprefix(ours) if name.startswith(ours) else name: weights[name] for name in weights
            }
        stock.load_state_dict(weights)
        models.append(stock)
    generator, discriminator = models
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    return generator, discriminator


def reference_loss(pair: ElectraPair, generator, discriminator, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """ELECTRA's loss as in the paper (section 3.1), token by token. Also returns the tokens that were replaced."""
    labels, mask = batch["labels"], batch["attention_mask"]
    logits = generator(batch["input_ids"], attention_mask=mask).logits
    original = torch.where(labels == -100, batch["input_ids"], labels)
    corrupted, mlm_losses = original.clone(), []
    places = [(row, column) for row, column in np.argwhere(labels.numpy() != -100).tolist()]
    for (row, column), key in zip(places, batch["replacement_keys"].tolist(), strict=True):
        scores = logits[row, column]
        mlm_losses.append(scores.logsumexp(0) - scores[labels[row, column]])
        uniform = [key * other % 2**63 / 2**63 for other in pair._vocabulary_keys.tolist()]
        gumbel = torch.tensor([-math.log(-math.log1p(-value)) for value in uniform])
        corrupted[row, column] = (scores + gumbel).argmax()
    is_replaced = corrupted != original
    probabilities = discriminator(corrupted, attention_mask=mask).logits.sigmoid()
    disc_losses = -torch.where(is_replaced, probabilities, 1 - probabilities).log()[mask == 1]
    return torch.stack(mlm_losses).mean() + 50 * disc_losses.mean(), is_replaced


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_loss_and_gradients_equal_a_plain_reference(pair, layout):
    packed_batch, padded_batch = make_batch()
    generator, discriminator = stock_models(pair)
    expected, is_replaced = reference_loss(pair, generator, discriminator, padded_batch)
    outputs = pair(**(packed_batch if layout == "packed" else padded_batch))
    torch.testing.assert_close(outputs.loss, expected, rtol=1e-10, atol=0)
    is_token = padded_batch["attention_mask"] == 1
    ours = outputs.is_replaced[0] if layout == "packed" else outputs.is_replaced[is_token]
    assert torch.equal(ours == 1, is_replaced[is_token])
    assert 0 < is_replaced.sum() < (padded_batch["labels"] != -100).sum()

    outputs.loss.backward()
    expected.backward()
    for model, stock in ((pair.generator, generator), (pair.discriminator, discriminator)):
        theirs = dict(stock.named_parameters())
        for name, parameter in model.named_parameters():
            stock_name = name
            for old, new in STOCK_NAMES.items():
                if stock_name.startswith(old):
                    stock_name = new + stock_name.removeprefix(old)
            torch.testing.assert_close(parameter.grad, theirs[stock_name].grad, rtol=1e-8, atol=1e-10, msg=name)


@torch.no_grad()
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_metrics_by_hand(pair, layout):
    """The evaluation and the log report the losses and accuracies of the logits, without padding."""
    batch = make_batch()[0 if layout == "packed" else 1]
    outputs = pair(**batch)
    is_token = batch.get("attention_mask", torch.ones_like(batch["input_ids"])) == 1
    assert torch.equal(outputs.is_replaced != -100, is_token)
    is_replaced, logits = outputs.is_replaced[is_token] == 1, outputs.discriminator_logits[is_token]
    probabilities, original = logits.sigmoid(), batch["labels"][batch["labels"] != -100]
    expected = {
        "mlm_loss": -outputs.logits.log_softmax(-1)[range(len(original)), original].mean().item(),
        "mlm_accuracy": (outputs.logits.argmax(-1) == original).double().mean().item(),
        "disc_loss": -torch.where(is_replaced, probabilities, 1 - probabilities).log().mean().item(),
        "disc_accuracy": ((probabilities > 0.5) == is_replaced).double().mean().item(),
        "replaced": is_replaced.double().mean().item(),
    }
    expected["loss"] = expected["mlm_loss"] + 50 * expected["disc_loss"]
    assert compute_metrics(EvalPrediction(sum_per_sequence(outputs, batch).numpy(), None)) == pytest.approx(expected)

    log = TrainingLog(torch.device("cpu"), is_main_process=True, reduce=lambda tensor: tensor)
    log.start_step()
    log.add_batches([count_batch(batch, pair.discriminator.config, pair.generator.config)], has_pairs=False)
    log.add_outputs(outputs, batch)
    line = log.next_line()
    assert {name: line[name] for name in expected} == pytest.approx(expected)
    assert log.summarize(steps=1)["train_loss"] == pytest.approx(expected["loss"])


@pytest.mark.parametrize(
    ("rows", "vocab_size", "spread", "cells", "limit"), [(200_000, 30, 2.0, 30, 58.3), (20_000, 3000, 0.0, 100, 148.2)]
)
def test_tokens_are_drawn_from_the_softmax(rows, vocab_size, spread, cells, limit):
    """Chi-squared test, p = 0.001. A row's token depends on the row and its key only.

    The tokens are counted in cells of consecutive ids.
    """
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(vocab_size, generator=generator) * spread
    keys = torch.from_numpy(np.random.default_rng(1).integers(-(2**63), 2**63, rows))
    vocabulary_keys = torch.from_numpy(np.random.default_rng(0).integers(2**63, size=vocab_size) * 2 + 1)
    tokens = sample_tokens(logits.expand(len(keys), -1), keys, vocabulary_keys)
    expected = (logits.double().softmax(0) * len(keys)).view(cells, -1).sum(-1)
    counts = tokens.bincount(minlength=vocab_size).view(cells, -1).sum(-1)
    assert ((counts - expected) ** 2 / expected).sum().item() < limit  # cells - 1 degrees of freedom
    assert torch.equal(sample_tokens(logits.expand(7, -1), keys[100:107], vocabulary_keys), tokens[100:107])


def test_a_pair_is_loaded_from_a_folder_or_the_hub(pair, tmp_path, caplog):
    """The generator of the checkpoint trains on, with its own configuration, except dropout."""
    caplog.set_level("INFO", "snugbert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(VOCAB_SIZE - 5))]
    tokenizer = snugbert.SnugBertTokenizer({word: number for number, word in enumerate(words)})
    tokenizer.save_pretrained(tmp_path)
    snapshot = Path(constants.HF_HUB_CACHE) / "models--org--electra/snapshots" / ("0" * 40)
    for folder in (tmp_path / "pair", snapshot):
        pair.discriminator.save_pretrained(folder)
        pair.generator.save_pretrained(folder / "generator")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs/main").write_text(snapshot.name)

    def load(name, **changes) -> ElectraPair:
        caplog.clear()
        args = ModelArguments(model_name_or_path=str(name), tokenizer_name=str(tmp_path), **changes)
        return load_pair(args, load_config(args, tokenizer), tokenizer, generator_size=0.5)

    for name, folder in ((tmp_path / "pair", tmp_path / "pair"), ("org/electra", snapshot)):
        loaded = load(name, config_name=str(folder), config_overrides="hidden_dropout_prob=0.3")
        assert f"generator: {folder}/generator (--generator_size has no effect)" in caplog.text
        assert loaded.generator.config.hidden_dropout_prob == 0.3
        for name, parameter in pair.named_parameters():
            assert torch.equal(loaded.get_parameter(name), parameter.float())
    shutil.rmtree(tmp_path / "pair/generator")
    assert load(tmp_path / "pair").generator.config.hidden_size == 64 and "generator: random weights" in caplog.text
