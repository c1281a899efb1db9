"""BERT checkpoints in, SnugBERT folders out: every file variant, and what cannot be loaded."""

import json
import logging
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch
import transformers
from packaging.requirements import Requirement
from parity import CONFIG, HEADS, assert_same_gradients, ours_and_stock, ragged_batch, scalar
from safetensors.torch import load_file, save_file

import snugbert
from snugbert.errors import InputError
from snugbert.models import ModelArguments, TokenizerArguments, load_config, load_model, load_tokenizer
from snugbert.versions_snugbert import WORKING_VERSIONS

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


def test_a_foreign_auto_map_is_not_saved(tmp_path):
    """It would send users of another Auto class to the code of a foreign repository."""
    ours, _ = ours_and_stock("ForMaskedLM")
    ours.config.custom_pipelines = {"mine": {"impl": "evil/repo--pipe.Evil"}}
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    parts = (ours, ours.config, snugbert.SnugBertTokenizer({word: index for index, word in enumerate(words)}))
    for part in parts:
        part.save_pretrained(tmp_path)
    ours.save_pretrained(tmp_path)
    before = {file: json.loads((tmp_path / file).read_text()) for file in ("config.json", "tokenizer_config.json")}
    foreign = {"AutoModelForCausalLM": "evil/repo--modeling_evil.Evil", "AutoProcessor": "modeling_evil.Evil"}
    for file, values in before.items():
        (tmp_path / file).write_text(json.dumps({**values, "auto_map": {**values["auto_map"], **foreign}}))
    for part in parts:
        saved = tmp_path / type(part).__name__
        type(part).from_pretrained(tmp_path).save_pretrained(saved)
        for file in saved.glob("*config.json"):
            assert json.loads(file.read_text())["auto_map"] == before[file.name]["auto_map"], (part, file)
            assert "evil" not in file.read_text()


@pytest.mark.parametrize("tokenizer_class", ["BertTokenizer", "PreTrainedTokenizerFast", "Unknown"])
def test_a_foreign_auto_map_of_any_tokenizer_is_not_saved(tokenizer_class, tmp_path):
    snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    transformers.BertConfig(**CONFIG).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": tokenizer_class, "auto_map": {"AutoTokenizer": ["evil/repo--tok.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    load_tokenizer(TokenizerArguments(tokenizer_name=str(tmp_path))).save_pretrained(tmp_path / "saved")
    assert "evil" not in (tmp_path / "saved" / "tokenizer_config.json").read_text()


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


# --- what cannot be loaded --------------------------------------------------------------------------------------

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(CONFIG["vocab_size"] - 5))]
VOCABULARY = {piece: index for index, piece in enumerate(PIECES)}


def as_in_a_command(folder, auto_class=transformers.AutoModelForMaskedLM, trained=False, **flags):
    """What every command does with `--model_name_or_path`."""
    arguments = ModelArguments(model_name_or_path=str(folder), **flags)
    return load_model(auto_class, arguments, load_config(arguments, load_tokenizer(arguments)), trained=trained)


@pytest.fixture
def sharded(tmp_path):
    """A folder with model and tokenizer, the weights in several files."""
    snugbert.SnugBertForPreTraining(snugbert.SnugBertConfig(**CONFIG)).save_pretrained(
        tmp_path / "model", max_shard_size="100KB"
    )
    snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(tmp_path / "model")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) == 4
    return tmp_path / "model"


def test_a_missing_or_torn_file_of_weights_is_named(sharded):
    assert type(as_in_a_command(sharded)) is snugbert.SnugBertForMaskedLM
    shard = sharded / "model-00002-of-00004.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    with pytest.raises(InputError, match=rf"{shard.name} is cut short"):
        as_in_a_command(sharded)
    shard.unlink()
    with pytest.raises(InputError, match=rf"is not whole: of its 4 shards there is no {shard.name}\.$"):
        as_in_a_command(sharded)
    with pytest.raises(OSError, match=shard.name):
        snugbert.SnugBertForMaskedLM.from_pretrained(sharded)
    shard.write_bytes(whole)
    index = sharded / "model.safetensors.index.json"
    index.write_text(index.read_text()[:200])
    with pytest.raises(InputError, match=rf"{index.name} is not JSON"):
        as_in_a_command(sharded)


