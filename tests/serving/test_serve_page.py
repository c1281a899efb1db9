"""docs/how-to/serve.md: the examples whose engines work with transformers 5, and folders for other servers.

The files and values that text-embeddings-inference 1.9.3 and vLLM 0.21 read come from their source:
router/src/lib.rs, core/src/download.rs, backends/ort/src/lib.rs and backends/candle of text-embeddings-inference;
transformers_utils/config.py and model_executor/models of vLLM.
"""

import json

import numpy as np
import onnx
import pytest
from safetensors import safe_open
from scipy.special import softmax
from serving_page import TEXTS, example
from transformers import pipeline

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]
OLD_MODULES = ("Transformer", "Pooling", "Normalize")


@pytest.fixture
def run_example(exports, monkeypatch):
    """Returns a function that runs the example of a section, with more texts, and returns its variables."""

    def run(section: str, old: str = "") -> dict:
        code = example(section, "python")
        assert old in code
        names = {}
        monkeypatch.chdir(exports)
        exec(code.replace(old, repr(TEXTS)) if old else code, names)
        return names

    return run


def test_onnx_runtime_classifies_like_the_model(run_example, models):
    names = run_example("ONNX Runtime")
    classify = pipeline("text-classification", str(models / "sst2"), truncation=True)
    texts = [*TEXTS, *(f"{text} Not bad." for text in TEXTS)]
    expected = classify(texts)
    assert names["classify"](texts, batch_size=4) == [each["label"] for each in expected]
    inputs = names["tokenizer"](texts, padding=True, truncation=True, return_tensors="np")
    scores = softmax(names["session"].run(["logits"], dict(inputs))[0], axis=1).max(axis=1)
    np.testing.assert_allclose(scores, [each["score"] for each in expected], atol=1e-5)
    assert scores.std() > 1e-4


def test_openvino_embeds_like_the_model(run_example, embeddings):
    found = run_example("OpenVINO", '["A plane is taking off.", "Hi."]')["embeddings"]
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, embeddings, atol=1e-5)


def read(file):
    return json.loads(file.read_text())


@pytest.mark.parametrize("name", ["encoder", "sst2", "reranker"])
@pytest.mark.parametrize("to", ["onnx", "bert"])
def test_text_embeddings_inference_finds_what_it_needs(exports, name, to):
    folder = exports / f"{name}-{to}"
    config = read(folder / "config.json")
    needed = {"hidden_size", "num_hidden_layers", "vocab_size", "hidden_act", "hidden_dropout_prob", "type_vocab_size"}
    assert needed | {"initializer_range", "layer_norm_eps"} <= config.keys() and (folder / "tokenizer.json").exists()
    assert (config["model_type"], config["max_position_embeddings"], config["pad_token_id"]) == ("bert", 512, 0)
    assert config["architectures"][0].endswith("Classification") == (name != "encoder")
    if name == "encoder":
        pooling = read(folder / "1_Pooling/config.json")
        assert pooling["pooling_mode_mean_tokens"] is True and pooling["pooling_mode_cls_token"] is False
        assert read(folder / "config_sentence_transformers.json")["prompts"]["query"] == "question: "
    else:
        assert list(config["id2label"].values()) == {"sst2": ["LABEL_0", "LABEL_1"], "reranker": ["LABEL_0"]}[name]
    if name != "sst2":
        assert read(folder / "sentence_bert_config.json") == {"max_seq_length": 128, "do_lower_case": False}
    if to == "onnx":
        assert not list(folder.glob("*.safetensors")) and len(list(folder.rglob("*.onnx"))) == 1
        model = onnx.load(folder / "onnx/model.onnx")
        assert model.opset_import[0].version <= 22 and model.ir_version <= 10
        inputs = {put.name: put.type.tensor_type.elem_type for put in model.graph.input}
        assert inputs == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), onnx.TensorProto.INT64)
        assert [put.name for put in model.graph.output] == ["last_hidden_state" if name == "encoder" else "logits"]


def test_vllm_finds_what_it_needs(exports):
    for name, architecture, expected in (
        ("encoder", "BertModel", {"embeddings", "encoder", "pooler"}),
        ("sst2", "BertForSequenceClassification", {"bert", "classifier"}),
        ("reranker", "BertForSequenceClassification", {"bert", "classifier"}),
    ):
        folder = exports / f"{name}-bert"
        assert read(folder / "config.json")["architectures"] == [architecture]
        with safe_open(folder / "model.safetensors", "pt") as weights:
            assert {key.partition(".")[0] for key in weights.keys()} == expected
    modules = read(exports / "encoder-bert/modules.json")
    assert [each["type"] for each in modules] == [f"sentence_transformers.models.{name}" for name in OLD_MODULES]
    assert [each["path"] for each in modules] == ["", "1_Pooling", "2_Normalize"]
    modes = "cls_token max_tokens mean_tokens mean_sqrt_len_tokens weightedmean_tokens lasttoken".split()
    fields = {"word_embedding_dimension", "include_prompt", *(f"pooling_mode_{mode}" for mode in modes)}
    assert set(read(exports / "encoder-bert/1_Pooling/config.json")) == fields
    config = read(exports / "reranker-bert/config.json")
    assert config["sentence_transformers"]["activation_fn"] == "torch.nn.modules.activation.Sigmoid"
    assert config["sbert_ce_default_activation_function"] == "torch.nn.modules.activation.Sigmoid"
