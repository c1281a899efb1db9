"""The Trainer of fine-tuning: exact losses, frozen layers, the order of predictions."""

from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from family_checkpoints import write_checkpoint
from finetuning_examples import (
    HEADS,
    WEIGHTS,
    examples,
    make_tokenizer,
    new_model,
    new_trainer,
    prepare_examples,
    train_one_step,
)
from parity import assert_same_gradients
from safetensors.torch import load_file
from sklearn.utils.class_weight import compute_class_weight
from transformers import TrainerCallback

import snugbert
from snugbert import SnugBertForSequenceClassification
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import DivergedError
from snugbert.trainers.finetuning.layers import reinitialize_layers
from snugbert.trainers.finetuning.losses import class_weights

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize(("head", "weights"), [*((head, None) for head in HEADS), *((h, WEIGHTS) for h in HEADS[:2])])
def test_one_batch_equals_accumulated_padded_and_filled_batches(head, weights, tokenizer, tmp_path):
    """The last of six accumulated batches has 5 of 45 examples. A mean of means would weight it too much."""
    models = [
        train_one_step(new_trainer(head, tokenizer, tmp_path, class_weights=weights, **settings))
        for settings in (
            {"per_device_train_batch_size": 45},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_max_length": True},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_multiple_of": 32},
        )
    ]
    for other in models[1:]:
        assert_same_gradients(other, models[0])


def test_class_weights_equal_torch_and_scikit_learn(tokenizer, tmp_path):
    for head, column in ((HEADS[1], "labels"), (HEADS[0], "label")):
        data = examples(head, 45)
        labels = np.concatenate([np.atleast_1d(each) for each in data[column]])
        expected = compute_class_weight("balanced", classes=np.arange(3), y=labels[labels >= 0])
        balanced = class_weights("balanced", prepare_examples(head, tokenizer, data))
        np.testing.assert_allclose(balanced, expected, rtol=1e-6)
    two = data.filter(lambda row: row["label"] != 1)
    expected = compute_class_weight("balanced", classes=np.array([0, 2]), y=two["label"][:])
    weights = class_weights("balanced", prepare_examples(HEADS[0], tokenizer, two))
    np.testing.assert_allclose(weights[[0, 2]], expected, rtol=1e-6)

    settings = {"class_weights": "balanced", "per_device_train_batch_size": 45, "max_steps": 1}
    loss = new_trainer(HEADS[0], tokenizer, tmp_path, data, **settings).train().training_loss
    model = new_model(HEADS[0]).eval()
    logits = torch.stack([model(torch.tensor([ids])).logits[0] for ids in data["input_ids"]])
    # Balanced weights have mean 1 over the labels, so torch's division by their sum is the same.
    assert loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels), balanced).item(), abs=1e-5
    )


@pytest.mark.parametrize(
    "fields", [{}, {"embedding_size": 16}, {"position_embedding_type": "relative", "type_vocab_size": 0}]
)
def test_layerwise_learning_rates(fields, tokenizer, tmp_path):
    """Of BERT, and of models with the parts of ELECTRA and DeBERTa."""
    settings = {"layerwise_lr_decay": 0.5, "learning_rate": 1.0, "weight_decay": 0.01}
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, model=new_model(HEADS[0], **fields), **settings)
    optimizer = trainer.create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert optimizer.param_groups[0]["lr"] == 1.0  # Trainer logs this rate
    for name, parameter in trainer.model.named_parameters():
        head = name.startswith(("classifier.", "bert.pooler."))
        layer = name.split(".")[3] if "encoder.layer" in name else None
        expected = {None: 1.0 if head else 0.0625, "0": 0.125, "1": 0.25, "2": 0.5}[layer]
        assert rates.pop(id(parameter)) == expected, name
        assert decays[id(parameter)] == (0 if "bias" in name or "LayerNorm" in name else 0.01), name
    assert not rates


@pytest.mark.parametrize(
    ("frozen_parts", "settings"),
    [
        (("embeddings", "layer.0.", "layer.1."), {"freeze_layers": 2}),
        (("embeddings",), {"freeze_embeddings": True}),
    ],
)
def test_frozen_layers_do_not_change(frozen_parts, settings, tokenizer, tmp_path):
    settings = {**settings, "learning_rate": 1e-2, "warmup_steps": 0, "max_steps": 6}
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, per_device_train_batch_size=15, **settings)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        if "key.bias" not in name:  # has no gradient
            assert torch.equal(parameter, before[name]) == any(part in name for part in frozen_parts), name