def test_another_architecture_is_refused(sharded):
    file = sharded / "config.json"
    for model_type in ("roberta", "distilbert", "unheard-of"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": model_type}))
        with pytest.raises(ValueError, match=f"configuration of '{model_type}'; SnugBERT loads 'snugbert' and 'bert'"):
            snugbert.SnugBertModel.from_pretrained(sharded)
        with pytest.raises(InputError, match=f"type '{model_type}', and what is accepted is snugbert and bert; "):
            as_in_a_command(sharded)


def test_weights_that_no_head_has_are_listed(tmp_path, caplog, monkeypatch):
    ours, _ = ours_and_stock("ForTokenClassification")
    ours.save_pretrained(tmp_path)
    snugbert.SnugBertTokenizer(VOCABULARY).save_pretrained(tmp_path)
    # Those of another head are left out: so begins fine-tuning.
    model = as_in_a_command(tmp_path, transformers.AutoModelForQuestionAnswering)
    assert torch.equal(model.bert.encoder.layer[2].output.dense.weight, ours.bert.encoder.layer[2].output.dense.weight)
    file = tmp_path / "model.safetensors"
    others = {f"lstm.{index}.weight": torch.zeros(2) for index in range(7)}
    others |= {f"classifier.{name}.weight": torch.zeros(2) for name in ("dense", "more", "other")}
    save_file(load_file(file) | others, file, {"format": "pt"})
    names = r"classifier\.dense\.weight, .*lstm\.4\.weight and 2 more"
    as_in_a_command(tmp_path)
    assert re.search(rf"holds weights that this model does not have, and they are left out: {names}", caplog.text)
    with pytest.raises(InputError, match=rf"holds weights that are not SnugBERT's: {names}; without them"):
        as_in_a_command(tmp_path, trained=True)
    caplog.clear()
    shallow = as_in_a_command(tmp_path, config_overrides="num_hidden_layers=2")
    assert len(shallow.bert.encoder.layer) == 2 and "bert.encoder.layer.2.attention" in caplog.text
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    snugbert.SnugBertForTokenClassification.from_pretrained(tmp_path)
    assert re.search(r"lstm\.\{0, 1, 2, 3, 4, 5, 6\}\.weight *\| UNEXPECTED", caplog.text)


def test_versions_that_work_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    required = {(needed := Requirement(line)).name: needed.specifier for line in project["dependencies"]}
    assert {name: required[name] for name in WORKING_VERSIONS} == WORKING_VERSIONS


# Run where other versions are installed, or seem to be: names that they lack are taken away.
OTHER_VERSIONS = """
    import sys
    sys.modules["snugbert"] = None
    import importlib.metadata, json, transformers
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
    transformers.PreTrainedConfig = transformers.TokenizersBackend = None
    version = importlib.metadata.version
    complaints = []
    for found in ({"transformers": "4.57.0"}, {"transformers": "6.0.0"}, {"torch": "2.10.1"}):
        transformers.__version__ = found.get("transformers", "5.17.0")
        importlib.metadata.version = lambda package: found.get(package) or version(package)
        for auto_class in (AutoConfig, AutoTokenizer, AutoModel, AutoModelForMaskedLM):
            try:
                auto_class.from_pretrained(sys.argv[1], trust_remote_code=True)
            except ImportError as error:
                complaints.append(str(error))
    print(json.dumps(complaints))
"""


def test_remote_code_says_which_versions_work(sharded, tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OTHER_VERSIONS), sharded],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == [
        f"SnugBERT works with {package} {working}, and {package} {found} is installed: "
        f'pip install "{package}{working}"'
        for package, working, found in (
            ("transformers", ">=5.17,<6", "4.57.0"),
            ("transformers", ">=5.17,<6", "6.0.0"),
            ("torch", ">=2.11", "2.10.1"),
        )
        for _ in range(4)
    ]
