"""Serves the demo page, sends requests to it, and opens it in a real Chromium."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from snugbert.demo import answers
from snugbert.demo.page import build_page, serve

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1100,1000"
).split()
PATIENCE = 30  # seconds

CALL = "/gradio_api/call/answered"
TYPED = json.dumps({"data": ["a"]}).encode()


@contextmanager
def served(folder: Path) -> Iterator[gr.Blocks]:
    page = build_page(folder.name, answers.load_checkpoint(str(folder)))
    serve(page, "127.0.0.1")
    try:
        yield page
    finally:
        page.close(verbose=False)


def ask(port: int, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str) -> int:
    """Sends a GET, or a POST if there is a body. Returns the status. Iterators are sent without a length."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    fields = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request("GET" if body is None else "POST", path, body, fields)
        return connection.getresponse().status


class Visitor:
    """A user of the page: types, clicks, and reads what is displayed."""

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
        """Opens the page of a checkpoint, and checks that it sends no requests to other hosts."""
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
        """Displayed elements."""
        return [element for element in self.browser.find_elements("css selector", selector) if element.is_displayed()]

    def click(self, text: str) -> None:
        self.until(lambda: [button.text for button in self.all("button.primary")], [text])
        self.all("button.primary")[0].click()

    def type(self, label: str, text: str) -> None:
        fields = self.browser.find_elements(
            "xpath", f"//label[.//span[normalize-space()='{label}']]//*[self::textarea or self::input]"
        )
        next(field for field in fields if field.is_displayed()).send_keys(Keys.CONTROL, "a")
        # All at once, because the page handles each typed character.
        self.browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def until(self, look: Callable[[], Any], expected: Any) -> None:
        """Waits until `look` returns the expected value."""

        def seen(_: Any) -> bool:
            return look() == expected

        try:
            WebDriverWait(
                self.browser, PATIENCE, poll_frequency=0.1, ignored_exceptions=[StaleElementReferenceException]
            ).until(seen)
        except TimeoutException:
            assert look() == expected

    def headings(self) -> list[str]:
        """The heading of each list of labels."""
        return [element.text for element in self.all("[data-testid=label-output-value]")]

    def bars(self) -> dict[str, str]:
        """Labels and their percentages."""
        return {
            bar.find_element("css selector", ".text").text: bar.find_element("css selector", ".confidence").text
            for bar in self.all(".confidence-set")
        }

    def marked(self) -> list[str]:
        """Highlighted spans."""
        marks = self.all(".marked .token.highlighted")
        return [mark.find_element("css selector", ".text").text for mark in marks]

    def message(self) -> str:
        """The newest message."""
        return next((element.text for element in self.all("[data-testid=toast-text]")[-1:]), "")
