"""docs/how-to/serve.md: the examples whose engines work with transformers 5, and folders for other servers.

The files and values that text-embeddings-inference 1.9.3 and vLLM 0.21 read come from their source:
router/src/lib.rs, core/src/download.rs, backends/ort/src/lib.rs and backends/candle of text-embeddings-inference;
transformers_utils/config.py and model_executor/models of vLLM.

infinity, optimum, and sentence-transformers with ONNX Runtime and OpenVINO have an environment of their own.
`make test-serve` creates it and runs these tests.
"""

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import onnx
import pytest
import torch
from safetensors import safe_open
from scipy.special import softmax
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import pipeline

import snugbert
from snugbert.export.export import export_model

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-serve" / "bin"
needs_servers = pytest.mark.skipif(not (BIN / "infinity_emb").exists(), reason="run `make test-serve`")
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
SECONDS = 120  # until the server answers
OLD_MODULES = ("Transformer", "Pooling", "Normalize")
PAGE = (ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))
TEXTS = ["A plane is taking off.", "Hi.", "A man plays the flute, and nobody listens. " * 40]


def example(section: str, language: str) -> str:
    """Returns the code of the first block of a language in a `##` section."""
    return re.search(rf"^```{language}\n(.*?)^```$", SECTIONS[section], flags=re.DOTALL | re.MULTILINE).group(1)


@pytest.fixture(scope="module")
def models(minilm, tmp_path_factory) -> Path:
    """A folder with an embedding model (`encoder`), a classifier (`sst2`) and a reranker, made with SnugBERT.

    They have one of MiniLM's layers. sentence-transformers saved the first and the last.
    """
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    tokenizer = snugbert.SnugBertTokenizer.from_pretrained(minilm)
    for name, model_class, options in (
        ("plain", snugbert.SnugBertModel, {}),
        ("sst2", snugbert.SnugBertForSequenceClassification, {"num_labels": 2}),
        ("one-label", snugbert.SnugBertForSequenceClassification, {"num_labels": 1}),
    ):
        model = model_class.from_pretrained(minilm, num_hidden_layers=1, **options)
        if options:  # an untrained head would give all texts nearly the same scores
            for layer in (model.bert.pooler.dense, model.classifier):
                torch.nn.init.normal_(layer.weight, std=0.2)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    encoder = Transformer(str(root / "plain"), max_seq_length=128)
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    prompts = {"query": "question: ", "document": ""}
    SentenceTransformer(modules=[encoder, pooling, Normalize()], prompts=prompts).save_pretrained(
        str(root / "encoder")
    )
    CrossEncoder(str(root / "one-label"), max_length=128).save_pretrained(str(root / "reranker"))
    return root


@pytest.fixture(scope="module")
def exports(models) -> Path:
    """The same folder with `encoder-onnx`, `encoder-openvino`, `sst2-bert` and so on."""
    for name in ("encoder", "sst2", "reranker"):
        for to in ("onnx", "openvino", "bert"):
            if name == "encoder" or to in ("onnx", "bert"):
                export_model(models / name, models / f"{name}-{to}", to)
    return models


@pytest.fixture(scope="module")
def embeddings(models) -> np.ndarray:
    """What SnugBERT's embedding model returns for `TEXTS`."""
    return SentenceTransformer(str(models / "encoder")).encode(TEXTS)


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


def test_sentence_transformers_opens_the_exported_bert(exports, embeddings):
    """Version 6. `.venv-serve` has version 3."""
    found = SentenceTransformer(str(exports / "encoder-bert")).encode(TEXTS)
    np.testing.assert_allclose(found, embeddings, atol=1e-5)
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    expected, found = (CrossEncoder(str(exports / name)).predict(pairs) for name in ("reranker", "reranker-bert"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


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


@needs_servers
def test_sentence_transformers_with_other_backends(exports, embeddings):
    code = example("sentence-transformers with ONNX Runtime and OpenVINO", "python")
    texts = '["A plane is taking off.", "A man plays the flute."]'
    assert texts in code
    program = code.replace(texts, repr(TEXTS)) + "\nimport numpy\nnumpy.savez('found', onnx, openvino, bert)\n"
    subprocess.run([BIN / "python", "-c", program], cwd=exports, env=os.environ | OFFLINE, check=True)
    found = np.load(exports / "found.npz")
    assert len(found.files) == 3
    for name in found.files:
        np.testing.assert_allclose(found[name], embeddings, atol=1e-5)


@needs_servers
def test_optimum(exports, models):
    export_model(models / "sst2", exports / "sst2-openvino", "openvino")
    program = example("optimum", "python") + "\nimport json\nprint(json.dumps([onnx_scores, openvino_scores]))\n"
    texts = '["A delightful film.", "Not worth the ticket."]'
    assert texts in program
    program = program.replace(texts, repr(TEXTS[:2]))
    done = subprocess.run(
        [BIN / "python", "-c", program], cwd=exports, env=os.environ | OFFLINE, stdout=subprocess.PIPE, check=True
    )
    expected = pipeline("text-classification", str(models / "sst2"))(TEXTS[:2])
    for found, tolerance in zip(json.loads(done.stdout.splitlines()[-1]), (1e-5, 0.02), strict=True):
        for row, other in zip(found, expected, strict=True):  # OpenVINO computes in bfloat16 on some CPUs
            assert row["label"] == other["label"] and row["score"] == pytest.approx(other["score"], abs=tolerance)


@pytest.fixture(scope="module")
def server(exports, tmp_path_factory):
    """Runs the command of the page."""
    command = shlex.split(example("infinity", "bash").replace("\\\n", " "))
    log = tmp_path_factory.mktemp("infinity") / "log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=exports, env=os.environ | OFFLINE, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + SECONDS
        while not answers():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        assert process.poll() is None, log.read_text()  # another server may use the port
        yield
    finally:
        process.terminate()
        process.wait()


def answers() -> bool:
    try:
        urlopen("http://127.0.0.1:7997/health").close()
    except URLError:
        return False
    return True


@needs_servers
def test_infinity_serves_embeddings_and_a_classifier(server, models, embeddings):
    names = {}
    exec(example("infinity", "python"), names)
    post = names["post"]
    found = [row["embedding"] for row in post("/embeddings", model="encoder", input=TEXTS)]
    np.testing.assert_allclose(found, embeddings, atol=1e-5)
    classify = pipeline("text-classification", str(models / "sst2"), top_k=None, truncation=True)
    for ours, theirs in zip(classify(TEXTS), post("/classify", model="sst2", input=TEXTS), strict=True):
        assert {each["label"]: each["score"] for each in theirs} == pytest.approx(
            {each["label"]: each["score"] for each in ours}, abs=1e-5
        )
    assert names["scores"][0]["label"] in ("LABEL_0", "LABEL_1")
