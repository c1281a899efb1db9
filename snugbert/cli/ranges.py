"""Allowed values of the numeric arguments of all commands."""

import math
from dataclasses import fields
from typing import Any, NamedTuple

from snugbert.errors import InputError, explain_choice


class Range(NamedTuple):
    """Allowed values: from `least` to `most`. `open_below`: `least` itself is not allowed."""

    least: float
    most: float = math.inf
    open_below: bool = False

    def __contains__(self, number: Any) -> bool:
        return self.least <= number <= self.most and not (self.open_below and number == self.least)

    def __str__(self) -> str:
        least = f"{'above' if self.open_below else 'at least'} {self.least}"
        return least if self.most == math.inf else f"{least} and at most {self.most}"


COUNT, NOT_NEGATIVE, POSITIVE = Range(1), Range(0), Range(0, open_below=True)
SHARE, POSITIVE_SHARE = Range(0, 1), Range(0, 1, open_below=True)
SEED = Range(0, 2**32 - 1)  # of NumPy

# Of the fields of TrainingArguments. torch and transformers refuse other values early, such as betas above 1.
TRAINING_RANGES = {
    "adam_epsilon": POSITIVE,
    "eval_steps": POSITIVE,
    "gradient_accumulation_steps": COUNT,
    "label_smoothing_factor": SHARE,
    "learning_rate": NOT_NEGATIVE,
    "logging_steps": POSITIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "max_steps": COUNT,
    "num_train_epochs": POSITIVE,
    "per_device_eval_batch_size": COUNT,
    "per_device_train_batch_size": COUNT,
    "save_steps": POSITIVE,
    "seed": SEED,
    "warmup_steps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
}


def check_ranges(arguments: Any, **ranges: Range) -> None:
    """Checks that values are among their choices, and that numbers are finite and in their ranges.

    Defaults are always allowed. With `max_steps`, `num_train_epochs` is not used and not checked. `max_grad_norm` may
    be infinite: no clipping. `ranges` are ranges by argument name, in addition to the ranges of the fields.
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
