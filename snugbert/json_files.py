"""Reads JSON that may be damaged or hostile. Every problem raises a `ValueError` or an `InputError`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snugbert.errors import InputError


def parse_json(text: str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has a number with too many digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:
        raise ValueError("a number has too many digits") from error


def check_unicode(text: str, name: str) -> str:
    r"""Returns a text from JSON if it can be tokenized and written as UTF-8.

    Args:
        text: the text.
        name: where it is, for the message.

    Raises:
        InputError: JSON contained half of a surrogate pair, such as "\ud83d".
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise InputError(f"{name} is not valid Unicode: {half} is half of a character. Remove it.") from error
    return text


def locate_values(text: str, start: int) -> Iterator[tuple[str | None, int, int]]:
    """Yields key, start and end of each value of a JSON object or list. The key is None in a list.

    Args:
        text: JSON that [`parse_json`] accepts, alone or as part of a longer text.
        start: position of the opening bracket.
    """
    decoder, space = json.JSONDecoder(), re.compile(r"[ \t\r\n]*")

    def skip_space(position: int) -> int:
        return space.match(text, position).end()  # type: ignore[union-attr]

    is_object = text[start] == "{"
    key, position = None, skip_space(start + 1)
    while text[position] not in "]}":
        if is_object:
            key, position = decoder.raw_decode(text, position)
            position = skip_space(text.index(":", position) + 1)
        _, end = decoder.raw_decode(text, position)
        yield key, position, end
        position = skip_space(end)
        if text[position] == ",":
            position = skip_space(position + 1)


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON file that contains an object.

    Raises:
        InputError: the file is missing, is not JSON, or contains something else.
    """
    try:
        values = parse_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{file.parent} contains no {file.name}.") from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise InputError(f"{file} must contain a JSON object, not a {type(values).__name__}.")
    return values
