"""README is short, and its examples use public names. `test_docs.py` checks its links, commands and flags."""

import re
from pathlib import Path

import snugbert
from snugbert_cli import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def read_code(language: str) -> str:
    return "".join(re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE))


def test_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_readme_begins_with_make_demo_and_make_test():
    assert re.findall(r"^make (\w+)", read_code("bash"), flags=re.MULTILINE)[:2] == ["demo", "test"]


def test_your_own_text_takes_seven_commands():
    section = re.search(r"^## Your own text in seven commands$(.*?)^## ", README, flags=re.DOTALL | re.MULTILINE)[1]
    commands = re.findall(r"^snugbert (\w+) ", section, flags=re.MULTILINE)
    assert commands == ["vocabulary", "pretrain", "glue", "squad", "ner", "predict", "export"]
    assert set(COMMANDS) == {*commands, *re.findall(r"`snugbert (swag|prepare|evaluate|convert|demo)`", section)}


def test_python_examples_use_public_names():
    code = read_code("python")
    names = re.findall(r"snugbert\.([A-Z]\w+)", code)
    assert names and set(names) <= set(snugbert.__all__)
