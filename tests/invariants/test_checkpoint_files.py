"""Every variant of a BERT checkpoint loads."""

import torch
from checkpoint_files import write_checkpoint
from parity import ours_and_stock, ragged_batch

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
    for number, (name, variant) in enumerate(variants.items()):
        write_checkpoint(tmp_path / name, variant, binary=number % 2 == 1)
        ours, report = snugbert.SnugBertForPreTraining.from_pretrained(tmp_path / name, output_loading_info=True)
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
