"""What the tests of docs/integrations.md share: its examples, which they run as they are printed."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


@pytest.fixture(scope="session")
def example() -> Callable[[str], str]:
    """A function: title of a `##` section of the page -> the code of its first ```python block.

    Run it as `exec(example("PEFT"), names)`: `names` has the folders and data that the text of the section takes for
    granted, and afterwards what the example made.
    """
    text = PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))

    def code(section: str) -> str:
        return re.search(r"^```python\n(.*?)^```$", sections[section], flags=re.DOTALL | re.MULTILINE).group(1)

    return code
