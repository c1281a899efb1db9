"""Commands, flags, make targets, files and decisions in the documentation exist."""

import ast
import html
import re
import shlex
from pathlib import Path

import pytest

import snugbert
from snugbert_cli import COMMANDS, main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
    for file in [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]
}


def read_code(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def read_shell_lines() -> list[str]:
    blocks = [block for page in PAGES for block in read_code(page, "bash")]
    return "".join(blocks).replace("\\\n", " ").splitlines()


def read_command_lines() -> list[list[str]]:
    """The arguments of every `snugbert` command in the documentation."""
    words = [shlex.split(line, comments=True) for line in read_shell_lines() if re.search(r"(^|-m )snugbert ", line)]
    return [line[line.index("snugbert") + 1 :] for line in words]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_exist(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help-all"])
    known = set(re.findall(r"--\w+", capsys.readouterr().out))
    lines = [line for line in read_command_lines() if line[0] == command]
    assert lines, "the documentation has no example"
    flags = {word for line in lines for word in line if word.startswith("--")}
    assert flags <= known, flags - known


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    mentioned = {target for line in read_shell_lines() for target in re.findall(r"^make ([\w-]+)", line)}
    for text in PAGES.values():
        mentioned |= {target for words in re.findall(r"`make ([\w -]+)`", text) for target in words.split()}
    assert {"demo", "test", "test-fast", "check", "docs"} <= mentioned <= targets


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    """`make docs` checks the anchors too, but not the pages outside docs/."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", PAGES[page]):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", [page for page in PAGES if read_code(page, "python")])
def test_python_examples_compile(page):
    for block in read_code(page, "python"):
        compile(block, page, "exec")


def test_the_map_has_every_room_of_the_package_and_no_other():
    folders: list[str] = []
    shown = set()
    (tree,) = read_code("docs/explanation/code.md", "text")
    for indent, name in re.findall(r"^((?:  ){0,2})(\w\S*)", tree, flags=re.MULTILINE):
        folders[len(indent) // 2 :] = [name]
        path = "".join(folders)
        assert (ROOT / path).exists(), path
        shown.add(path)
    package = ROOT / "snugbert"
    rooms = {f"{file.parent.relative_to(ROOT)}/" for file in package.rglob("*.py")}
    assert rooms == {path for path in shown if path.startswith("snugbert/")}
    assert {file.name for file in ROOT.glob("*.py")} <= shown


@pytest.mark.parametrize("folder", ["snugbert", "benchmarks", "examples"])
def test_every_module_says_what_is_in_it(folder):
    files = [*(ROOT / folder).rglob("*.py"), *ROOT.glob("*.py")]
    assert not [file for file in files if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))]


def test_the_reference_has_every_command_and_every_public_name():
    assert re.findall(r"^<!-- help: (\w+) -->$", PAGES["docs/reference/command-line.md"], re.MULTILINE) == [*COMMANDS]
    documented = set(re.findall(r"^::: snugbert\.(\w+)$", PAGES["docs/reference/python-api.md"], flags=re.MULTILINE))
    assert documented == set(snugbert.__all__) - {"SnugBertPreTrainedModel"}


def test_the_index_has_every_decision():
    index = re.findall(r"^- \[.+?\]\((.+?\.md)\)", PAGES["docs/decisions/README.md"], flags=re.MULTILINE)
    files = [file.name for file in (DOCS / "decisions").glob("*.md") if file.name != "README.md"]
    assert sorted(index) == sorted(files)


def test_the_readme_names_every_command():
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 150
    section = re.search(r"^## Your own text in seven commands$(.*?)^## ", readme, flags=re.DOTALL | re.MULTILINE)[1]
    assert set(COMMANDS) == set(re.findall(r"snugbert (\w+)", section))
    names = re.findall(r"snugbert\.([A-Z]\w+)", "".join(read_code("README.md", "python")))
    assert names and set(names) <= set(snugbert.__all__)


def test_the_words_of_users_are_found():
    """A section has all words of each search, divided as the site's search divides them."""
    searches = (
        "multi-label, class imbalance, class weights, W&B, own tokenizer, hidden test set, label errors, uninstall, "
        "cache, macOS, GPU memory, question-answering pipeline, group_by_length, which size, how long"
    )
    separator = re.search(r"separator: '(.+)'", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))[1]
    texts = [html.escape(text.replace("`", "").lower()) for page, text in PAGES.items() if page.startswith("docs/")]
    sections = [set(re.split(separator, part)) for text in texts for part in re.split(r"^#+ ", text, flags=re.M)]
    for search in searches.lower().split(", "):
        assert any(set(re.split(separator, search)) <= section for section in sections), search