@pytest.mark.parametrize(
    ("family", "head"),
    [("bert", HEADS[0]), ("roberta", HEADS[1]), ("electra", HEADS[0]), ("deberta-v2", HEADS[1])],
)
def test_top_layers_start_from_random_weights(family, head, tmp_path):
    """They have the distribution of a new model. All other weights are the checkpoint's."""
    folder = write_checkpoint(tmp_path, family, head, hidden_size=64, num_hidden_layers=3)
    model_class = getattr(snugbert, f"SnugBert{head}")

    def load(number: int, seed: int = 0) -> dict[str, torch.Tensor]:
        model = model_class.from_pretrained(folder)
        torch.manual_seed(seed)
        if number > 0:
            reinitialize_layers(model, number)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    before, after = load(0), load(2)
    torch.manual_seed(0)
    new = dict(model_class(model_class.config_class.from_pretrained(folder)).named_parameters())
    for name, values in after.items():
        if not any(part in name for part in ("layer.1.", "layer.2.", "pooler.")):
            assert torch.equal(values, before[name]), name
        elif "bias" in name or "LayerNorm" in name:
            assert torch.equal(values, new[name]) and not torch.equal(values, before[name]), name
        else:
            assert values.std() == pytest.approx(new[name].std().item(), rel=0.1) == pytest.approx(0.02, rel=0.1), name
            assert (values - before[name]).std() > 0.04, name
    assert ("bert.pooler.dense.weight" in after) == (head == HEADS[0])
    same, other = load(2), load(2, seed=1)
    assert all(torch.equal(after[name], same[name]) for name in after)
    top = "bert.encoder.layer.2.output.dense.weight"
    assert not torch.equal(after[top], other[top])


