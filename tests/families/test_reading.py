"""Checkpoints in every file format are read. Damaged or unsupported ones are refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from checkpoint_files import names_in, tensorflow_variables, write_checkpoint, write_classifier, write_tensorflow
from parity import ours_and_stock
from safetensors.torch import load_file, save_file

import snugbert
from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert.families.reading import fetch_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_form_of_a_bert_file_is_loaded_and_becomes_snugbert(tmp_path):
    _, stock = ours_and_stock("ForPreTraining")
    weights = stock.state_dict()
    # Files of google-bert store tied weights once. Their configuration declares BertForMaskedLM.
    google = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.predictions.decoder")}
    google_fields = {
        "architectures": ["BertForMaskedLM"],
        "tokenizer_class": "BertTokenizer",
        "auto_map": {"AutoModelForCausalLM": "other.Model"},
    }
    old = {
        re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name)): tensor
        for name, tensor in google.items()
    } | {"bert.embeddings.position_ids": torch.arange(40)[None]}
    variants = {
        "everything": (weights, {"architectures": ["BertForPreTraining"]}),
        "google": (google, google_fields),
        "old": (old, {"model_type": None}),
    }
    output = tmp_path / "output"
    for variant, form in (
        ("everything", {"binary": True}),
        ("google", {}),
        ("google", {"shards": 3}),
        ("old", {"binary": True}),
        ("old", {"binary": True, "shards": 3}),
    ):
        tensors, fields = variants[variant]
        source = write_checkpoint(tmp_path / f"{variant}{form}", tensors, **form, **fields)
        done = convert_model(source, output, "snugbert", overwrite_output_dir=True)
        assert done.model_class == "SnugBertForPreTraining"
        assert ["config.json declares ForMaskedLM" in note for note in done.notes] == [True] * (variant == "google")
        assert names_in(output) == set(google)  # tied weights are stored once
        config = json.loads((output / "config.json").read_text())
        assert "tokenizer_class" not in config and "AutoModelForCausalLM" not in config["auto_map"]
        ours = transformers.AutoModelForPreTraining.from_pretrained(output)
        assert type(ours) is snugbert.SnugBertForPreTraining
        loaded, report = snugbert.SnugBertForPreTraining.from_pretrained(source, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"], source
        for name, tensor in weights.items():
            assert torch.equal(ours.state_dict()[name], tensor), (source, name)
            assert torch.equal(loaded.state_dict()[name], tensor), (source, name)
    assert (output / "modeling_snugbert.py").exists()
    assert "AutoModelForTokenClassification" in json.loads((output / "config.json").read_text())["auto_map"]

    # Stored twice with different values: transformers does not tie them, whatever the configuration declares.
    untied = weights | {"cls.predictions.decoder.weight": 2 * weights["cls.predictions.decoder.weight"]}
    convert_model(write_checkpoint(tmp_path / "untied", untied), output, "snugbert", overwrite_output_dir=True)
    ours = snugbert.SnugBertForPreTraining.from_pretrained(output)
    assert not ours.config.tie_word_embeddings
    assert torch.equal(ours.cls.predictions.decoder.weight, untied["cls.predictions.decoder.weight"])

    bare = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    without_pooler = {name: tensor for name, tensor in bare.items() if not name.startswith("pooler.")}
    for name, variant in (("bare", bare), ("without_pooler", without_pooler)):
        source = write_checkpoint(tmp_path / name, variant)
        done = convert_model(source, tmp_path / f"{name}-snug", "snugbert")
        assert done.model_class == "SnugBertModel" and names_in(tmp_path / f"{name}-snug") == set(variant)
        assert ["no pooler" in note for note in done.notes] == [True] * (name == "without_pooler")
        loaded, report = snugbert.SnugBertModel.from_pretrained(source, output_loading_info=True)
        assert set(report["missing_keys"]) == bare.keys() - variant.keys()
        # A model with a head loads the encoder from a file without a head, whose names have no prefix.
        with_head = snugbert.SnugBertForMaskedLM.from_pretrained(source)
        for key, tensor in without_pooler.items():
            assert torch.equal(loaded.state_dict()[key], tensor), key
            assert torch.equal(with_head.bert.state_dict()[key], tensor), key


def test_a_hub_checkpoint_is_fetched(tmp_path):
    """It comes from the cache, because tests have no network."""
    _, stock = ours_and_stock("Model")
    stock.save_pretrained(tmp_path / "models--me--bert" / "snapshots" / "0123")
    (tmp_path / "models--me--bert" / "refs").mkdir()
    (tmp_path / "models--me--bert" / "refs" / "v1").write_text("0123")
    folder = fetch_checkpoint("me/bert", revision="v1", cache_dir=str(tmp_path))
    assert convert_model(folder, tmp_path / "snug", "snugbert").model_class == "SnugBertModel"
    with pytest.raises(InputError, match=r"^\./bert: no such folder"):
        fetch_checkpoint("./bert")


# --- refused checkpoints ----------------------------------------------------------------------------------------


class Payload:
    """Writes a file when unpickled."""

    def __reduce__(self):
        return Path.write_text, (self.file, "run")

    def __init__(self, file: Path):
        self.file = file


def test_pickles_that_could_run_code_are_not_opened(tmp_path):
    source = write_classifier(tmp_path / "source", binary=True)
    payload = {"weight": torch.zeros(2), "more": Payload(tmp_path / "proof")}
    for legacy in (False, True):
        torch.save(payload, source / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(InputError, match=r"pytorch_model\.bin: .* could run code. The file was not loaded"):
            convert_model(source, tmp_path / "output", "snugbert")
    assert not (tmp_path / "proof").exists() and not (tmp_path / "output").exists()
    torch.load(source / "pytorch_model.bin", weights_only=False)
    assert (tmp_path / "proof").read_text() == "run"  # a full load would have run it


def cut(file: str):
    def spoil(folder: Path):
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: len(content) * 2 // 3])

    return spoil


def remove(file: str):
    return lambda folder: (folder / file).unlink()


def fields(**changes):
    def spoil(folder: Path):
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({n: v for n, v in values.items() if v is not None}))

    return spoil


def weights(change):
    def spoil(folder: Path):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return spoil


def repeat_shard(folder: Path):
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors")


def keep(folder: Path) -> None:
    pass


DATA = "bert_model.ckpt.data-00000-of-00001"


@pytest.mark.parametrize(
    ("form", "spoil", "message"),
    [
        ({"shards": 3}, remove("model-00002-of-00003.safetensors"), "No such file .*source/model-00002-of-00003"),
        ({"shards": 2}, remove("model.safetensors.index.json"), r"source: no weights\. .* Shards need their \.index"),
        ({"shards": 2}, repeat_shard, "weights do not fit ForSequenceClassification. Missing: bert"),
        ({"shards": 2}, cut("model-00002-of-00002.safetensors"), r"model-00002-of-00002\.safetensors: truncated"),
        ({}, cut("model.safetensors"), r"source/model\.safetensors: truncated"),
        ({"binary": True}, cut("pytorch_model.bin"), r"source/pytorch_model\.bin: damaged"),
        ({}, remove("config.json"), r"source contains no config\.json\.$"),
        ({}, cut("config.json"), r"config\.json is not JSON"),
        ({}, fields(model_type="albert"), "unsupported model type 'albert'. Supported: .*, deberta-v2"),
        ({}, fields(architectures=["BertLMHeadModel"]), "unsupported architecture BertLMHeadModel. Supported: Bert"),
        ({}, fields(is_decoder=True), "config.json: unsupported configuration. .*SnugBERT is an encoder"),
        ({}, fields(position_embedding_type="relative_key"), "Expected absolute, after_padding, relative, sinusoidal"),
        ({}, fields(architectures=None), "The weights match BertForSequenceClassification or BertForTokenClassificat"),
        ({}, fields(architectures=["BertForQuestionAnswering"]), r"Missing: qa_outputs\.bias, qa_outputs\.weight"),
        (
            {},
            weights(lambda tensors: tensors.pop("bert.pooler.dense.weight")),
            r"pooler\.dense\.weight\. Get the",
        ),
        ({}, weights(lambda tensors: tensors.update(adapter=torch.zeros(2))), "Unknown: adapter. docs"),
        ({}, fields(num_labels=5), r"Wrong shape: classifier\.weight \[3, 48\] instead of \[5, 48\]"),
        ({}, weights(lambda tensors: tensors["classifier.bias"].fill_(torch.nan)), "differ by inf. Nothing was"),
        *(
            pytest.param({"variables": variables}, spoil, message, marks=pytest.mark.slow)
            for variables, spoil, message in (
                ({}, remove(DATA), f"incomplete checkpoint. .*{DATA}; No such file"),
                ({}, remove("bert_config.json"), r"source contains no bert_config\.json"),
                ({"extra/kernel": np.zeros((2, 2))}, keep, "Unknown: extra/kernel"),
                ({"bert/pooler/dense/bias": None}, keep, r"Missing: .*bert\.pooler\.dense\.bias"),
            )
        ),
    ],
)
def test_bad_checkpoints_are_refused(form, spoil, message, tmp_path):
    if "variables" in form:
        variables = tensorflow_variables(ours_and_stock("ForPreTraining")[1]) | form["variables"]
        source = write_tensorflow(tmp_path / "source", {n: v for n, v in variables.items() if v is not None})
    else:
        source = write_classifier(tmp_path / "source", **form)
    spoil(source)
    with pytest.raises((InputError, FileNotFoundError), match=message):
        convert_model(source, tmp_path / "output", "snugbert")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
