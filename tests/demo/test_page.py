"""Pages of tiny checkpoints with known answers, over HTTP and in a real Chromium."""

from collections.abc import Iterator
from contextlib import closing

import gradio as gr
import pytest
from browser import CALL, TYPED, Visitor, ask, served
from demo_checkpoints import FACTS, QUESTIONS

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


def test_the_page_shows_answers_marks_and_messages(checkpoints, capfd):
    pretrained = answers.load_checkpoint(str(checkpoints["pretrained"]))
    with closing(Visitor()) as visitor:
        with visitor.at(checkpoints["pretrained"]):
            assert visitor.all("h1")[0].text == "pretrained" and "layers 2, heads 4" in visitor.all("p")[0].text
            assert [tab.text for tab in visitor.all("button[role=tab]")] == ["Fill the mask", "Next sentence"]
            visitor.type("Text with [MASK]", "the [MASK] drinks milk.")
            visitor.click("Fill the mask")
            visitor.until(visitor.headings, ["cat"])
            (guesses,) = answers.fill_masks(pretrained, "the [MASK] drinks milk.")
            assert visitor.bars() == {word: f"{probability:.0%}" for word, probability in guesses.items()}
            visitor.type("Text with [MASK]", "the dog [MASK] [MASK].")
            visitor.click("Fill the mask")
            visitor.until(visitor.headings, ["eats", "meat"])
            visitor.type("Text with [MASK]", "the cat drinks milk.")
            visitor.click("Fill the mask")
            visitor.until(visitor.message, "The text has no [MASK]. Enter [MASK] in place of a word.")
        with visitor.at(checkpoints["answers"]):
            visitor.type("Text (any length)", " ".join(FACTS))
            for question in ("Who wrote it?", "Where is Bob?"):
                visitor.type("Question", question)
                visitor.click("Answer")
                visitor.until(visitor.marked, [QUESTIONS[question]])
            assert "".join(visitor.all(".marked .textfield")[0].text.split()) == "".join("".join(FACTS).split())
            visitor.type("Question", "<i>milk</i>" * 20)  # messages quote it, and the page renders HTML
            visitor.click("Answer")
            visitor.until(lambda: "'<i>milk</i><i>" in visitor.message(), True)
            visitor.type("Text (any length)", "a" * (MOST_CHARACTERS + 1))
            visitor.click("Answer")
            visitor.until(visitor.message, "The text has 100,001 characters. The limit is 100,000. Shorten the text.")
    assert "Traceback" not in capfd.readouterr().err
