"""Language codes: the codes that `--language` accepts, and the language that a tokenizer or a checkpoint stores.

The entry `language` of `tokenizer_config.json` and `config.json` stores the language. transformers keeps this entry
when it loads, saves and pushes a tokenizer or a model.
"""

import re
from collections.abc import Iterable
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from snugbert.errors import InputError

LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")  # an ISO 639 code, then region, script or variety
REGION = re.compile(r"-([a-z]{2}|[0-9]{3})$")
DEFAULT = "en"  # the language of text if none is given or stored
SEVERAL = "mul"  # ISO 639-2: several languages


# A file or folder, and the language that it stores. None: it stores no language.
Stored = tuple[str, str | None]


def check_language(code: str) -> None:
    """Checks the form of a language code: `de`, `nds`, `pt-br`, `zh-hans`."""
    if not LANGUAGE.fullmatch(code):
        raise InputError(
            f"--language {code!r} is not a language code. Use a lowercase ISO 639 code, such as en, zh or pt-br. For "
            "a language without a code, use a similar language."
        )


def primary_language(code: str) -> str:
    """Returns the code without region, script and variety: `pt` for `pt-br`."""
    return re.split("[-_]", code)[0]


def splitter_language(code: str) -> str:
    """Returns the code for sentencex, without a region, because sentencex supports only a few regions.

    It supports scripts and varieties, such as `zh-hans`, and splits unknown languages by the rules of English.
    """
    return REGION.sub("", code.lower().replace("_", "-"))


def read_language(source: PreTrainedConfig | PreTrainedTokenizerBase) -> str | None:
    """Returns the language that a configuration or a tokenizer stores. None if no language is stored.

    Values that are not a code are ignored. FARM, for example, wrote `"language": "english"` into configurations.
    """
    value = getattr(source, "language", None)
    if isinstance(source, PreTrainedTokenizerBase):
        value = source.init_kwargs.get("language")
    return value if isinstance(value, str) and LANGUAGE.fullmatch(value) else None


def store_language(language: str | None, *targets: PreTrainedConfig | PreTrainedTokenizerBase) -> None:
    """Stores a language in configurations and tokenizers. `save_pretrained` writes it. None changes nothing."""
    for target in targets if language is not None else ():
        if isinstance(target, PreTrainedTokenizerBase):
            target.init_kwargs["language"] = language
        else:
            target.language = language  # type: ignore[attr-defined]


def stored_in_tokenizer(tokenizer: PreTrainedTokenizerBase, name: Any) -> Stored:
    """Returns the language of a tokenizer. `name` is its folder or Hub name."""
    return f"the tokenizer {name}", read_language(tokenizer)


def stored_in_model(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, name: str | None, tokenizer_name: str | None
) -> list[Stored]:
    """Returns the language of a checkpoint. If it stores none, or has another tokenizer, adds the tokenizer's."""
    language = None if name is None else read_language(config)
    stored: list[Stored] = [] if language is None else [(f"the checkpoint {name}", language)]
    if stored and tokenizer_name in (None, name):
        return stored
    return [*stored, stored_in_tokenizer(tokenizer, tokenizer_name or name)]


def choose_language(given: str | None, stored: Iterable[Stored]) -> str | None:
    """Returns the language of a text: `--language`, or else the first that `stored` contains. None: unknown.

    Codes may differ in region, script or variety, such as `pt` and `pt-br`. A stored `mul` (several languages) is
    compatible with every language.
    """
    known = [(place, language) for place, language in (("--language", given), *stored) if language is not None]
    single = [(place, language) for place, language in known if language != SEVERAL or language == given]
    for place, language in single:
        if primary_language(language) != primary_language(single[0][1]):
            raise InputError(
                f"the language is {single[0][1]} in {single[0][0]}, but {language} in {place}. Change one: the flag "
                '--language, "language" in the tokenizer_config.json, the language of the checkpoint '
                "(--config_overrides language=CODE), or the prepared corpus."
            )
    return given or next((language for _, language in [*single, *known]), None)
