"""`snugbert demo`: answers equal transformers' pipelines and stock BERT, and the page shows them."""

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import forked
import gradio as gr
import pytest
import torch
import transformers
from browser import PATIENCE, opened
from demo_checkpoints import FACTS, SIZE, STORIES, VOCABULARY, train_checkpoints
from transformers import AlbertConfig, AutoModel, BertConfig, pipeline

import snugbert
from snugbert import demo
from snugbert.errors import InputError
from snugbert_cli import main

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),  # raised by pandas
]


@pytest.fixture(scope="module")
def tokenizer() -> snugbert.SnugBertTokenizer:
    return snugbert.SnugBertTokenizer({word: index for index, word in enumerate(VOCABULARY)})


@pytest.fixture(scope="module")
def checkpoints(tokenizer, tmp_path_factory) -> dict[str, Path]:
    """Folders by the names of [`train_checkpoints`]."""
    torch.set_num_threads(1)  # threads only wait for each other on models this small
    return train_checkpoints(tmp_path_factory.mktemp("checkpoints"), tokenizer)


@contextmanager
def served(folder: Path) -> Iterator[gr.Blocks]:
    page = demo.build_page(str(folder))
    demo.serve_page(page, "127.0.0.1")
    try:
        yield page
    finally:
        page.close(verbose=False)


def open_model(name: str, checkpoints, tokenizer) -> tuple[Any, Any]:
    config = transformers.AutoConfig.from_pretrained(checkpoints[name])
    model_class = getattr(snugbert, config.architectures[0].replace("SnugBert", "Bert").replace("Bert", "SnugBert"))
    return model_class.from_pretrained(checkpoints[name]).eval(), tokenizer


