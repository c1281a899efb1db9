"""Conversions keep sentence-transformers' files, in the old format. sentence-transformers itself reads the result."""

import json
import shutil
from pathlib import Path

import family_checkpoints
import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from snugbert.errors import InputError
from snugbert.families.conversion import convert_model
from snugbert.families.sentence_transformers_files import is_cross_encoder, read_modules

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
TEXTS = ["the first", "a film about the city " * 30, "it was"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """An embedding model of all kinds of modules, as sentence-transformers 6 saves it."""
    root = tmp_path_factory.mktemp("encoder")
    family_checkpoints.write_checkpoint(root / "plain", "bert", "Model")
    transformer = Transformer(str(root / "plain"), max_seq_length=64)
    size = transformer.get_embedding_dimension()
    torch.manual_seed(0)
    modules = [transformer, Pooling(size, ["cls", "mean"]), Dense(2 * size, 8), Normalize()]
    model = SentenceTransformer(modules=modules, prompts={"query": "who is "}, default_prompt_name="query")
    model.save_pretrained(str(root / "encoder"))
    return root / "encoder"


def test_an_embedding_model_is_the_same_there_and_back(encoder, tmp_path):
    convert_model(encoder, tmp_path / "ours", "snugbert")
    convert_model(tmp_path / "ours", tmp_path / "bert", "bert")
    expected = SentenceTransformer(str(encoder))
    for name in ("ours", "bert"):
        model = SentenceTransformer(str(tmp_path / name), trust_remote_code=True)
        assert (model.max_seq_length, model.prompts) == (64, expected.prompts)
        assert model.default_prompt_name == "query" and len(model) == 4
        np.testing.assert_allclose(model.encode(TEXTS), expected.encode(TEXTS), atol=1e-5)
    types = {module["type"] for module in read_modules(tmp_path / "bert")}
    assert types == {
        f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense", "Normalize")
    }
    dense = json.loads((tmp_path / "bert/2_Dense/config.json").read_text())
    assert set(dense) == {"in_features", "out_features", "bias", "activation_function"}


def test_an_old_folder_keeps_its_settings(encoder, tmp_path):
    convert_model(encoder, tmp_path / "new", "bert")  # written in the old format
    old = tmp_path / "old"
    (tmp_path / "new").rename(old)
    weights = old / "0_Transformer"  # as in sentence-transformers before version 2
    weights.mkdir()
    for file in [*old.glob("*.safetensors"), *old.glob("*token*"), old / "vocab.txt", old / "config.json"]:
        if file.exists():
            file.rename(weights / file.name)
    (old / "sentence_bert_config.json").rename(weights / "sentence_bert_config.json")
    modules = read_modules(old)
    modules[0]["path"] = "0_Transformer"
    (old / "modules.json").write_text(json.dumps(modules))
    # Some published embedding models declare a head, which must not hide the encoder.
    config = json.loads((weights / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (weights / "config.json").write_text(json.dumps(config))
    assert convert_model(old, tmp_path / "again", "bert").model_class == "BertModel"
    again = SentenceTransformer(str(tmp_path / "again"))
    np.testing.assert_allclose(again.encode(TEXTS), SentenceTransformer(str(encoder)).encode(TEXTS), atol=1e-5)
    assert again.max_seq_length == 64


def test_what_old_versions_cannot_express_stays_as_it_is(encoder, tmp_path):
    """Old versions concatenate the modes of a pooling in their own order. Code and links stay behind."""
    shutil.copytree(encoder, tmp_path / "encoder")
    (tmp_path / "token").write_text("secret")
    (tmp_path / "encoder/1_Pooling/token.txt").symlink_to(tmp_path / "token")
    (tmp_path / "encoder/1_Pooling/module.py").touch()
    pooling = tmp_path / "encoder/1_Pooling/config.json"
    pooling.write_text(pooling.read_text().replace('"cls"', '"x"').replace('"mean"', '"cls"').replace('"x"', '"mean"'))
    convert_model(tmp_path / "encoder", tmp_path / "bert", "bert")
    assert [file.name for file in (tmp_path / "bert/1_Pooling").iterdir()] == ["config.json"]
    expected, model = (SentenceTransformer(str(tmp_path / name)) for name in ("encoder", "bert"))
    np.testing.assert_allclose(model.encode(TEXTS), expected.encode(TEXTS), atol=1e-5)
    # This path would write and delete files outside of the output folder.
    (tmp_path / "encoder/modules.json").write_text('[{"type": "a.Transformer", "path": "../x"}]')
    with pytest.raises(InputError, match=r"modules\.json: expected a list of modules"):
        convert_model(tmp_path / "encoder", tmp_path / "out", "bert")


def test_a_reranker_keeps_its_activation(tmp_path):
    family_checkpoints.write_checkpoint(tmp_path / "plain", "bert", "ForSequenceClassification", num_labels=1)
    reranker = CrossEncoder(str(tmp_path / "plain"), max_length=32, activation_fn=torch.nn.Tanh())
    reranker.save_pretrained(str(tmp_path / "reranker"))
    convert_model(tmp_path / "reranker", tmp_path / "ours", "snugbert")
    convert_model(tmp_path / "ours", tmp_path / "bert", "bert")
    pairs = [(TEXTS[0], text) for text in TEXTS]
    for name in ("ours", "bert"):
        model = CrossEncoder(str(tmp_path / name), trust_remote_code=True)
        assert isinstance(model.activation_fn, torch.nn.Tanh) and model.max_seq_length == 32
        assert is_cross_encoder(tmp_path / name)
        np.testing.assert_allclose(model.predict(pairs), reranker.predict(pairs), atol=1e-5)
