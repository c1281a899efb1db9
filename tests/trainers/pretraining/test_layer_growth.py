"""Models with more layers: nearly the same predictions as before, also in stock BERT, and runs that train them."""

import json
import shutil

import pytest
import torch
import transformers
from pretraining_command import run

import snugbert
from snugbert.trainers.pretraining.layer_growth import grow_layers

INPUT = torch.arange(5, 29).reshape(2, 12)


@pytest.fixture
def model():
    """All weights are random, also those of the LayerNorms. Some of their scales are negative or zero."""
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig(vocab_size=40, hidden_size=256, num_hidden_layers=3, num_attention_heads=4)
    model = snugbert.SnugBertForPreTraining(config).eval()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter, std=0.5)
        elif "LayerNorm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 2.0)
            parameter.data[:4] *= torch.tensor([-1.0, 0.0, 1.0, -1.0])
    return model


@pytest.mark.parametrize(("num_layers", "old"), [(4, [0, 1, 2]), (5, [0, 1, 3]), (6, [0, 2, 4]), (9, [0, 3, 6])])
@torch.no_grad()
def test_new_layers_hardly_change_the_predictions(model, tmp_path, num_layers, old):
    layers, before = list(model.bert.encoder.layer), model(INPUT).prediction_logits
    grow_layers(model, num_layers)
    grown = model.bert.encoder.layer
    assert model.config.num_hidden_layers == len(grown) == num_layers
    assert [grown[index] for index in old] == layers
    assert all(layer.attention.self.config is model.config for layer in grown)
    model.save_pretrained(tmp_path)
    stock = transformers.BertForPreTraining.from_pretrained(tmp_path).eval()
    for logits in (model(INPUT).prediction_logits, stock(INPUT).prediction_logits):
        error = (logits - before).std() / before.std()
        assert error < 0.01


def test_a_grown_run_starts_at_the_old_loss_and_resumes_exactly(small_run, tmp_path, capsys):
    base = small_run | {"no_nsp": "true", "output_dir": tmp_path / "base"}
    assert run(base, max_steps=20, learning_rate=1e-3) == 0
    small_run = base | {"config_name": None, "model_name_or_path": tmp_path / "base", "grow_layers": 4}
    assert run(small_run, do_eval="true", output_dir=tmp_path / "evaluated") == 0
    losses = [
        json.loads((tmp_path / name / "eval_results.json").read_text())["eval_mlm_loss"]
        for name in ("base", "evaluated")
    ]
    assert losses[1] == pytest.approx(losses[0], abs=0.01)

    assert run(small_run, output_dir=tmp_path / "straight", max_steps=4, save_steps=2) == 0
    shutil.copytree(tmp_path / "straight/checkpoint-2", tmp_path / "resumed/checkpoint-2")
    resume = {"max_steps": 4, "resume_from_checkpoint": "true"}
    assert run(small_run, output_dir=tmp_path / "resumed", **resume) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "resumed")]
    assert weights[0] == weights[1]
    assert "| initial weights | base, grown to 4 layers |" in (tmp_path / "straight/README.md").read_text()
    assert transformers.BertModel.from_pretrained(tmp_path / "straight").config.num_hidden_layers == 4

    capsys.readouterr()
    changed = {"grow_layers": 3, "output_dir": tmp_path / "straight"} | resume
    for changes, message in (
        ({"grow_layers": 2}, "--grow_layers 2: the model already has 2 layers. Give a larger number, or"),
        ({"model_name_or_path": None, "config_name": "tiny"}, "--grow_layers needs a trained model. Give --model_"),
        (changed, "num_hidden_layers was 4 and is 3; --grow_layers was 4 and is 3"),
    ):
        assert run(small_run | {"output_dir": tmp_path / "refused"} | changes) == 2
        assert message in capsys.readouterr().err
