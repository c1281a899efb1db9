"""Exceptions that the command line prints without a traceback, and functions that word messages."""

import glob
import os
import re
import signal
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

MOST_LISTED = 8  # names in a message
COMMAND = "SNUGBERT_COMMAND"  # environment variable that commands set. Their child processes inherit it


class InputError(ValueError):
    """Invalid input: an argument, a file or a folder. The message says what is wrong, where, and what to do.

    The command line prints the message. Write messages with flags. When no command runs,
    [`name_arguments`] replaces the flags by the names of the arguments in Python.
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
    """Replaces flags in a message by the names of the arguments in Python, unless a command runs.

    Commands in backticks, such as `snugbert predict --shard 1/2`, are not changed.
    """
    if COMMAND in os.environ:
        return message
    return re.sub(r"(`snugbert [^`]*`)|(?<![\w-])--(?=[a-z])", lambda match: match[1] or "", message)


def join_lines(error: BaseException) -> str:
    """Returns the text of another library's error as one line, for a message."""
    return " ".join(str(error).split())


def format_count(number: int, noun: str) -> str:
    """Formats a count: "1 row", "1,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def list_columns(names: Iterable[str]) -> str:
    """Lists the columns of a table for a message. Quotes show a space at the end of a name."""
    return f"Columns: {', '.join(map(repr, names))}."


def shorten(names: list[str]) -> str:
    """Joins the first names, and appends the number of remaining names."""
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def did_you_mean(word: str, choices: Iterable[str], prefix: str = "") -> str:
    """Returns " Did you mean X?" with the choices that contain the word, or else the most similar choice.

    Empty if no choice is similar.
    """
    choices = list(dict.fromkeys(choices))
    longer = [choice for choice in choices if len(word) > 3 and word in choice]
    close = sorted(longer, key=len)[:3] or get_close_matches(word, choices, n=1)
    return f" Did you mean {' or '.join(prefix + choice for choice in close)}?" if close else ""


def explain_choice(flag: str, value: str, choices: Iterable[str]) -> str:
    """Returns an error message for a value that is not in `choices`."""
    choices = list(choices)
    return f"{flag}: unknown value {value!r}.{did_you_mean(value, choices)} Choose one of {', '.join(choices)}."


def explain_files(pattern: str) -> str:
    """Returns an error message if no file matches a path or glob pattern. Empty if a file matches."""
    if not pattern:
        return "the name of the file is empty."
    if Path(pattern).is_file() or any(Path(match).is_file() for match in glob.iglob(pattern, recursive=True)):
        return ""
    if Path(pattern).is_dir():
        return f"{pattern} is a folder. Pass a file in it, or for text a pattern such as '{pattern}/*'."
    return f"{pattern}: no such file.{suggest_path(pattern)}"


def explain_folder(name: str) -> str:
    """Returns an error message if `name` can only be a folder, and this folder does not exist. Empty otherwise.

    Hub names are `name` or `owner/name`. If a similar folder exists, `owner/name` is taken for a mistyped path.
    """
    suggestion = suggest_path(name)
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or ("/" in name and suggestion)
    if not is_path or Path(name).exists() or Path(f"{name}.index").exists():  # .index: a TensorFlow checkpoint
        return ""
    return f"the folder {name} does not exist.{suggestion}"


def suggest_path(path: str) -> str:
    """Suggests the file or folder with the most similar name in the same folder."""
    folder = Path(path).parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = get_close_matches(Path(path).name, names, n=1, cutoff=0.75)  # file names share their endings
    return f" Did you mean {folder / close[0]}?" if close else ""
