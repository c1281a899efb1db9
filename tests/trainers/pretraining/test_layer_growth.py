"""Models with more layers: the same predictions as before, also in stock BERT, and runs that continue with them."""

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
    """Its LayerNorms scale and shift all numbers alike. Then the new layers change nothing."""
    torch.manual_seed(0)
    config = snugbert.SnugBertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)
    model = snugbert.SnugBertForPreTraining(config).eval()
    for layer in model.bert.encoder.layer:
        torch.nn.init.constant_(layer.output.LayerNorm.weight, 2.5)
        torch.nn.init.constant_(layer.output.LayerNorm.bias, -0.5)
    return model


@pytest.mark.parametrize(("num_layers", "old"), [(4, [0, 1, 2]), (5, [0, 1, 3]), (6, [0, 2, 4]), (9, [0, 3, 6])])
@torch.no_grad()
def test_new_layers_change_nothing(model, tmp_path, num_layers, old):
    layers, before = list(model.bert.encoder.layer), model(INPUT).prediction_logits
    grow_layers(model, num_layers)
    assert model.config.num_hidden_layers == len(model.bert.encoder.layer) == num_layers
    assert [model.bert.encoder.layer[index] for index in old] == layers
    model.save_pretrained(tmp_path)
    for loaded in (model, transformers.BertForPreTraining.from_pretrained(tmp_path).eval()):
        torch.testing.assert_close(loaded(INPUT).prediction_logits, before, rtol=0, atol=1e-5)


def test_a_grown_run_resumes_exactly(small_run, tmp_path, capsys):
    small_run = small_run | {"validation_file": None}
    assert run(small_run, output_dir=tmp_path / "base", max_steps=2) == 0
    grown = small_run | {"config_name": None, "model_name_or_path": tmp_path / "base", "grow_layers": 4}
    assert run(grown, output_dir=tmp_path / "straight", max_steps=4, save_steps=2) == 0
    shutil.copytree(tmp_path / "straight/checkpoint-2", tmp_path / "resumed/checkpoint-2")
    assert run(grown, output_dir=tmp_path / "resumed", max_steps=4, resume_from_checkpoint="true") == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "resumed")]
    assert weights[0] == weights[1]
    assert "| initial weights | base, with 4 layers |" in (tmp_path / "straight/README.md").read_text()
    assert transformers.BertModel.from_pretrained(tmp_path / "straight").config.num_hidden_layers == 4

    capsys.readouterr()
    for changes, message in (
        ({"grow_layers": 2}, "--grow_layers 2: the model already has 2 layers."),
        ({"model_name_or_path": None, "config_name": "tiny"}, "--grow_layers needs a trained model. Give --model_"),
        (
            {"grow_layers": 3, "output_dir": tmp_path / "straight", "resume_from_checkpoint": "true"},
            "--grow_layers was 4 and is 3",
        ),
    ):
        assert run(grown | {"output_dir": tmp_path / "refused"} | changes) == 2
        assert message in capsys.readouterr().err
