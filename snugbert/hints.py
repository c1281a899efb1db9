"""The next command, which a command suggests when it ends, with the flags to keep."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any


def format_command(command: str, flags: Mapping[str, Any]) -> str:
    """Returns a command line to copy. A flag may have a list of values."""
    words = ["snugbert", command]
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(each).lower() if isinstance(each, bool) else str(each) for each in values)]
    return shlex.join(words)


def changed_flags(arguments: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of the flags `names` that differ from their defaults.

    Args:
        arguments: an instance of a dataclass of arguments.
        names: names of its fields.
    """
    changed = {}
    for field in fields(arguments):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in names and getattr(arguments, field.name) != default:
            changed[field.name] = getattr(arguments, field.name)
    return changed
