"""MkDocs hooks: insert the commands' help, and point links to files outside `docs/` to the repository."""

import contextlib
import io
import logging
import os
import re
from pathlib import Path

from snugbert_cli import main

LOG = logging.getLogger("mkdocs.hooks.snugbert")  # with `strict`, a warning fails the build
ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown, page, config, files):
    """Rewrite the source of a page before it is rendered."""
    markdown = re.sub(r"^<!-- help: (\w+) -->$", format_help, markdown, flags=re.MULTILINE)
    return re.sub(r"\]\((\.\./[^)#\s]*)", lambda link: point_to_repository(link, page, config), markdown)


def format_help(marker: re.Match) -> str:
    """Return the output of `snugbert <command> --help-all` as a code block."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([marker[1], "--help"])
    return f"```text\n{output.getvalue().rstrip()}\n```"


def point_to_repository(link: re.Match, page, config) -> str:
    """Return an absolute link if the relative one leaves `docs/`."""
    target = Path(os.path.normpath(ROOT / "docs" / Path(page.file.src_uri).parent / link[1]))
    if target.is_relative_to(ROOT / "docs"):
        return link[0]
    if not target.exists():
        LOG.warning(f"{page.file.src_uri}: the link {link[1]} leads nowhere. Correct it.")
    kind = "tree" if target.is_dir() else "blob"
    return f"]({config.repo_url}/{kind}/main/{target.relative_to(ROOT)}"
