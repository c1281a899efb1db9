"""What the README says exists: commands, flags, make targets, files, names."""

import re
import shlex
from pathlib import Path

import pytest

import snugbert
from snugbert_cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = dict.fromkeys(("bash", "python", ""), "")
for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE):
    CODE[language] += block
COMMAND_LINES = [line for line in CODE["bash"].replace("\\\n", " ").splitlines() if line.startswith("snugbert ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_exist(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    known = set(re.findall(r"--\w+", capsys.readouterr().out))
    lines = [line for line in COMMAND_LINES if shlex.split(line)[1] == command]
    assert lines
    flags = {word for line in lines for word in shlex.split(line) if word.startswith("--")}
    assert flags <= known, flags - known


def test_commands_and_make_targets_exist():
    assert {shlex.split(line)[1] for line in COMMAND_LINES} == set(COMMANDS)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"^make (\S+)", CODE["bash"], flags=re.MULTILINE)) | set(
        re.findall(r"`make ([\w-]+)`", README)
    )
    assert {"demo", "test"} <= mentioned <= targets


def test_the_tree_shows_every_file_of_the_package_and_no_other():
    folders: list[str] = []
    shown = set()
    for line in CODE[""].splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        folders[len(indent) // 2 :] = [name]
        path = "".join(folders)
        assert (ROOT / path).exists(), path
        shown.add(path)
    there = {
        str(file.relative_to(ROOT))
        for folder in ("snugbert", "benchmarks", "examples")
        for file in (ROOT / folder).rglob("*.py")
        if file.name != "__init__.py" or file.parent == ROOT / "snugbert"
    }
    assert there <= shown, there - shown


def test_snippets_compile_and_name_what_exists():
    compile(CODE["python"], "README.md", "exec")
    for name in re.findall(r"snugbert\.(SnugBert\w+)", CODE["python"]):
        assert hasattr(snugbert, name)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
