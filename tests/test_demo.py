"""`snugbert demo`: answers equal transformers' pipelines and stock BERT, and the page shows them."""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import forked
import pytest
import torch
import transformers
from family_checkpoints import WORDS, write_checkpoint
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait
from transformers import AutoTokenizer, BertConfig, pipeline

import snugbert
from snugbert import demo
from snugbert.errors import InputError
from snugbert_cli import main

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),  # raised by pandas
]
PATIENCE = 30  # seconds
TAGS = {0: "O", 1: "B-LOC", 2: "B-PER", 3: "I-PER"}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "pretrained": ("ForPreTraining", {}),
    "mask": ("ForMaskedLM", {}),
    "next": ("ForNextSentencePrediction", {}),
    "tags": ("ForTokenClassification", {"id2label": TAGS}),
    "answers": ("ForQuestionAnswering", {}),
    "encoder": ("Model", {}),
    "labels": ("ForSequenceClassification", {"id2label": dict(enumerate("abcd"))}),
    "number": ("ForSequenceClassification", {"num_labels": 1}),
    "choices": ("ForMultipleChoice", {}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """A folder with a stock checkpoint of each name in `HEADS`, with distinct predictions."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, (head, fields) in HEADS.items():
        write_checkpoint(root / name, "bert", head, initializer_range=0.3, max_position_embeddings=72, **fields)
    return root


def open_model(folder: Path) -> tuple[Any, Any]:
    model_class = getattr(snugbert, f"SnugBert{HEADS[folder.name][0]}")
    return model_class.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@contextmanager
def served(folder: Path) -> Iterator[Any]:
    page = demo.build_page(str(folder))
    demo.serve_page(page, "127.0.0.1")
    try:
        yield page
    finally:
        page.close(verbose=False)


def test_answers_equal_transformers(checkpoints):
    """Compared with pipelines and stock BERT on the same folders."""

    def by_pipeline(task: str, name: str, inputs: Any, **options: Any) -> Any:
        return pipeline(task, model=str(checkpoints / name))(inputs, **options)

    expected = {each["token_str"]: each["score"] for each in by_pipeline("fill-mask", "mask", "the [MASK] was.")}
    assert demo.fill_mask(*open_model(checkpoints / "mask"), "the [MASK] was.") == pytest.approx(expected, abs=1e-5)
    for second in ("a good year", ""):
        inputs = {"text": "a new film", "text_pair": second or None}
        scores = by_pipeline("text-classification", "labels", inputs, top_k=None)
        expected = {each["label"]: each["score"] for each in scores}
        predicted, probabilities = demo.classify(*open_model(checkpoints / "labels"), "a new film", second)
        assert probabilities == pytest.approx(expected, abs=1e-5)
        assert predicted == max(expected, key=expected.__getitem__)
    (number,) = by_pipeline("text-classification", "number", "a good film", function_to_apply="none")
    predicted, probabilities = demo.classify(*open_model(checkpoints / "number"), "a good film", "")
    assert float(predicted) == pytest.approx(number["score"], abs=1e-3) and not probabilities
    text = " ".join(WORDS[:40])
    entities = by_pipeline("ner", "tags", text, aggregation_strategy="first")
    tagged = demo.tag(*open_model(checkpoints / "tags"), text)["entities"]
    assert len(tagged) > 4
    assert [(each["entity"], each["start"], each["end"]) for each in tagged] == [
        (each["entity_group"], each["start"], each["end"]) for each in entities
    ]

    def by_stock_bert(name: str, *inputs: Any) -> Any:
        stock = getattr(transformers, f"Bert{HEADS[name][0]}").from_pretrained(checkpoints / name).eval()
        with torch.inference_mode():
            return stock(**AutoTokenizer.from_pretrained(checkpoints / name)(*inputs, return_tensors="pt"))

    follows, random = by_stock_bert("next", "a film", "the new year").logits[0].softmax(-1).tolist()
    scores = demo.predict_next_sentence(*open_model(checkpoints / "next"), "a film", "the new year")
    assert scores == pytest.approx({"follows": follows, "is random": random}, abs=1e-5)
    chosen = demo.choose(*open_model(checkpoints / "choices"), "he was", "here\nin a film\n")
    assert list(chosen) == ["here", "in a film"] and sum(chosen.values()) == pytest.approx(1)


def test_answers_to_questions(checkpoints, monkeypatch):
    model, context = open_model(checkpoints / "answers"), " ".join(WORDS * 3)  # several windows
    expected = snugbert.QuestionAnswerer(*model)("who was it?", context, top_k=3, handle_impossible_answer=True)
    marked, scores = demo.answer_question(*model, "who was it?", context)
    assert scores == {each["answer"] or "(no answer)": each["score"] for each in expected}
    assert marked["entities"] == [{"entity": "answer", **expected[0]}] and marked["text"] == context
    # No answer is not marked. Of equal texts from different places, the better score is shown.
    answers = [{"answer": "", "score": 0.5}, {"answer": "Ada", "score": 0.3}, {"answer": "Ada", "score": 0.1}]
    monkeypatch.setattr(snugbert, "QuestionAnswerer", lambda *_, **__: lambda *_, **__: answers)
    marked, scores = demo.answer_question(*model, "Who?", "Ada. Ada.")
    assert scores == {"(no answer)": 0.5, "Ada": 0.3} and not marked["entities"]


def test_texts_that_would_be_cut_are_refused(checkpoints):
    with pytest.raises(InputError, match=r"The text has 82 tokens\. The model's limit is 72\."):
        demo.classify(*open_model(checkpoints / "labels"), "film " * 80, "")
    with pytest.raises(InputError, match="82 tokens"):
        demo.choose(*open_model(checkpoints / "choices"), "film " * 39, "year\n" + "film " * 40)


def ask(port: int, path: str, body: bytes | None = None, **headers: str) -> int:
    """Sends a GET, or a POST if there is a body. Returns the status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"} | headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_other_hosts_and_large_requests_are_refused(checkpoints):
    with served(checkpoints / "tags") as page:
        port, call = page.server_port, "/gradio_api/call/partial"
        names = {f"127.0.0.1:{port}": 200, "localhost:9000": 200, "evil.example": 400, "localhost.evil.example": 400}
        assert {host: ask(port, "/", Host=host) for host in names} == names
        typed = b'{"data": ["a"]}'
        largest = typed + b" " * (demo.MOST_BYTES - len(typed))
        assert (ask(port, call, largest), ask(port, call, largest + b" ")) == (200, 413)


@pytest.mark.slow
def test_the_page_shows_answers_and_errors_in_a_browser_without_other_hosts(checkpoints, tmp_path):
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if None in programs.values():
        pytest.skip("chromium or chromedriver is not installed")
    model = snugbert.SnugBertForMaskedLM.from_pretrained(checkpoints / "pretrained").eval()
    scores = demo.fill_mask(model, AutoTokenizer.from_pretrained(checkpoints / "pretrained"), "the [MASK] was.")
    options = webdriver.ChromeOptions()
    options.binary_location = programs["chromium"]
    for flag in "headless=new no-sandbox disable-gpu no-first-run disable-background-networking disable-sync".split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})  # every request
    service = Service(executable_path=programs["chromedriver"])
    with served(checkpoints / "pretrained") as site, webdriver.Chrome(options=options, service=service) as browser:

        def shown(selector: str) -> list[Any]:
            return [each for each in browser.find_elements("css selector", selector) if each.is_displayed()]

        def wait(selector: str, texts: list[str]) -> None:
            ignored = [StaleElementReferenceException]
            driver = WebDriverWait(browser, PATIENCE, 0.1, ignored_exceptions=ignored)
            driver.until(lambda _: [each.text for each in shown(selector)] == texts)

        browser.get(site.local_url)
        wait("button[role=tab]", ["Fill the mask", "Next sentence"])
        wait("h1", ["pretrained · SnugBERT"])
        best = max(scores, key=scores.__getitem__)
        for text, selector, answer in (
            ("the [MASK] was.", "[data-testid=label-output-value]", best),
            ("the cat was.", "[data-testid=toast-text]", "Enter [MASK] in place of one word."),
        ):
            field = shown("textarea")[0]
            field.clear()
            field.send_keys(text)
            shown("button.primary")[0].click()
            wait(selector, [answer])
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        hosts = {urlsplit(each).hostname for each in sent if not each.startswith(("data:", "blob:", "chrome:"))}
        assert hosts == {"127.0.0.1"}


