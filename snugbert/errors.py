"""Exceptions that the command line handles without a traceback, and the format of names and counts in messages."""

import logging
import os
import re
import signal
from collections.abc import Iterable

MOST_LISTED = 8  # names in a message
COMMAND = "SNUGBERT_COMMAND"  # environment variable that commands set. Their child processes inherit it
# A command in backticks, or a flag with its value: a boolean, a number, or a word that messages advise.
FLAG = re.compile(
    r"(`snugbert [^`]*`)|(?<![\w-])--([a-z]\w*)"
    r"(?: (true|false)\b| (-?\d[\d.e-]*\b|'[^']+')| (skip|repair|replace|stop|error|no|mlm)\b)?"
)
PYTHON_NAMES = {"model_name_or_path": "model", "teacher_name_or_path": "teacher"}


class InputError(ValueError):
    """Invalid input: an argument, a file or a folder. The message says what is wrong, where, and what to do.

    The command line prints the message. Other exceptions keep their traceback. Write messages with flags. Outside of
    commands, [`name_arguments`] replaces the flags by Python's arguments.
    """

    def __str__(self) -> str:
        return name_arguments(super().__str__())


class RunStopped(Exception):
    """A signal stopped a run. The run has written a checkpoint, and a log line explains how to continue.

    Args:
        number: the signal.
    """

    def __init__(self, number: signal.Signals):
        super().__init__(number.name)
        self.number = number


def name_arguments(message: str) -> str:
    """Replaces flags in a message by Python's arguments, unless a command runs.

    `--do_regression false` becomes `do_regression=False`. A command such as `snugbert predict --shard 1/2` stays.
    """
    if COMMAND in os.environ:
        return message

    def rename(match: re.Match[str]) -> str:
        command, name, boolean, value, word = match.groups()
        if command:
            return command
        value = (boolean or "").capitalize() or value or (f'"{word}"' if word else "")
        return PYTHON_NAMES.get(name, name) + (f"={value}" if value else "")

    renamed = FLAG.sub(rename, message)
    return message if renamed == message else re.sub(r"\bflag(s?)\b", r"argument\1", renamed)


_make_record = logging.getLogRecordFactory()


def _make_renamed_record(name: str, *args: object, **options: object) -> logging.LogRecord:
    """Returns a log record. In records of this package, replaces flags by Python's arguments."""
    record = _make_record(name, *args, **options)
    if str(name).startswith("snugbert.") and (renamed := name_arguments(record.getMessage())) != record.getMessage():
        record.msg, record.args = renamed, ()
    return record


logging.setLogRecordFactory(_make_renamed_record)


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
