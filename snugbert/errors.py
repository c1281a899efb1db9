"""Exceptions that the command line handles without a traceback, and the format of counts and lists in messages."""

import signal
from collections.abc import Iterable

MOST_LISTED = 8  # names in a message


class InputError(ValueError):
    """Invalid input: an argument, a file or a folder. The message says what is wrong, where, and what to do.

    The command line prints the message. Other exceptions keep their traceback.
    """


class ProcessLost(RuntimeError):
    """Another process of the run ended, or does not answer. The command line prints the message."""


class RunStopped(Exception):
    """A signal stopped a run. The run has written a checkpoint, and a log line explains how to continue.

    Args:
        number: the signal.
    """

    def __init__(self, number: signal.Signals):
        super().__init__(number.name)
        self.number = number


def join_lines(error: BaseException) -> str:
    """Returns the text of an error of another library in one line, for a message."""
    return " ".join(str(error).split())


def format_count(number: int, noun: str) -> str:
    """Formats a count: "1 row", "1,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_columns(names: Iterable[str]) -> str:
    """Lists the columns of a table for a message. Quotes show a space at the end of a name."""
    return f"Columns: {', '.join(map(repr, names))}."


def shorten(names: list[str]) -> str:
    """Joins the first names for a message, and appends the number of remaining names."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more
