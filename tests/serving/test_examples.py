"""The examples of docs/how-to/serve.md whose engines work with transformers 5, and exports in other tools."""

import numpy as np
import pytest
from scipy.special import softmax
from sentence_transformers import CrossEncoder, SentenceTransformer
from serving_page import TEXTS, example
from transformers import pipeline

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


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


@pytest.mark.parametrize("section", ["OpenVINO", "CTranslate2"])
def test_other_engines_embed_like_the_model(run_example, embeddings, section):
    found = run_example(section, '["A plane is taking off.", "Hi."]')["embeddings"]
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    np.testing.assert_allclose(found, embeddings, atol=1e-5)


def test_the_stock_folder_works_in_the_newest_sentence_transformers(exports, embeddings):
    original, model = (SentenceTransformer(str(exports / name)) for name in ("encoder", "encoder-bert"))
    np.testing.assert_allclose(model.encode(TEXTS), embeddings, atol=1e-5)
    assert (model.prompts, model.max_seq_length) == (original.prompts, 128) and len(model) == 3
    query = original.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(model.encode(TEXTS, prompt_name="query"), query, atol=1e-5)
    pairs = [(TEXTS[0], text) for text in TEXTS]
    expected = CrossEncoder(str(exports / "reranker")).predict(pairs)
    np.testing.assert_allclose(CrossEncoder(str(exports / "reranker-bert")).predict(pairs), expected, atol=1e-5)
    assert 0 < expected.min() < expected.max() < 1  # after the sigmoid
