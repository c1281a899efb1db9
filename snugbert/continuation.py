"""Decides whether a command may continue what an earlier command began: a run, a sweep, a corpus or a prediction.

The output contains a record, `{"kind", "version", "settings"}`. The next command compares it with its own record.
"""

import json
from collections.abc import Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from snugbert.errors import InputError

WIDEST_VALUE = 40  # characters of a value in a message


def make_record(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record to store, as JSON values. `kind` is what is written, such as "pretraining" or "sweep"."""
    import snugbert

    return json.loads(json.dumps({"kind": kind, "version": snugbert.__version__, "settings": dict(settings)}))


def check_continuation(record: Any, kind: str, settings: Mapping[str, Any], place: str, remedy: str) -> None:
    """Checks that a command with these settings may continue what the earlier command with this record began.

    Values that are dictionaries are compared entry by entry. The message begins with the `place`, such as a flag and a
    folder, and ends with the `remedy`.
    """
    current = make_record(kind, settings)
    now = current["settings"]
    try:
        is_newer = Version(record["version"]) > Version(current["version"])
        before = dict(record["settings"])
        other_kind = record["kind"] != kind
    except (InvalidVersion, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{place} is damaged. {remedy}") from error
    if is_newer:
        raise InputError(f"{place} was written by SnugBERT {record['version']}. Upgrade SnugBERT. {remedy}")
    if other_kind:
        raise InputError(f"{place} contains {record['kind']}, not {kind}. {remedy}")
    if changes := list_changes(before, now):
        raise InputError(f"{place} has other settings.\n{format_changes(changes)}\n{remedy}")


def list_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns the name, the value before and the value now of every setting that differs. None: not set."""
    changes = []
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changes += [(f"{name} {entry}", a, b) for entry, a, b in list_changes(old, new)]
        elif old != new:
            changes.append((name, old, new))
    return changes


def format_changes(changes: list[tuple[str, Any, Any]]) -> str:
    """Formats changes as a table with two columns, before and now."""
    rows = [("", "before", "now")]
    rows += [(name, _format(old), _format(new)) for name, old, new in changes]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"  {name:<{widths[0]}}  {old:<{widths[1]}}  {new}" for name, old, new in rows)


def _format(value: Any) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= WIDEST_VALUE else text[: WIDEST_VALUE - 3] + "..."