@pytest.mark.parametrize("settings", [{}, {"pad_to_max_length": True}, {"pad_to_multiple_of": 48}], ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_predictions_equal_single_examples_in_order(head, settings, tokenizer, tmp_path):
    data = examples(head, 21)
    trainer = new_trainer(head, tokenizer, tmp_path, per_device_eval_batch_size=4, **settings)
    unlabelled = data.select_columns(["input_ids", "token_type_ids", "attention_mask"])
    predictions = trainer.predict(unlabelled).predictions
    model = trainer.model.eval()
    parts = predictions if isinstance(predictions, tuple) else (predictions,)
    for row, ids in enumerate(data["input_ids"]):
        with torch.no_grad():
            output = model(torch.tensor([ids]))
        expected = list(output.values())
        assert len(expected) == len(parts)
        for part, values in zip(parts, expected, strict=True):
            found = part[row][: len(ids)] if head != "ForSequenceClassification" else part[row]
            np.testing.assert_allclose(found, values[0], atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_of_an_evaluation_is_the_mean_over_all_labels(head, tokenizer, tmp_path):
    """It does not depend on the batch size or on filled rows."""
    data = examples(head, 21)
    losses = [
        new_trainer(head, tokenizer, tmp_path, data, **settings).evaluate(data)["eval_loss"]
        for settings in (
            {"per_device_eval_batch_size": 21},
            {"per_device_eval_batch_size": 4},
            {"per_device_eval_batch_size": 7, "pad_to_multiple_of": 48},
        )
    ]
    assert losses[1:] == pytest.approx(losses[:1] * 2, abs=1e-6)


@pytest.mark.parametrize("labels", [[row / 7 for row in range(45)], [*range(45)]], ids=["floats", "integers"])
def test_numbers_at_padding_are_no_labels(labels, tokenizer, tmp_path):
    data = examples(HEADS[0], 45).remove_columns("label").add_column("label", labels)
    filled = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 6, "pad_to_multiple_of": 32}
    filled["cuda_graphs"] = True  # which drops the number of sequences in other problems
    evaluation = {"per_device_eval_batch_size": 8}
    one, several = (
        new_trainer(HEADS[0], tokenizer, tmp_path, data, new_model(HEADS[0], num_labels=1), **settings, **evaluation)
        for settings in ({"per_device_train_batch_size": 45}, filled)
    )
    losses = [trainer.evaluate(data)["eval_loss"] for trainer in (one, several)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert_same_gradients(train_one_step(several), train_one_step(one))


def test_rows_are_filled_as_the_device_the_user_and_the_model_allow(tokenizer, tmp_path, monkeypatch, caplog):
    def multiple(model=None, **settings):
        return new_trainer(HEADS[0], tokenizer, tmp_path, model=model, **settings).pad_to_multiple_of

    relative = new_model(HEADS[0], position_embedding_type="relative", position_buckets=8)
    assert (multiple(), multiple(pad_to_multiple_of=24)) == (0, 24)
    assert multiple(relative, pad_to_multiple_of=24) == multiple(pad_to_multiple_of=24, pad_to_max_length=True) == 0
    assert "--pad_to_multiple_of has no effect: rows of this run cannot be filled." in caplog.text
    monkeypatch.setattr(FineTuningArguments, "uses_cuda", True)
    monkeypatch.setattr("snugbert.trainers.trainer.apply_tf32", lambda args: None)
    args = {"bf16": False, "tf32": False, "dataloader_num_workers": 0, "per_device_train_batch_size": 16}
    expected = 0.95 * np.std([len(ids) for ids in examples(HEADS[0], 45)["input_ids"]]) * 4
    assert expected <= multiple(**args) < expected + 4
    own = type("Own", (SnugBertForSequenceClassification,), {})  # its head may treat padding as examples
    for model, more in ((None, {"pad_to_multiple_of": 0}), (relative, {}), (own(new_model(HEADS[0]).config), {})):
        assert multiple(model, **args, **more) == 0


def test_nan_logits_are_an_error(tokenizer, tmp_path):
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path, max_steps=1)
    spoiled = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    spoiled["classifier.weight"][:] = float("nan")

    class Spoiler(TrainerCallback):  # as after a learning rate that is too high
        def on_step_end(self, args, state, control, model, **kwargs):
            model.load_state_dict(spoiled)

    trainer.add_callback(Spoiler())
    trainer.train()
    with pytest.raises(DivergedError, match=r"test: the logits are NaN after step 1\. Try a lower --learning_rate"):
        trainer.predict(examples(HEADS[0], 5))
    model = new_model(HEADS[0])
    model.load_state_dict(spoiled)
    with pytest.raises(DivergedError, match=r"test: the logits are NaN\. Try without --fp16"):
        new_trainer(HEADS[0], tokenizer, tmp_path, model=model).predict(examples(HEADS[0], 5))


def train_and_predict(folder: Path, batch_size: int) -> None:
    """Trains every head, with a frozen layer, and predicts 21 examples, an odd number."""
    for head in HEADS:
        weights = None if head == "ForQuestionAnswering" else WEIGHTS
        # Adam would amplify gradients that are only rounding errors.
        settings = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 4, "class_weights": weights}
        settings |= {"freeze_layers": 1, "per_device_train_batch_size": batch_size, "per_device_eval_batch_size": 4}
        data = examples(head, 48)  # accelerate would fill up an incomplete last batch
        trainer = new_trainer(head, make_tokenizer(), folder / head, data, **settings)
        trainer.train()
        trainer.save_model()
        predictions = trainer.predict(examples(head, 21, seed=1)).predictions
        loss = trainer.evaluate(examples(head, 16, seed=1))["eval_loss"]
        if trainer.is_world_process_zero():
            parts = predictions if isinstance(predictions, tuple) else (predictions,)
            np.savez(folder / head / "predictions.npz", *parts, loss=loss, processes=trainer.args.world_size)


def test_one_process_equals_two_processes(tmp_path):
    train_and_predict(tmp_path / "one", batch_size=12)
    process = forked.run(train_and_predict, tmp_path / "two", 6, processes=2)
    assert process.returncode == 0, process.stderr
    for head in HEADS:
        one, two = (load_file(tmp_path / name / head / "model.safetensors") for name in ("one", "two"))
        for name in one:
            torch.testing.assert_close(two[name], one[name], atol=2e-5, rtol=0, msg=f"{head}: {name}")
        one, two = (np.load(tmp_path / name / head / "predictions.npz") for name in ("one", "two"))
        assert (one["processes"], two["processes"]) == (1, 2)
        for part in set(one.files) - {"processes"}:
            np.testing.assert_allclose(two[part], one[part], atol=1e-5 if part == "loss" else 1e-3)
