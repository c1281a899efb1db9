"""Opens the demo page in a real Chromium."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
FLAGS = "--headless=new --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
PATIENCE = 30  # seconds


class Page:
    """A page in the browser."""

    def __init__(self, browser: webdriver.Chrome):
        self.browser = browser

    def texts(self, selector: str) -> list[str]:
        """The texts of displayed elements."""
        return [each.text for each in self.browser.find_elements("css selector", selector) if each.is_displayed()]

    def submit(self, text: str) -> None:
        """Replaces the text in the first field, and clicks the button."""
        fields, buttons = (self.browser.find_elements("css selector", tag) for tag in ("textarea", "button.primary"))
        field = next(filter(lambda each: each.is_displayed(), fields))
        field.clear()
        field.send_keys(text)
        next(filter(lambda each: each.is_displayed(), buttons)).click()

    def wait(self, look: Callable[[], Any]) -> None:
        """Waits until `look` returns something true."""
        ignored = [StaleElementReferenceException]
        WebDriverWait(self.browser, PATIENCE, 0.1, ignored_exceptions=ignored).until(lambda _: look())


@contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """Opens a page. At the end, checks that it sent no requests to other hosts."""
    if missing := [name for name, path in PROGRAMS.items() if path is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})  # every request
    with webdriver.Chrome(options=options, service=Service(executable_path=PROGRAMS["chromedriver"])) as browser:
        page = Page(browser)
        browser.get(url)
        page.wait(lambda: page.texts("button[role=tab]"))
        yield page
        messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        hosts = {urlsplit(each).hostname for each in sent if not each.startswith(("data:", "blob:", "chrome:"))}
        assert hosts == {urlsplit(url).hostname}
