"""infinity, optimum, and sentence-transformers with ONNX Runtime and OpenVINO, in an environment of their own.

`make test-serve` creates it and runs these tests.
"""

import json
import os
import shlex
import subprocess
import time
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from serving_page import ROOT, TEXTS, example
from transformers import pipeline

from snugbert.export.export import export_model

BIN = ROOT / ".venv-serve" / "bin"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not (BIN / "infinity_emb").exists(), reason="run `make test-serve`"),
]
OFFLINE = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PATH": f"{BIN}:{os.environ['PATH']}"}
SECONDS = 120  # until the server answers


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
