"""The language codes of `--language`. sentencex splits text in an unknown language by the rules of English."""

import re

from snugbert.errors import InputError
from snugbert_arguments import explain_language

REGION = re.compile(r"-([a-z]{2}|[0-9]{3})$")


def check_language(code: str) -> None:
    """Checks that a language code has the form of one: `de`, `nds`, `pt-br`, `zh-hans`.

    Raises:
        InputError: it does not.
    """
    if mistake := explain_language(code):
        raise InputError(mistake)


def primary_language(code: str) -> str:
    """Returns the code without region, script and variety: `pt` for `pt-br`."""
    return re.split("[-_]", code)[0]


def splitter_language(code: str) -> str:
    """Returns the code for sentencex. It has scripts and varieties (`zh-hans`), but only a few regions."""
    return REGION.sub("", code.lower().replace("_", "-"))