@pytest.mark.slow
def test_processes_serve_until_ctrl_c(checkpoints):
    """Only this machine, or all machines with a warning."""
    names = {"127.0.0.1": "localhost", "0.0.0.0": "machine.example"}
    running = {}
    for host in names:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        arguments = ["demo", "--model", str(checkpoints / "tags"), "--host", host, "--port", str(port)]
        running[host] = port, forked.start(main, arguments)
    for host, (port, process) in running.items():
        try:
            end = time.monotonic() + PATIENCE
            while "\n" not in process.stdout and time.monotonic() < end:
                time.sleep(0.05)
            assert ask(port, "/", Host=names[host]) == 200
        finally:
            os.kill(process.pid, signal.SIGINT)
            status = process.wait()
        first, *_ = process.stdout.splitlines()
        address = f"http://{host.replace('0.0.0.0', 'localhost')}:{port}/"
        assert (status, first) == (130, f"Serving {checkpoints / 'tags'} at {address} (Ctrl-C to stop)")
        assert (f"--host {host}: anyone who can reach this machine can use" in process.stderr) == (host == "0.0.0.0")


def test_bad_arguments_are_refused(checkpoints, tmp_path, capsys):
    folder = str(checkpoints / "encoder")
    for name in ("BertLMHeadModel", "BertForQuestionAnswering"):
        shutil.copytree(folder, tmp_path / name)
        BertConfig.from_pretrained(folder, architectures=[name]).save_pretrained(tmp_path / name)
    for flags, words in (
        (f"--model {tmp_path}/BertLMHeadModel", "there is no page for the architecture BertLMHeadModel. Expected"),
        (f"--model {folder}", "there is no page for the architecture BertModel. Expected a head for a task."),
        (f"--model {tmp_path}/BertForQuestionAnswering", "has no weights for qa_outputs.bias, qa_outputs.weight"),
        (f"--model {folder} --host 192.0.2.1", "Cannot assign requested address (while attempting to bind on address"),
    ):
        assert main(["demo", *flags.split()]) == 2
        error = capsys.readouterr().err
        assert error.startswith("snugbert demo: error: ") and words in error and error.count("\n") == 1
