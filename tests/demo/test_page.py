"""`snugbert demo`: pages of tiny checkpoints with known answers, typed into, clicked on and read in a real Chromium.

Screenshots for the docs: `python tests/demo/test_page.py docs CHECKPOINT ...` clicks on the second example of the
first tab of each checkpoint, and looks at attention in the last one.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from io import BytesIO
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import gradio as gr
import pytest
import torch
import transformers
from gradio_client import Client
from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from transformers import AutoModel, AutoTokenizer, BertConfig, RobertaConfig, pipeline

import snugbert
from snugbert.demo import answers
from snugbert.demo.page import MOST_BYTES, MOST_CHARACTERS, MOST_TOKENS, build_page, serve
from snugbert.modeling_snugbert import AUTO_CLASSES
from snugbert_cli import main

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1100,1000"
).split()
PATIENCE = 30  # seconds
MOST_STEPS = 400

SIZE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 72,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}
STORIES = [("the cat drinks milk.", "then she sleeps."), ("the dog eats meat.", "then he barks.")]
REVIEWS = {"a good film": (1, 0), "a bad film": (0, 0), "a good play": (1, 1), "a bad play": (0, 1)}  # good? a play?
TAGGED = [
    ("Ada Byron met Bob in London.", "B-PER I-PER O B-PER O B-LOC O"),
    ("In Paris Bob met Ada Byron.", "O B-LOC B-PER O B-PER I-PER O"),
    ("London met Paris.", "B-LOC O B-LOC O"),
]
TAGS = ["O", "B-LOC", "B-PER", "I-PER"]
FACTS = ["Ada Byron wrote it.", "Bob met the dog in Paris.", "The cat drinks milk."]
QUESTIONS = {"Who wrote it?": "Ada Byron", "Where is Bob?": "Paris", "What drinks the cat?": "milk", "Who sleeps?": ""}
ENDINGS = {"the cat": "drinks milk", "the dog": "eats meat"}
TEXTS = [*sum(STORIES, ()), *REVIEWS, *(text for text, _ in TAGGED), *FACTS, *QUESTIONS, *ENDINGS.values()]
WORDS = sorted({word for text in TEXTS for word in text.lower().replace(".", " .").replace("?", " ?").split()})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]

pytestmark = [
    pytest.mark.usefixtures("one_thread", "pictures"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),  # pandas warns it
]


# --- checkpoints ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> snugbert.SnugBertTokenizer:
    return snugbert.SnugBertTokenizer({word: index for index, word in enumerate(VOCABULARY)})


@pytest.fixture(scope="module")
def checkpoints(tokenizer, one_thread, tmp_path_factory) -> dict[str, Path]:
    """Folders of models that have learned the texts above by heart; some are stock BERT's."""
    root = tmp_path_factory.mktemp("checkpoints")

    def learn(name: str, model_class: type, batch: dict[str, Any], **config: Any) -> None:

        torch.manual_seed(0)
        stock = model_class.__module__.startswith("transformers")
        config_class = BertConfig if stock else snugbert.SnugBertConfig
        model = model_class(config_class(vocab_size=len(VOCABULARY), **SIZE | config)).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(MOST_STEPS):
            loss = model(**batch).loss
            if loss < 0.02:
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert loss < 0.02, name
        save(model, name)

    def save(model: transformers.PreTrainedModel, name: str) -> None:
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)

    def encoded(*texts: list[str]) -> dict[str, torch.Tensor]:
        return dict(tokenizer(*texts, padding=True, return_tensors="pt"))

    learn("pretrained", snugbert.SnugBertForPreTraining, masked_pairs(tokenizer))
    for name, head in (
        ("mask", snugbert.SnugBertForMaskedLM),
        ("next", snugbert.SnugBertForNextSentencePrediction),
    ):
        save(head.from_pretrained(root / "pretrained"), name)

    torch.manual_seed(1)
    save(
        transformers.BertModel(BertConfig(vocab_size=len(VOCABULARY), **(SIZE | {"initializer_range": 0.3}))),
        "encoder",
    )

    reviews, pairs = list(REVIEWS), list(permutations(REVIEWS, 2))
    learn(
        "labels",
        snugbert.SnugBertForSequenceClassification,
        encoded(reviews + [one for one, _ in pairs], [""] * len(reviews) + [other for _, other in pairs])
        | {
            "labels": torch.tensor(
                [REVIEWS[text][0] for text in reviews] + [2 + REVIEWS[other][1] for _, other in pairs]
            )
        },
        id2label=dict(enumerate(["negative", "positive", "then a film", "then a play"])),
    )
    judged = torch.tensor(list(REVIEWS.values()), dtype=torch.float)
    learn(
        "several",
        transformers.BertForSequenceClassification,
        encoded(reviews) | {"labels": judged},
        id2label={0: "good", 1: "play"},
        problem_type="multi_label_classification",
    )
    learn(
        "number",
        snugbert.SnugBertForSequenceClassification,
        encoded(reviews) | {"labels": judged @ torch.tensor([5.0, -1.0])},
        num_labels=1,
    )

    encoding = tokenizer([text for text, _ in TAGGED], padding=True, return_tensors="pt")
    tags = torch.full_like(encoding["input_ids"], -100)
    for row, (_, told) in enumerate(TAGGED):
        tags[row, 1 : 1 + len(told.split())] = torch.tensor([TAGS.index(tag) for tag in told.split()])
    learn(
        "tags",
        transformers.BertForTokenClassification,
        dict(encoding) | {"labels": tags},
        id2label=dict(enumerate(TAGS)),
    )
    learn("answers", transformers.BertForQuestionAnswering, questions_on_facts(tokenizer))
    choices = encoded([text for text in ENDINGS for _ in ENDINGS], [*ENDINGS.values()] * len(ENDINGS))
    learn(
        "choices",
        snugbert.SnugBertForMultipleChoice,
        {name: ids.view(len(ENDINGS), len(ENDINGS), -1) for name, ids in choices.items()}
        | {"labels": torch.arange(len(ENDINGS))},
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    return {folder.name: folder for folder in root.iterdir()}


def masked_pairs(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """Each story with its own end, with the other's, and without, once for each word that is masked."""
    firsts, seconds = zip(*STORIES, strict=True)
    rows = [(*story, 0) for story in STORIES] + [(firsts[0], seconds[1], 1), (firsts[1], seconds[0], 1)]
    rows += [(first, "", 0) for first in firsts]
    batch: dict[str, list] = {"input_ids": [], "token_type_ids": [], "labels": [], "next_sentence_label": []}
    for first, second, is_random in rows:
        encoding = tokenizer(first, second)
        for place, token in enumerate(encoding["input_ids"]):
            if token in tokenizer.all_special_ids:
                continue
            ids, labels = encoding["input_ids"].copy(), [-100] * len(encoding["input_ids"])
            ids[place], labels[place] = tokenizer.mask_token_id, token
            for name, values in (
                ("input_ids", ids),
                ("token_type_ids", encoding["token_type_ids"]),
                ("labels", labels),
            ):
                batch[name].append(torch.tensor(values))
            batch["next_sentence_label"].append(torch.tensor(is_random))
    pad = torch.nn.utils.rnn.pad_sequence
    inputs = {
        "input_ids": pad(batch["input_ids"], batch_first=True),
        "token_type_ids": pad(batch["token_type_ids"], batch_first=True),
        "labels": pad(batch["labels"], batch_first=True, padding_value=-100),
        "next_sentence_label": torch.stack(batch["next_sentence_label"]),
    }
    return inputs | {"attention_mask": (inputs["input_ids"] != tokenizer.pad_token_id).long()}


def questions_on_facts(tokenizer: snugbert.SnugBertTokenizer) -> dict[str, torch.Tensor]:
    """Every question on the facts in any order, or some of them; [CLS] answers what the text does not tell."""
    contexts = [" ".join(facts) for number in (1, 2, 3) for facts in permutations(FACTS, number)]
    rows = [(question, context, found) for context in contexts for question, found in QUESTIONS.items()]
    batch = tokenizer([row[0] for row in rows], [row[1] for row in rows], padding=True, return_tensors="pt")
    spans = []
    for row, (_, context, found) in enumerate(rows):
        start = context.find(found) if found else -1
        end = start + len(found) - 1
        spans.append([0, 0] if start < 0 else [batch.char_to_token(row, char, 1) for char in (start, end)])
    starts, ends = torch.tensor(spans).T
    return dict(batch) | {"start_positions": starts, "end_positions": ends}


# --- answers, without a page ------------------------------------------------------------------------------------


def test_answers_are_those_of_transformers(checkpoints):
    """Pipelines and stock BERT on the same folders."""

    def by_pipeline(task: str, name: str, *arguments: Any, **options: Any) -> Any:
        return pipeline(
            task, model=str(checkpoints[name]), tokenizer=AutoTokenizer.from_pretrained(checkpoints[name])
        )(*arguments, **options)

    loaded = {name: answers.load_checkpoint(str(folder)) for name, folder in checkpoints.items()}
    assert {type(checkpoint.model) for checkpoint in loaded.values()} == set(AUTO_CLASSES.values())

    text = "the [MASK] drinks [MASK]."
    expected = [
        {guess["token_str"]: guess["score"] for guess in guesses}
        for guesses in by_pipeline("fill-mask", "mask", text, top_k=answers.MOST_GUESSES)
    ]
    for name in ("mask", "pretrained"):
        guesses = answers.fill_masks(loaded[name], text)
        assert [list(words) for words in guesses] == [list(words) for words in expected]
        for words, theirs in zip(guesses, expected, strict=True):
            assert words == pytest.approx(theirs, abs=1e-5)
    for name, function in (("labels", "softmax"), ("several", "sigmoid")):
        pair = ("a bad film", "a good play") if name == "labels" else ("a bad film", "")
        scores = by_pipeline(
            "text-classification",
            name,
            {"text": pair[0], "text_pair": pair[1] or None},
            top_k=None,
            function_to_apply=function,
        )
        assert answers.classify(loaded[name], *pair) == pytest.approx(
            {s["label"]: s["score"] for s in scores}, abs=1e-5
        )
    number = by_pipeline("text-classification", "number", "a good play", function_to_apply="none")[0]["score"]
    assert float(answers.classify(loaded["number"], "a good play", "")) == pytest.approx(number, abs=1e-3)
    text = "Bob met Ada Byron in London; London met Ada Bob in Paris."
    entities = by_pipeline("ner", "tags", text, aggregation_strategy="first")
    tagged = [(piece, kind) for piece, kind in answers.tag(loaded["tags"], text) if kind]
    assert tagged == [(text[e["start"] : e["end"]], e["entity_group"]) for e in entities] and len(tagged) > 4
    assert "".join(piece for piece, _ in answers.tag(loaded["tags"], text)) == text

    stock = AutoModel.from_pretrained(checkpoints["encoder"], attn_implementation="eager").eval()
    tokenizer = loaded["encoder"].tokenizer
    with torch.inference_mode():
        vectors = [stock(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in FACTS[:2]]
        weights = torch.cat(stock(**tokenizer(*FACTS[:2], return_tensors="pt"), output_attentions=True).attentions)
    cosine = vectors[0] @ vectors[1] / vectors[0].norm() / vectors[1].norm()
    assert answers.similarity(loaded["encoder"], *FACTS[:2]) == pytest.approx(cosine.item(), abs=1e-5)
    tokens, ours = answers.attention(loaded["encoder"], *FACTS[:2])
    assert tokens == "[CLS] ada byron wrote it . [SEP] bob met the dog in paris . [SEP]".split()
    torch.testing.assert_close(ours, weights, atol=1e-5, rtol=0)


# --- over HTTP --------------------------------------------------------------------------------------------------


@contextmanager
def served(folder: Path) -> Iterator[gr.Blocks]:
    page = build_page(folder.name, answers.load_checkpoint(str(folder)))
    serve(page, "127.0.0.1")
    try:
        yield page
    finally:
        page.close(verbose=False)


@pytest.fixture(scope="module")
def tagging_page(checkpoints) -> Iterator[gr.Blocks]:
    with served(checkpoints["tags"]) as page:
        yield page


def ask(port: int, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> int:
    """The status of the answer to a GET, or to a POST if there is a body; an iterator is sent without its length."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    fields = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, body, fields)
        return connection.getresponse().status


CALL = "/gradio_api/call/answered"
TYPED = json.dumps({"data": ["a"]}).encode()


def test_only_our_own_pages_and_programs_are_answered(tagging_page):
    port = tagging_page.server_port
    for host, status in (
        (f"127.0.0.1:{port}", 200),
        (f"localhost:{port}", 200),
        (f"[::1]:{port}", 200),
        ("localhost:9000", 200),  # a tunnel's other end
        (f"evil.example:{port}", 400),  # DNS rebinding
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
    ):
        assert (ask(port, "/", Host=host), ask(port, CALL, TYPED, Host=host)) == (status, status), host
    for origin in ("http://evil.example", "null", f"http://localhost:{port + 1}", f"http://localhost:{port}"):
        assert (ask(port, "/config", Origin=origin), ask(port, CALL, TYPED, Origin=origin)) == (403, 403), origin
    assert ask(port, CALL, TYPED, Origin=f"http://127.0.0.1:{port}") == 200
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert ask(port, CALL, TYPED, Sec_Fetch_Site=site) == status
    assert ask(port, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200  # a link to the page
    client = Client(tagging_page.local_url, verbose=False, analytics_enabled=False)
    marked = client.predict(TAGGED[2][0], api_name="/answered")
    assert [(piece["token"], piece["class_or_confidence"]) for piece in marked][::2] == [
        ("London", "LOC"),
        ("Paris", "LOC"),
    ]


def test_large_requests_and_files_are_refused(tagging_page):
    port = tagging_page.server_port
    largest = TYPED + b" " * (MOST_BYTES - len(TYPED))
    assert ask(port, CALL, largest) == 200
    assert ask(port, CALL, largest + b" ") == 413
    assert ask(port, CALL, iter([largest])) == 200
    assert ask(port, CALL, iter([largest, b" "])) == 413
    file = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\na\r\n--b--\r\n'
    assert ask(port, "/gradio_api/upload", file, Content_Type="multipart/form-data; boundary=b") == 413


# --- in the browser ---------------------------------------------------------------------------------------------


class Visitor:
    """Somebody at a page: says what is to be seen on it, types, clicks and slides."""

    def __init__(self):
        missing = [name for name, path in PROGRAMS.items() if path is None]
        if missing:
            pytest.skip(f"{' and '.join(missing)} not installed")
        self.profile = TemporaryDirectory(ignore_cleanup_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = PROGRAMS["chromium"]
        for flag in (*FLAGS, f"--user-data-dir={self.profile.name}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL"})  # every request
        service = Service(executable_path=PROGRAMS["chromedriver"])
        self.browser = webdriver.Chrome(options=options, service=service)

    def close(self) -> None:
        self.browser.quit()
        self.profile.cleanup()

    @contextmanager
    def at(self, folder: Path, host: str = "127.0.0.1") -> Iterator[None]:
        """Opens the page of a checkpoint, and sees to it that it asks nobody else for anything."""
        with served(folder) as page:
            self.browser.get_log("performance")
            self.browser.get(f"http://{host}:{page.server_port}/")
            self.until(lambda: bool(self.all("button[role=tab]")), True)
            yield
            messages = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
            asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
            hosts = {urlsplit(url).hostname for url in asked if not url.startswith(("data:", "blob:", "chrome:"))}
            assert hosts == {host}

    def all(self, selector: str) -> list:
        """What of it can be seen."""
        return [element for element in self.browser.find_elements("css selector", selector) if element.is_displayed()]

    def turn_to(self, tab: str) -> None:
        next(button for button in self.all("button[role=tab]") if button.text == tab).click()

    def click(self, text: str) -> None:
        self.until(lambda: [button.text for button in self.all("button.primary")], [text])
        self.all("button.primary")[0].click()

    def type(self, label: str, text: str) -> None:
        fields = self.browser.find_elements(
            "xpath", f"//label[.//span[normalize-space()='{label}']]//*[self::textarea or self::input]"
        )
        field = next(field for field in fields if field.is_displayed())
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text or Keys.DELETE)

    def slide(self, label: str, steps: int) -> None:
        self.all(f"input[aria-label='range slider for {label}']")[0].send_keys(Keys.ARROW_RIGHT * steps)

    def until(self, look: Callable[[], Any], expected: Any) -> None:
        """Waits for what is expected to be seen."""

        def seen(_: Any) -> bool:
            return look() == expected

        try:
            WebDriverWait(
                self.browser, PATIENCE, poll_frequency=0.1, ignored_exceptions=[StaleElementReferenceException]
            ).until(seen)
        except TimeoutException:
            assert look() == expected

    def shoot(self, file: Path) -> None:
        """A picture of the whole page in 256 colours."""
        time.sleep(1)  # until nothing fades in any more
        for height in (500, None):  # in a high window the foot is at that of the window
            height = height or self.browser.execute_script("return document.documentElement.scrollHeight")
            size = {"width": 1100, "height": height, "deviceScaleFactor": 1, "mobile": False}
            self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(1)
        with Image.open(BytesIO(self.browser.get_screenshot_as_png())) as picture:
            picture.convert("P", palette=Image.Palette.ADAPTIVE).save(file, optimize=True)

    def headings(self) -> list[str]:
        """The largest letters of each list of labels."""
        return [element.text for element in self.all("[data-testid=label-output-value]")]

    def bars(self) -> dict[str, str]:
        """Labels and their percentages."""
        return {
            bar.find_element("css selector", ".text").text: bar.find_element("css selector", ".confidence").text
            for bar in self.all(".confidence-set")
        }

    def marked(self) -> list[tuple[str, str, str]]:
        """What is marked in a text, as what, and its colour."""
        marks = self.all(".marked .token.highlighted")
        return [
            (
                mark.find_element("css selector", ".text").text,
                "".join(label.text for label in mark.find_elements("css selector", ".label")),
                mark.value_of_css_property("background-color"),
            )
            for mark in marks
        ]

    def message(self) -> str:
        """The newest message."""
        return next((element.text for element in self.all("[data-testid=toast-text]")[-1:]), "")

    def heat_map(self) -> tuple[list[str], ...]:
        """The labels of its rows and columns, and what its squares say."""
        look = "selector => [...document.querySelectorAll(selector)].map(cell => cell.title || cell.innerText)"
        parts = ("tbody th", "thead th", "tbody td")
        return tuple(
            self.browser.execute_script(f"return ({look})(arguments[0])", f"table.attention {part}") for part in parts
        )


@pytest.fixture(scope="module")
def visitor() -> Iterator[Visitor]:
    visitor = Visitor()
    yield visitor
    visitor.close()


def percent(probability: float) -> str:
    return f"{probability:.0%}"


def test_masks_are_filled_and_next_sentences_judged(checkpoints, visitor):
    pretrained = answers.load_checkpoint(str(checkpoints["pretrained"]))
    with visitor.at(checkpoints["pretrained"]):
        seen = visitor.all("h1")[0].text, visitor.all("p")[0].text
        assert seen[0] == "pretrained" and "SnugBertForPreTraining" in seen[1] and "layers 2, heads 4" in seen[1]
        assert [tab.text for tab in visitor.all("button[role=tab]")] == ["Fill the mask", "Next sentence", "Attention"]
        visitor.type("Text with [MASK]", "the [MASK] drinks milk.")
        visitor.click("Fill the mask")
        visitor.until(visitor.headings, ["cat"])
        (guesses,) = answers.fill_masks(pretrained, "the [MASK] drinks milk.")
        assert visitor.bars() == {word: percent(probability) for word, probability in guesses.items()}
        visitor.type("Text with [MASK]", "the dog [MASK] [MASK].")
        visitor.click("Fill the mask")
        visitor.until(visitor.headings, ["eats", "meat"])

        visitor.turn_to("Next sentence")
        visitor.type("First sentence", STORIES[0][0])
        for story, heading in zip(STORIES, ("follows", "is random"), strict=True):
            visitor.type("Second sentence", story[1])
            visitor.click("Does it follow?")
            visitor.until(visitor.headings, [heading])
    with visitor.at(checkpoints["mask"]):
        visitor.type("Text with [MASK]", "the dog eats [MASK].")
        visitor.click("Fill the mask")
        visitor.until(visitor.headings, ["meat"])
    with visitor.at(checkpoints["next"]):
        visitor.type("First sentence", STORIES[1][0])
        visitor.type("Second sentence", STORIES[1][1])
        visitor.click("Does it follow?")
        visitor.until(visitor.headings, ["follows"])


def test_texts_are_classified(checkpoints, visitor):
    with visitor.at(checkpoints["labels"]):
        for text, second, label in (
            ("a good film", "", "positive"),
            ("a bad play", "", "negative"),
            ("a bad play", "a bad film", "then a film"),
            ("a bad film", "a bad play", "then a play"),
        ):
            visitor.type("Text", text)
            visitor.type("Second text, if the model was trained on pairs", second)
            visitor.click("Classify")
            visitor.until(visitor.headings, [label])
    with visitor.at(checkpoints["several"]):
        for text, probabilities in (("a good play", (1, 1)), ("a bad film", (0, 0)), ("a bad play", (0, 1))):
            visitor.type("Text", text)
            visitor.click("Classify")
            visitor.until(
                lambda: {label: round(float(shown[:-1]) / 100) for label, shown in visitor.bars().items()},
                dict(zip(("good", "play"), probabilities, strict=True)),
            )
        assert visitor.headings() == []  # it is not one of them
    with visitor.at(checkpoints["number"]):
        for text, number in (("a good film", 5), ("a bad play", -1)):
            visitor.type("Text", text)
            visitor.click("Classify")
            visitor.until(lambda: [round(float(heading)) for heading in visitor.headings()], [number])


def test_entities_are_coloured(checkpoints, visitor):
    with visitor.at(checkpoints["tags"], "localhost"):
        visitor.type("Text", TAGGED[0][0])
        visitor.click("Tag")
        visitor.until(
            lambda: [mark[:2] for mark in visitor.marked()], [("Ada Byron", "PER"), ("Bob", "PER"), ("London", "LOC")]
        )
        ada, bob, london = (color for *_, color in visitor.marked())
        assert (ada, bob, london) == ("rgba(213, 94, 0, 0.5)", "rgba(213, 94, 0, 0.5)", "rgba(0, 114, 178, 0.5)")


def test_answers_are_marked_in_the_context(checkpoints, visitor):
    context = " ".join(FACTS)
    long_context = f"{FACTS[2]} " * 15 + FACTS[0] + f" {FACTS[2]}" * 15  # 150 words in windows of 72
    with visitor.at(checkpoints["answers"]):
        visitor.type("Text of any length", context)
        for question in ("Who wrote it?", "Where is Bob?"):
            visitor.type("Question", question)
            visitor.click("Answer")
            visitor.until(lambda: [mark[0] for mark in visitor.marked()], [QUESTIONS[question]])
            assert visitor.headings() == [QUESTIONS[question]]
        assert "".join(visitor.all(".marked .textfield")[0].text.split()) == "".join(context.split())
        visitor.type("Question", "Who sleeps?")
        visitor.click("Answer")
        visitor.until(visitor.headings, [answers.NO_ANSWER])
        assert visitor.marked() == []
        visitor.all("input[type=checkbox]")[0].click()
        visitor.click("Answer")
        visitor.until(lambda: len(visitor.marked()), 1)
        assert answers.NO_ANSWER not in visitor.bars()
        visitor.type("Text of any length", long_context)
        visitor.type("Question", "Who wrote it?")
        visitor.click("Answer")
        visitor.until(lambda: [mark[0] for mark in visitor.marked()], ["Ada Byron"])


def test_choices_and_similar_texts(checkpoints, visitor):
    with visitor.at(checkpoints["choices"]):
        visitor.type("Choices, one a line", "\n".join(ENDINGS.values()))
        for text, ending in ENDINGS.items():
            visitor.type("Text or question", text)
            visitor.click("Choose")
            visitor.until(visitor.headings, [ending])
        visitor.turn_to("Attention")  # of the only head of the only layer
        visitor.click("Show attention")
        visitor.until(lambda: visitor.heat_map()[0][:3], ["[CLS]", "the", "cat"])
        assert visitor.all("input[type=range]") == []
    with visitor.at(checkpoints["encoder"]):
        cosine = answers.similarity(answers.load_checkpoint(str(checkpoints["encoder"])), *FACTS[:2])
        visitor.type("Text", FACTS[0])
        for text, number in ((FACTS[0], 1.0), (FACTS[1], cosine)):
            visitor.type("Another text", text)
            visitor.click("Compare")
            visitor.until(lambda: visitor.all("input[type=number]")[0].get_attribute("value"), f"{number:.3g}")


def test_attention_of_every_layer_and_head(checkpoints, visitor):
    text = "Bob met the cat in Paris."
    tokens, weights = answers.attention(answers.load_checkpoint(str(checkpoints["encoder"])), text)

    def expected(layer: int, head: int) -> tuple[list[str], ...]:
        squares = [
            f"{reader} reads {read}: {weights[layer - 1, head - 1, row, column]:.0%}"
            for row, reader in enumerate(tokens)
            for column, read in enumerate(tokens)
        ]
        return tokens, tokens, squares

    assert expected(1, 1) != expected(1, 2) != expected(2, 2)
    with visitor.at(checkpoints["encoder"]):
        visitor.turn_to("Attention")
        visitor.type("Text", text)
        visitor.click("Show attention")
        visitor.until(visitor.heat_map, expected(1, 1))
        numbers = [float(weight) for weight in weights[0, 0].flatten()]
        lightest = visitor.all("table.attention tbody td")[numbers.index(max(numbers))]
        assert lightest.value_of_css_property("background-color") == "rgba(254, 232, 56, 1)"  # the end of cividis
        picture = visitor.all("[data-testid=matplotlib] img")[0]
        assert picture.size["width"] > 300 < picture.size["height"]
        visitor.slide("Head", 1)
        visitor.until(visitor.heat_map, expected(1, 2))
        visitor.slide("Layer", 1)
        visitor.until(visitor.heat_map, expected(2, 2))
        visitor.type("Text", "the cat " * (MOST_TOKENS // 2))
        visitor.click("Show attention")
        visitor.until(visitor.message, "The text has 66 tokens, and a picture shows 64 at most: shorten it.")


def test_what_cannot_be_answered_is_said_in_a_sentence(checkpoints, visitor, capfd):
    with visitor.at(checkpoints["pretrained"]):
        for text, message in (
            ("", "There is no word in the text: type some."),
            (
                "the cat drinks milk.",
                "There is no [MASK] in the text: write [MASK], just so, where a word is to be guessed.",
            ),
            ("milk " * 70 + "[MASK]", "The text has 73 tokens, and the model reads 72 at most: shorten it."),
        ):
            visitor.type("Text with [MASK]", text)
            visitor.click("Fill the mask")
            visitor.until(visitor.message, message)
        visitor.turn_to("Next sentence")
        visitor.type("First sentence", "the cat drinks milk.")
        visitor.click("Does it follow?")
        visitor.until(visitor.message, "There is no second sentence: type one.")
    with visitor.at(checkpoints["answers"]):
        fill = (
            "[field, text] = arguments; field.value = text; field.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        visitor.browser.execute_script(fill, visitor.all("textarea")[1], "a" * (MOST_CHARACTERS + 1))
        visitor.click("Answer")
        visitor.until(visitor.message, "The text has 100,001 characters. The limit is 100,000. Shorten it.")
        visitor.type("Text of any length", "<b>Ada</b>")
        visitor.type("Question", "<i>milk</i>" * 20)
        visitor.click("Answer")
        visitor.until(lambda: "more than `max_query_length` 64: '<i>milk</i><i>" in visitor.message(), True)
    assert "Traceback" not in capfd.readouterr().err


# --- the command ------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_process_serves_until_ctrl_c(checkpoints):
    """To this machine, or to all: there by any name, and with a warning."""
    model = str(checkpoints["tags"])
    processes = {}
    for host in ("127.0.0.1", "0.0.0.0"):
        port = free_port()
        command = [sys.executable, "-m", "snugbert", "demo", "--model", model, "--host", host, "--port", str(port)]
        processes[port] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ended = []
    try:
        for port, process in processes.items():
            served_at = process.stdout.readline()
            with urlopen(f"http://127.0.0.1:{port}/") as response:
                assert "tags · SnugBERT" in response.read().decode()
            statuses = [
                ask(port, CALL, TYPED, Host="a.lan:1", Origin=origin)
                for origin in ("http://a.lan:1", "http://b.lan:1")
            ]
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE)
            ended.append((served_at, statuses, process.returncode, output, errors))
    finally:
        for process in processes.values():
            process.kill()
    local, open_to_all = processes
    assert ended == [
        (f"{model} is on http://127.0.0.1:{local}/ until Ctrl-C.\n", [400, 400], 130, "", ""),
        (
            f"{model} is on http://localhost:{open_to_all}/ until Ctrl-C.\n",
            [200, 403],
            130,
            "",
            "snugbert demo: warning: --host 0.0.0.0: anyone who can reach this machine can use the model. There is no "
            "password and no encryption. To use it from another machine, omit --host and open a tunnel there: "
            f"ssh -L {open_to_all}:127.0.0.1:{open_to_all} THIS_MACHINE.\n",
        ),
    ]


def test_command_lines_that_cannot_be_used(checkpoints, tokenizer, tmp_path, monkeypatch, capsys):
    folder = str(checkpoints["encoder"])
    for name, config in (
        ("roberta", RobertaConfig()),
        ("nameless", BertConfig()),
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
        ([], "the following arguments are required: --model"),
        (["--model", str(tmp_path / "nowhere")], f"there is no folder {tmp_path / 'nowhere'}."),
        (["--model", str(tmp_path / "roberta")], "is a model of type 'roberta'"),
        (["--model", str(tmp_path / "nameless")], 'add "architectures", one of SnugBertModel, SnugBertForPreTraining'),
        (["--model", str(tmp_path / "decoder")], "names the architecture BertLMHeadModel, not one of SnugBertModel,"),
        (["--model", str(tmp_path / "headless")], "qa_outputs.weight would be random"),
        (
            ["--model", folder, "--port", port],
            f"--port {port}: the page cannot be served there: Address already in use",
        ),
        (["--model", folder, "--port", "70000"], "--port 70000: ports are numbers from 1 to 65535."),
        (["--model", folder, "--host", "192.0.2.1"], "--host 192.0.2.1: the page cannot be served there: "),
    ):
        assert main(["demo", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("snugbert demo: error: ") and message in error and error.count("\n") == 1
    server.close()
    monkeypatch.delitem(sys.modules, "snugbert.demo.page")
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", "--model", folder]) == 2
    assert "the page needs a current gradio. Run: pip install -U 'snugbert[demo]'" in capsys.readouterr().err


def make_pictures(folder: Path, checkpoints: list[Path]) -> None:
    """Writes `demo_*.png`, see above."""
    visitor = Visitor()
    for checkpoint in checkpoints:
        with visitor.at(checkpoint):
            visitor.all(".gallery-item")[1].click()
            visitor.until(lambda: bool(visitor.headings() or visitor.marked()), True)
            title = visitor.all("button[role=tab]")[0].text
            visitor.shoot(folder / f"demo_{title.lower().replace(' ', '_')}.png")
            if checkpoint is checkpoints[-1]:
                visitor.turn_to("Attention")
                visitor.click("Show attention")
                visitor.slide("Layer", 1)
                visitor.slide("Head", 4)
                visitor.until(lambda: bool(visitor.all("table.attention")), True)
                visitor.shoot(folder / "demo_attention.png")
    visitor.close()


if __name__ == "__main__":
    make_pictures(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
