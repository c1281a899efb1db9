"""Hooks of the site: notebook, help of commands, links to files outside `docs/`, docstrings in transformers' form."""

import contextlib
import io
import logging
import os
import re
from pathlib import Path
from typing import Any

from griffe import DocstringSectionParameters, Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from snugbert_cli import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOK, NOTEBOOK_PAGE = ROOT / "examples" / "text_to_classifier.ipynb", "notebook.md"
OPTIONAL = ", *optional*"  # in transformers' docstrings
logger = logging.getLogger("mkdocs.hooks.snugbert")  # in strict mode a warning fails the build


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page of the notebook with its outputs, which are in the notebook. Nothing is run.

    The page is Markdown, so its links are checked and it looks like other pages. mkdocs-jupyter would insert HTML.
    """
    markdown, resources = MarkdownExporter().from_filename(NOTEBOOK, {"output_files_dir": "notebook"})
    markdown = re.sub(r"<style scoped>.*?</style>\s*", "", markdown, flags=re.DOTALL)
    markdown = markdown.replace(' border="1" class="dataframe"', "").replace("![png]", "![Plot]")
    files.append(File.generated(config, NOTEBOOK_PAGE, content=markdown))
    for name, image in resources["outputs"].items():
        files.append(File.generated(config, name, content=image))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the source of a page before it is rendered."""
    markdown = re.sub(r"^<!-- help: (\w+) -->$", lambda match: format_help(match[1]), markdown, flags=re.MULTILINE)
    return re.sub(r"(?<=\]\()(\.\./[^)#\s]*)", lambda match: resolve_link(match[1], page.file, config), markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Keeps each flag in one line, because browsers break `--dtype` after the hyphens."""
    html = re.sub(r"</code>\s+\)", "</code>)", html)  # "default: `None` )" of mkdocstrings
    return re.sub(r"(?<=[>\s])--\w+(?=[^<>]*<)", r'<span class="flag">\g<0></span>', html)


def on_post_page(output: str, **kwargs: Any) -> str:
    """Removes the script on the link to the repository. It would ask GitHub for the number of stars."""
    return output.replace('data-md-component="source"', "")


on_post_template = on_post_page  # the page of the error 404


def format_help(command: str) -> str:
    """Returns the output of `snugbert <command> --help-all` as a code block."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main([command, "--help-all"])
    if not output.getvalue():
        logger.warning("snugbert %s --help-all prints nothing.", command)
    return f"```text\n{output.getvalue().rstrip()}\n```"


def resolve_link(link: str, page: File, config: MkDocsConfig) -> str:
    """Makes a link to a page relative to this page, and a link to a file outside `docs/` a URL of the repository.

    Args:
        link: relative, as written on the page.
        page: the page.
        config: contains `repo_url`.
    """
    folder = DOCS / Path(page.src_uri).parent
    target = Path(os.path.normpath((NOTEBOOK.parent if page.src_uri == NOTEBOOK_PAGE else folder) / link))
    if target == NOTEBOOK:
        target = DOCS / NOTEBOOK_PAGE
    if target.is_relative_to(DOCS):
        return Path(os.path.relpath(target, folder)).as_posix()
    if not target.exists():
        logger.warning("%s: the target of the link %s does not exist.", page.src_uri, link)
    return f"{config.repo_url}/{'tree' if target.is_dir() else 'blob'}/main/{target.relative_to(ROOT)}"


class TransformersDocstrings(Extension):
    """Converts the markup of transformers' docstrings to the markup that mkdocstrings reads."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Links names such as [`SnugBertModel`], and splits types from their defaults."""
        if obj.docstring is None:
            return
        link = r'<autoref identifier="snugbert.\1" optional><code>\1</code></autoref>'
        obj.docstring.value = re.sub(r"\[`([\w.]+)`\]", link, obj.docstring.value)
        for section in obj.docstring.parsed:
            for parameter in section.value if isinstance(section, DocstringSectionParameters) else []:
                if isinstance(parameter.annotation, str):  # such as "`int`, *optional*, defaults to 512"
                    parameter.annotation, optional, default = parameter.annotation.replace("`", "").partition(OPTIONAL)
                    parameter.value = default.removeprefix(", defaults to ") or ("None" if optional else None)