def test_answers_equal_transformers(checkpoints, tokenizer):
    """Compared with pipelines and stock BERT on the same folders."""
    ours = partial(open_model, checkpoints=checkpoints, tokenizer=tokenizer)

    def by_pipeline(task: str, name: str, inputs: Any, **options: Any) -> Any:
        return pipeline(task, model=str(checkpoints[name]), tokenizer=tokenizer)(inputs, **options)

    expected = {each["token_str"]: each["score"] for each in by_pipeline("fill-mask", "mask", "the [MASK] drinks.")}
    assert demo.fill_mask(*ours("mask"), "the [MASK] drinks.") == pytest.approx(expected, abs=1e-5)
    for name, function in (("labels", "softmax"), ("several", "sigmoid")):
        pair = ("a bad film", "a good play") if name == "labels" else ("a bad film", "")
        inputs = {"text": pair[0], "text_pair": pair[1] or None}
        scores = by_pipeline("text-classification", name, inputs, top_k=None, function_to_apply=function)
        expected = {each["label"]: each["score"] for each in scores}
        predicted, probabilities = demo.classify(*ours(name), *pair)
        assert probabilities == pytest.approx(expected, abs=1e-5)
        assert max(expected, key=expected.__getitem__) in predicted
    number = by_pipeline("text-classification", "number", "a good play", function_to_apply="none")[0]["score"]
    assert float(demo.classify(*ours("number"), "a good play", "")[0]) == pytest.approx(number, abs=1e-3)
    text = "Bob met Ada Byron in London; London met Ada Bob in Paris."
    entities = by_pipeline("ner", "tags", text, aggregation_strategy="first")
    tagged = [(each["entity"], each["start"], each["end"]) for each in demo.tag(*ours("tags"), text)["entities"]]
    assert tagged == [(e["entity_group"], e["start"], e["end"]) for e in entities] and len(tagged) > 4

    stock = AutoModel.from_pretrained(checkpoints["encoder"]).eval()
    with torch.inference_mode():
        vectors = [stock(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in FACTS[:2]]
    cosine = torch.cosine_similarity(*vectors, dim=0).item()
    assert demo.compare(*ours("encoder"), *FACTS[:2]) == pytest.approx(cosine, abs=1e-5)
    chosen = demo.choose(*ours("choices"), "the cat", "drinks milk\neats meat\n")
    assert list(chosen) == ["drinks milk", "eats meat"] and sum(chosen.values()) == pytest.approx(1)


def test_next_sentences_and_answers(checkpoints, tokenizer):
    model = open_model("next", checkpoints, tokenizer)
    for story, expected in zip(STORIES, ("follows", "is random"), strict=True):
        scores = demo.predict_next_sentence(*model, STORIES[0][0], story[1])
        assert max(scores, key=scores.__getitem__) == expected
    model = open_model("answers", checkpoints, tokenizer)
    context = f"{FACTS[2]} " * 15 + FACTS[0] + f" {FACTS[2]}" * 15  # 150 words in windows of 72
    marked, scores = demo.answer_question(*model, "Who wrote it?", context)
    (found,) = marked["entities"]
    assert context[found["start"] : found["end"]] == max(scores, key=scores.__getitem__) == "Ada Byron"
    marked, scores = demo.answer_question(*model, "Who sleeps?", " ".join(FACTS))
    assert max(scores, key=scores.__getitem__) == "(no answer)" and not marked["entities"]


def test_the_best_score_of_equal_answers_is_shown(monkeypatch):
    answers = [{"answer": "Ada", "score": 0.8, "start": 0, "end": 3}, {"answer": "Ada", "score": 0.1}]
    monkeypatch.setattr(snugbert, "QuestionAnswerer", lambda *_, **__: lambda *_, **__: answers)
    assert demo.answer_question(None, None, "Who?", "Ada. Ada.")[1] == {"Ada": 0.8}


def test_texts_that_would_be_cut_are_refused(checkpoints, tokenizer):
    with pytest.raises(InputError, match=r"The text has 82 tokens\. The model's limit is 72\."):
        demo.classify(*open_model("labels", checkpoints, tokenizer), "milk " * 80, "")
    with pytest.raises(InputError, match="82 tokens"):
        demo.choose(*open_model("choices", checkpoints, tokenizer), "milk " * 39, "milk\n" + "milk " * 40)


def ask(port: int, path: str, body: bytes | None = None, **headers: str) -> int:
    """Sends a GET, or a POST if there is a body. Returns the status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"} | headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_other_hosts_and_large_requests_are_refused(checkpoints):
    with served(checkpoints["tags"]) as page:
        port, call = page.server_port, "/gradio_api/call/partial"
        names = {f"127.0.0.1:{port}": 200, "localhost:9000": 200, "evil.example": 400, "localhost.evil.example": 400}
        assert {host: ask(port, "/", Host=host) for host in names} == names
        typed = b'{"data": ["a"]}'
        largest = typed + b" " * (demo.MOST_BYTES - len(typed))
        assert (ask(port, call, largest), ask(port, call, largest + b" ")) == (200, 413)


def test_the_page_shows_answers_and_errors_in_a_browser(checkpoints, tmp_path):
    with served(checkpoints["pretrained"]) as site, opened(site.local_url, tmp_path) as page:
        assert page.texts("h1") == ["pretrained · SnugBERT"]
        assert page.texts("button[role=tab]") == ["Fill the mask", "Next sentence"]
        page.type("Text", "the [MASK] drinks milk.")
        page.click("Fill the mask")
        page.wait(lambda: page.texts("[data-testid=label-output-value]") == ["cat"])
        page.type("Text", "the cat drinks milk.")
        page.click("Fill the mask")
        page.wait(lambda: page.texts("[data-testid=toast-text]") == ["Enter [MASK] in place of one word."])


@pytest.mark.parametrize(("host", "shown", "warns"), [("127.0.0.1", "127.0.0.1", 0), ("0.0.0.0", "localhost", 1)])
def test_a_process_serves_until_ctrl_c(checkpoints, host, shown, warns):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    arguments = ["demo", "--model", str(checkpoints["tags"]), "--host", host, "--port", str(port)]
    process = forked.start(main, arguments)
    try:
        end = time.monotonic() + PATIENCE
        while "\n" not in process.stdout and time.monotonic() < end:
            time.sleep(0.05)
        assert ask(port, "/") == 200
    finally:
        os.kill(process.pid, signal.SIGINT)
        status = process.wait()
    first, *_ = process.stdout.splitlines()
    address = f"http://{shown}:{port}/"
    assert process.stderr.count(f"warning: --host {host}: anyone who can reach this machine can use") == warns
    assert (status, first) == (130, f"Serving {checkpoints['tags']} at {address} (Ctrl-C to stop)")


def test_bad_arguments_are_refused(checkpoints, tokenizer, tmp_path, monkeypatch, capsys):
    folder = str(checkpoints["encoder"])
    for name, config in (
        ("albert", AlbertConfig()),
        ("decoder", BertConfig(architectures=["BertLMHeadModel"])),
        ("headless", BertConfig(architectures=["BertForQuestionAnswering"])),
    ):
        config.update({"vocab_size": len(VOCABULARY), **SIZE})
        config.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    shutil.copy(checkpoints["encoder"] / "model.safetensors", tmp_path / "headless")
    server = socket.create_server(("127.0.0.1", 0))
    port = str(server.getsockname()[1])
    for arguments, message in (
        (["--model", str(tmp_path / "nowhere")], f"the folder {tmp_path / 'nowhere'} does not exist."),
        (["--model", str(tmp_path / "albert")], "is a 'albert' model"),
        (["--model", str(tmp_path / "decoder")], 'unsupported "architectures": BertLMHeadModel. Expected one of Snug'),
        (["--model", str(tmp_path / "headless")], "has no weights for qa_outputs.bias, qa_outputs.weight"),
        (["--model", folder, "--port", port], f"--host 127.0.0.1 --port {port}: cannot serve the page."),
        (["--model", folder, "--port", "70000"], "--host 127.0.0.1 --port 70000: cannot serve the page."),
        (["--model", folder, "--host", "192.0.2.1"], "--host 192.0.2.1 --port None: cannot serve the page."),
    ):
        assert main(["demo", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("snugbert demo: error: ") and message in error and error.count("\n") == 1
    server.close()
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--model", folder]) == 2
    assert "the package gradio is not installed. Run: pip install 'snugbert[demo]'" in capsys.readouterr().err
