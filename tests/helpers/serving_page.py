"""The examples of docs/how-to/serve.md, and the texts that the tests run them on."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serve.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))
TEXTS = ["A plane is taking off.", "Hi.", "A man plays the flute, and nobody listens. " * 40]


def example(section: str, language: str) -> str:
    """Returns the code of the first block of a language in a `##` section."""
    return re.search(rf"^```{language}\n(.*?)^```$", SECTIONS[section], flags=re.DOTALL | re.MULTILINE).group(1)
