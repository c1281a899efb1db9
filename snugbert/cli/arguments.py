"""How dataclasses declare the arguments of commands, and arguments that many commands share."""

import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from snugbert.errors import InputError


def argument(default: Any = MISSING, help: str = "", advanced: bool = False, **metadata: Any) -> Any:
    """A field of a dataclass of arguments.

    Args:
        default: a list is copied for each instance. If it is missing, the argument is required.
        help: the text for `--help`. The parser adds the default if the text does not name it.
        advanced: whether only `--help-all` lists the argument.
        metadata: `range`: the allowed numbers, a [`Range`]. `choices`: the allowed values. `positional`: it has no
            flag. `opens_urls`: the command itself opens URLs.
    """
    metadata |= {"help": help, "advanced": advanced}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def complete_lists(arguments: Any) -> None:
    """Converts one path, or another iterable of paths, to a list of strings in each argument that takes a list."""
    for each in fields(arguments):
        value = getattr(arguments, each.name)
        if "list[str]" in str(each.type) and value is not None:
            values = [value] if isinstance(value, str | Path) else value
            setattr(arguments, each.name, [str(part) for part in values])


@dataclass(kw_only=True)
class OverwriteArguments:
    """Whether a command may replace its output."""

    overwrite_output_dir: bool = argument(False, "Replace what an earlier command wrote to the output folder.")


@dataclass(kw_only=True)
class ConvertedArguments(OverwriteArguments):
    """Which checkpoint to convert or export, and where to."""

    help_group: ClassVar[str] = "more"

    input: str = argument(help="Checkpoint: a folder, a Hub name or a TensorFlow prefix.", positional=True)
    output: str = argument(help="Folder to write.", positional=True)


@dataclass(kw_only=True)
class ShardArguments:
    """Which part of the work a machine does."""

    shard: str = argument("1/1", "Do only shard i of n, written i/n, to divide the work among machines.")

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(f"--shard {self.shard!r} must be i/n with i from 1 to n, such as 1/4.")
        self.shard_number, self.num_shards = int(match[1]), int(match[2])
