"""Reads JSON that may be damaged or hostile. Every problem raises a `ValueError` or an `InputError`."""

import json
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
