"""Dataclass fields that declare the arguments of commands, checks of their values, and arguments of many commands."""

import inspect
import math
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from snugbert.errors import InputError, explain_choice


class Range(NamedTuple):
    """Allowed values: from `least` to `most`. `open_below` and `open_above`: the bound itself is not allowed."""

    least: float
    most: float = math.inf
    open_below: bool = False
    open_above: bool = False

    def __contains__(self, number: Any) -> bool:
        above = self.least < number if self.open_below else self.least <= number
        return above and (number < self.most if self.open_above else number <= self.most)

    def __str__(self) -> str:
        least = f"{'above' if self.open_below else 'at least'} {self.least}"
        if self.most == math.inf:
            return least
        return f"{least} and {'below' if self.open_above else 'at most'} {self.most}"


COUNT, NOT_NEGATIVE, POSITIVE = Range(1), Range(0), Range(0, open_below=True)
SHARE, POSITIVE_SHARE = Range(0, 1), Range(0, 1, open_below=True)
SEED = Range(0, 2**32 - 1)  # the seeds that NumPy accepts

# Ranges for fields of TrainingArguments. torch and transformers check other fields early, such as the betas.
BATCHES = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
TRAINING_RANGES = {
    **dict.fromkeys((*BATCHES, "max_steps"), COUNT),
    **dict.fromkeys(("num_train_epochs", "logging_steps", "eval_steps", "save_steps", "adam_epsilon"), POSITIVE),
    **dict.fromkeys(("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm"), NOT_NEGATIVE),
    "label_smoothing_factor": Range(0, 1, open_above=True),  # 1: all labels would be equally likely
    "seed": SEED,
}


def argument(default: Any = MISSING, help: str = "", advanced: bool = False, **metadata: Any) -> Any:
    """A field of a dataclass of arguments.

    Args:
        default: the default value. Without it, the argument is required. A list is copied for each instance.
        help: the text for `--help`. The parser adds the default if the text does not name it.
        advanced: whether only `--help-all` lists the argument.
        metadata: `range`: the allowed numbers, a [`Range`]. `choices`: the allowed values. `positional`: whether
            the argument has no flag. `opens_urls`: whether the command itself opens URLs.
    """
    metadata |= {"help": help, "advanced": advanced}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_ranges(arguments: Any, **ranges: Range) -> None:
    """Checks that values are among their choices, and that numbers are finite and in their ranges.

    Defaults are always allowed. If `max_steps` is set, `num_train_epochs` is unused and not checked. `max_grad_norm`
    may be infinite, for no clipping. `ranges` maps argument names to ranges that replace the fields' own ranges.
    """
    for each in fields(arguments):
        name, value = each.name, getattr(arguments, each.name, None)
        if value == each.default or (name == "num_train_epochs" and arguments.max_steps > 0):
            continue
        choices = each.metadata.get("choices")
        if choices is not None and value not in choices:
            raise InputError(explain_choice(f"--{name}", str(value), choices))
        if isinstance(value, int | float):
            if not math.isfinite(value) and (name, value) != ("max_grad_norm", math.inf):
                raise InputError(f"--{name} {value} must be a finite number.")
            allowed = ranges.get(name) or each.metadata.get("range") or TRAINING_RANGES.get(name)
            if allowed is not None and value not in allowed:
                raise InputError(f"--{name} {value} must be {allowed}.")


def complete_lists(arguments: Any) -> None:
    """In each argument that takes a list, converts a single path or an iterable of paths to a list of strings."""
    for each in fields(arguments):
        value = getattr(arguments, each.name)
        if "list[str]" in str(each.type) and value is not None:
            values = [value] if isinstance(value, str | Path) else value
            setattr(arguments, each.name, [str(part) for part in values])


class InitSignature:
    """The `__signature__` of a class, shown by completion and `help`: the arguments of its `__init__`.

    If the class has an attribute `arguments`, a dataclass, the signature shows that dataclass's fields as keywords.
    """

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        declared = getattr(owner, "arguments", owner)
        _, *own = inspect.signature(declared.__init__).parameters.values()  # without `self`
        return inspect.Signature(own if declared is owner else [each.replace(kind=each.KEYWORD_ONLY) for each in own])


@dataclass(kw_only=True)
class OverwriteArguments:
    """Whether a command may replace its output."""

    overwrite_output_dir: bool = argument(False, "Replace what an earlier command wrote to the output folder.")


@dataclass(kw_only=True)
class ConvertedArguments(OverwriteArguments):
    """Which checkpoint to convert or export, and where to write the result."""

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
