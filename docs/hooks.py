"""MkDocs hooks: insert the help of the commands, and point links to files outside `docs/` to the repository."""

import contextlib
import io
import logging
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from snugbert_cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
logger = logging.getLogger("mkdocs.hooks.snugbert")  # in strict mode a warning fails the build


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the source of a page before it is rendered."""
    markdown = re.sub(r"^<!-- help: (\w+) -->$", lambda match: format_help(match[1]), markdown, flags=re.MULTILINE)
    folder = DOCS / Path(page.file.src_uri).parent
    return re.sub(r"(?<=\]\()(\.\./[^)#\s]*)", lambda match: resolve_link(match[1], folder, config), markdown)


def format_help(command: str) -> str:
    """The output of `snugbert <command> --help-all` as a code block."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([command, "--help-all"])
    if not output.getvalue():
        logger.warning("snugbert %s --help-all prints nothing.", command)
    return f"```text\n{output.getvalue().rstrip()}\n```"


def resolve_link(link: str, folder: Path, config: MkDocsConfig) -> str:
    """The link to a page as it is; the link to a file outside `docs/` as a URL of the repository.

    Args:
        link: relative, as written on the page.
        folder: the folder of the page.
        config: contains `repo_url`.
    """
    target = Path(os.path.normpath(folder / link))
    if target.is_relative_to(DOCS):
        return link
    if not target.exists():
        logger.warning("%s: the link %s leads nowhere.", folder, link)
    return f"{config.repo_url}/{'tree' if target.is_dir() else 'blob'}/main/{target.relative_to(ROOT)}"
