"""The language codes of `--language`. sentencex splits text in an unknown language by the rules of English."""

import re

from snugbert.errors import InputError

CODE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")  # ISO 639, and the region, the script or the variety
REGION = re.compile(r"-([a-z]{2}|[0-9]{3})$")


def check_language(code: str) -> None:
    """Checks that a language code has the form of one: `de`, `nds`, `pt-br`, `zh-hans`.

    Raises:
        InputError: it does not.
    """
    if CODE.fullmatch(code):
        return
    corrected = code.strip().lower()
    hint = (
        f"Did you mean {corrected}?"
        if CODE.fullmatch(corrected)
        else "Give an ISO 639 code, such as en, zh or pt-br. For a language without a code, use a similar one."
    )
    raise InputError(f"--language {code!r} is not a language code. {hint}")


def primary_language(code: str) -> str:
    """Returns the code without region, script and variety: `pt` for `pt-br`."""
    return re.split("[-_]", code)[0]


def splitter_language(code: str) -> str:
    """Returns the code for sentencex. It has scripts and varieties (`zh-hans`), but only a few regions."""
    return REGION.sub("", code.lower().replace("_", "-"))
