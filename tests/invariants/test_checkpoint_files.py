"""Every variant of a BERT checkpoint loads. Saved models load again with the same outputs."""

import pytest
import torch
from checkpoint_files import write_checkpoint
from parity import CONFIG, ours_and_stock, ragged_batch
from safetensors.torch import load_file

import snugbert


def old_layer_norm_names(weights):
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }


def test_every_variant_of_a_bert_file_loads(tmp_path):
    _, stock = ours_and_stock("ForPreTraining")
    weights = {name: tensor.clone() for name, tensor in stock.state_dict().items()}
    # google-bert's files store tied weights once. Older ones also have a buffer of positions.
    google = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.predictions.decoder")}
    variants = {
        "complete": weights,
        "google": google,
        "gamma_beta": old_layer_norm_names(google),
        "position_ids": google | {"bert.embeddings.position_ids": torch.arange(40)[None]},
    }
    inputs = ragged_batch("ForPreTraining")
    expected = stock.eval()(**inputs)
    real = inputs["attention_mask"].bool()
    for name, variant in variants.items():
        for binary in (False, True):
            write_checkpoint(tmp_path / f"{name}{binary}", variant, binary)
            ours, report = snugbert.SnugBertForPreTraining.from_pretrained(
                tmp_path / f"{name}{binary}", output_loading_info=True
            )
            assert not report["missing_keys"] and not report["unexpected_keys"], (name, report)
            logits = ours.eval()(**inputs).prediction_logits
            torch.testing.assert_close(logits[real], expected.prediction_logits[real], atol=2e-6, rtol=1e-5)

    bare = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    bare_without_pooler = {name: tensor for name, tensor in bare.items() if not name.startswith("pooler")}
    hidden = stock.bert(**{n: inputs[n] for n in ("input_ids", "attention_mask", "token_type_ids")}).last_hidden_state
    for name, variant, missing in (
        ("bare", bare, set()),
        ("no_pooler", bare_without_pooler, {"pooler.dense.weight", "pooler.dense.bias"}),
    ):
        write_checkpoint(tmp_path / name, variant)
        ours, report = snugbert.SnugBertModel.from_pretrained(tmp_path / name, output_loading_info=True)
        assert set(report["missing_keys"]) == missing
        mine = ours.eval()(**{n: inputs[n] for n in ("input_ids", "attention_mask", "token_type_ids")})
        torch.testing.assert_close(mine.last_hidden_state[real], hidden[real], atol=2e-6, rtol=1e-5)
        # A model with a head loads the encoder from a file without a head, whose names have no prefix.
        ours = snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path / name)
        assert torch.equal(
            ours.bert.state_dict()["encoder.layer.2.output.dense.weight"], bare["encoder.layer.2.output.dense.weight"]
        )


def test_tied_weights_are_stored_once(tmp_path):
    ours, _ = ours_and_stock("ForPreTraining")
    ours.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "cls.predictions.decoder.weight" not in names


@pytest.mark.parametrize(
    "fields",
    [{"tie_word_embeddings": False}, {"position_embedding_type": "sinusoidal"}, {"vocab_size": 190}],
    ids=["untied", "sinusoidal", "resized"],
)
def test_variants_of_the_model_round_trip_in_shards(fields, tmp_path):
    torch.manual_seed(0)
    model = snugbert.SnugBertForPreTraining(snugbert.SnugBertConfig(**CONFIG | fields))
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.resize_token_embeddings(CONFIG["vocab_size"])
    tied = model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert tied == fields.get("tie_word_embeddings", True)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    again, report = snugbert.SnugBertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
