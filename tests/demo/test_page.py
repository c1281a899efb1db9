"""Pages of tiny checkpoints with known answers, over HTTP and in a real Chromium."""

from collections.abc import Iterator

import gradio as gr
import pytest
from browser import CALL, TYPED, Visitor, ask, served
from demo_checkpoints import FACTS, QUESTIONS, STORIES, TAGGED
from gradio_client import Client

from snugbert.demo import answers
from snugbert.demo.page import MOST_BYTES, MOST_CHARACTERS

pytestmark = [
    pytest.mark.usefixtures("one_thread", "pictures"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:gradio"),  # raised by pandas
]


# --- over HTTP --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tagging_page(checkpoints) -> Iterator[gr.Blocks]:
    with served(checkpoints["tags"]) as page:
        yield page


def test_other_websites_are_refused(tagging_page):
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
        assert [tab.text for tab in visitor.all("button[role=tab]")] == ["Fill the mask", "Next sentence"]
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


def test_answers_are_marked_in_the_context(checkpoints, visitor):
    context = " ".join(FACTS)
    long_context = f"{FACTS[2]} " * 15 + FACTS[0] + f" {FACTS[2]}" * 15  # 150 words in windows of 72
    with visitor.at(checkpoints["answers"]):
        visitor.type("Text (any length)", context)
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
        visitor.type("Text (any length)", long_context)
        visitor.type("Question", "Who wrote it?")
        visitor.click("Answer")
        visitor.until(lambda: [mark[0] for mark in visitor.marked()], ["Ada Byron"])


def test_bad_inputs_show_a_message(checkpoints, visitor, capfd):
    with visitor.at(checkpoints["pretrained"]):
        for text, message in (
            ("", "The text has no words. Enter some text."),
            (
                "the cat drinks milk.",
                "The text has no [MASK]. Enter [MASK] in place of a word.",
            ),
            ("milk " * 70 + "[MASK]", "The text has 73 tokens. The model's limit is 72. Shorten the text."),
        ):
            visitor.type("Text with [MASK]", text)
            visitor.click("Fill the mask")
            visitor.until(visitor.message, message)
        visitor.turn_to("Next sentence")
        visitor.type("First sentence", "the cat drinks milk.")
        visitor.click("Does it follow?")
        visitor.until(visitor.message, "Enter a second sentence.")
    with visitor.at(checkpoints["answers"]):
        visitor.type("Text (any length)", "a" * (MOST_CHARACTERS + 1))
        visitor.click("Answer")
        visitor.until(visitor.message, "The text has 100,001 characters. The limit is 100,000. Shorten the text.")
        visitor.type("Text (any length)", "<b>Ada</b>")
        visitor.type("Question", "<i>milk</i>" * 20)
        visitor.click("Answer")
        visitor.until(lambda: "The limit is 64 (`max_query_length`)" in visitor.message(), True)
        assert "'<i>milk</i><i>" in visitor.message()
    assert "Traceback" not in capfd.readouterr().err
