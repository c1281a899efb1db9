"""BERT checkpoints in, SnugBERT folders out: every file variant, and a process without snugbert."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers
from parity import CONFIG, HEADS, assert_same_gradients, ours_and_stock, ragged_batch, scalar
from safetensors.torch import load_file, save_file

import snugbert

AUTO_CLASSES = ["AutoModel", *(f"AutoModel{head}" for head in HEADS[1:])]


def write_checkpoint(folder, weights: dict[str, torch.Tensor], binary: bool = False):
    folder.mkdir()
    transformers.BertConfig(**CONFIG).save_pretrained(folder)
    if binary:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")


def old_layer_norm_names(weights):
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }


def test_every_variant_of_a_bert_file_loads(tmp_path):
    _, stock = ours_and_stock("ForPreTraining")
    weights = {name: tensor.clone() for name, tensor in stock.state_dict().items()}
    # Files of google-bert hold the tied weights once, and older ones a buffer of positions.
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
        # A model with a head takes the encoder of a bare file, whose names lack the prefix.
        ours = snugbert.SnugBertForMaskedLM.from_pretrained(tmp_path / name)
        assert torch.equal(
            ours.bert.state_dict()["encoder.layer.2.output.dense.weight"], bare["encoder.layer.2.output.dense.weight"]
        )


@pytest.mark.parametrize("head", HEADS)
def test_what_is_saved_says_snugbert_and_opens_in_stock_bert(head, tmp_path):
    ours, stock = ours_and_stock(head)
    ours.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "snugbert"
    assert config["architectures"] == [f"SnugBert{head}"]
    assert sorted(config["auto_map"]) == sorted(["AutoConfig", *AUTO_CLASSES])
    auto_class = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    again = auto_class.from_pretrained(tmp_path)
    assert type(again) is type(ours)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name

    del config["auto_map"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    back = type(stock).from_pretrained(tmp_path)
    for name, tensor in stock.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name


def test_tied_weights_are_stored_once(tmp_path):
    ours, _ = ours_and_stock("ForPreTraining")
    ours.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "cls.predictions.decoder.weight" not in names
    ours.config.tie_word_embeddings = False
    untied = snugbert.SnugBertForPreTraining(ours.config)
    assert untied.cls.predictions.decoder.weight is not untied.bert.embeddings.word_embeddings.weight


def test_minilm_is_equal_to_stock_bert_on_real_text(minilm, data_dir):
    lines = [line for line in (data_dir / "sample_text/sample_text.txt").read_text("utf-8").splitlines() if line]
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(minilm)
    inputs = tokenizer(lines, padding=True, truncation=True, max_length=512, return_tensors="pt")
    real = inputs["attention_mask"].bool()
    ours = snugbert.SnugBertModel.from_pretrained(minilm).eval()
    stock = transformers.BertModel.from_pretrained(minilm).eval()
    output, expected = ours(**inputs, output_hidden_states=True), stock(**inputs, output_hidden_states=True)
    for mine, theirs in zip(output.hidden_states, expected.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(output.pooler_output, expected.pooler_output, atol=1e-5, rtol=0)
    scalar(output).backward(), scalar(expected).backward()
    assert_same_gradients(ours, stock)


# Run where `import snugbert` fails. It knows nothing but transformers and the folders it is given.
STRANGER = """
    import sys
    sys.modules["snugbert"] = None  # any attempt to import the package raises ImportError
    import json, torch, transformers
    folder = sys.argv[1]
    results = {}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    inputs = tokenizer(["the cat sat", "on"], padding=True, return_tensors="pt")
    for auto_class in sys.argv[2].split(","):
        model = getattr(transformers, auto_class).from_pretrained(folder, trust_remote_code=True).eval()
        batch = {n: v[None] for n, v in inputs.items()} if auto_class == "AutoModelForMultipleChoice" else inputs
        with torch.no_grad():
            results[auto_class] = [type(model).__name__, model(**batch)[0].shape[0]]
        assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
    fill = transformers.pipeline("fill-mask", model=folder, trust_remote_code=True)
    results["pipeline"] = [guess["score"] for guess in fill("the [MASK] sat")]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(sys.argv[3]), tokenizer.save_pretrained(sys.argv[3])  # pass it on, as another head
    again = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[3], trust_remote_code=True)
    results["type"] = type(transformers.AutoTokenizer.from_pretrained(sys.argv[3], trust_remote_code=True)).__name__
    print(json.dumps(results))
"""


def test_a_saved_folder_loads_as_any_head_where_snugbert_is_not_installed(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "##s"]
    tokenizer = snugbert.SnugBertTokenizer({piece: index for index, piece in enumerate(pieces)})
    model = snugbert.SnugBertForMaskedLM(snugbert.SnugBertConfig(**CONFIG | {"vocab_size": len(pieces)})).eval()
    folder = tmp_path / "snug"
    model.save_pretrained(folder), tokenizer.save_pretrained(folder)
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STRANGER), folder, ",".join(AUTO_CLASSES), tmp_path / "passed_on"],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    for auto_class, head in zip(AUTO_CLASSES, HEADS, strict=True):
        assert results[auto_class][0] == f"SnugBert{head}"
    assert results["type"] == "SnugBertTokenizer"
    fill = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
    assert results["pipeline"] == pytest.approx([guess["score"] for guess in fill("the [MASK] sat")], rel=1e-4)
