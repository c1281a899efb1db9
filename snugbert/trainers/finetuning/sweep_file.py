"""The YAML file of `--sweep`: which flags vary, how they are searched, and the budget.

    method: tpe         # grid, random, tpe, gp or qmc
    runs: 20            # settings to try
    hours: 2            # time budget
    prune: true         # stop runs that are worse than the median of earlier runs
    winner_seeds: 3     # runs of the best setting
    settings:
      learning_rate: {low: 1e-5, high: 1e-4, log: true}
      num_train_epochs: {low: 2, high: 4, step: 1}
      per_device_train_batch_size: [16, 32]
      weight_decay: 0.1

`paper`, `fixed` and `stable` are files of the package.
"""

import dataclasses
import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import yaml

from snugbert.cli.parser import compose_yaml, parse_arguments
from snugbert.errors import InputError, did_you_mean, explain_choice, join_lines, suggest_path

PRESETS = ("paper", "fixed", "stable")
SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler", "qmc": "QMCSampler"}  # of Optuna
METHODS = ("grid", "random", *SAMPLERS)
KEYS = ("method", "runs", "hours", "prune", "seeds", "winner_seeds", "min_steps", "settings")
MOST_VALUES = 100_000  # in a range with a step
BATCH_SIZE = "batch_size"  # over all processes and accumulation steps. Not a flag
# Flags that cannot be combined. The first pair sets the batch size, the second pair the length of a run.
EXCLUSIVE = ({BATCH_SIZE, "per_device_train_batch_size"}, {"num_train_epochs", "max_steps"})
# The flags that a sweep may vary: settings of the training that affect its result.
VARIED = (
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "class_weights",
    "distillation_temperature",
    "distillation_weight",
    "freeze_embeddings",
    "freeze_layers",
    "gradient_accumulation_steps",
    "label_smoothing_factor",
    "layerwise_lr_decay",
    "learning_rate",
    "lr_scheduler_type",
    "max_grad_norm",
    "max_steps",
    "neftune_noise_alpha",
    "num_train_epochs",
    "optim",
    "per_device_train_batch_size",
    "reinit_layers",
    "train_sampling_strategy",
    "unfreeze_after_steps",
    "warmup_steps",
    "weight_decay",
)


class Choices(NamedTuple):
    """The values of a list or of a range with steps."""

    values: tuple[Any, ...]
    ordered: bool = False  # whether close values are similar: a range with steps

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values to check before a sweep: both ends of a range, or all values of a list."""
        return (self.values[0], self.values[-1]) if self.ordered else self.values

    def draw(self, generator: np.random.Generator) -> Any:
        """Returns a random value."""
        return self.read(int(generator.integers(len(self.values))))

    def read(self, number: int) -> Any:
        """Returns the value with this number. Optuna chooses numbers."""
        return self.values[number]


class Span(NamedTuple):
    """A range without steps: a uniform or log-uniform distribution."""

    low: float
    high: float
    log: bool
    is_integer: bool

    @property
    def values(self) -> range:
        """The whole numbers of the range."""
        return range(math.ceil(self.low), math.floor(self.high) + 1)

    @property
    def extremes(self) -> tuple[float, float]:
        """Both ends of the range."""
        return self.low, self.high

    def draw(self, generator: np.random.Generator) -> float:
        """Returns a random value."""
        if self.log:
            return self.read(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))
        return self.read(generator.uniform(self.low, self.high))

    def read(self, value: float) -> float:
        """Rounds to a number that is short in tables and names of folders: four digits, or an integer."""
        return round(value) if self.is_integer else min(max(float(f"{value:.4g}"), self.low), self.high)


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """What a sweep runs."""

    content: Any  # the preset's name, or the file without its budget, for the plan of the output folder
    settings: dict[str, Choices | Span]  # the flags that vary, and `BATCH_SIZE`
    defaults: dict[str, Any]  # values that are the same in all runs, unless the user gives the flag
    method: str = "grid"
    runs: int | None = None  # maximum number of settings
    hours: float | None = None
    prune: bool = False
    seeds: int = 1  # of each setting, the default of `--seeds`
    winner_seeds: int = 1
    min_steps: int = 0  # of a run, unless the user chose its length

    @property
    def uses_optuna(self) -> bool:
        """Whether Optuna suggests settings or stops runs."""
        return self.prune or self.method in SAMPLERS

    @property
    def size(self) -> int | None:
        """Maximum number of settings. None: only `hours` limits the sweep."""
        if self.method != "grid":
            return self.runs
        grid = math.prod(len(values.values) for values in self.settings.values())
        return grid if self.runs is None else min(grid, self.runs)


def read_sweep_file(name: str, args_class: type) -> SweepFile:
    """Reads a preset or a YAML file. The flags are the fields of the dataclass `args_class`."""
    file = Path(__file__).with_name(f"sweep_{name}.yaml") if name in PRESETS else Path(name)
    if not file.is_file():
        if file.suffix in (".yaml", ".yml"):
            raise InputError(f"--sweep: the file {name} does not exist.{suggest_path(name)}")
        raise InputError(f"{explain_choice('--sweep', name, PRESETS)[:-1]}, or pass a YAML file.")
    try:
        text = file.read_text(encoding="utf-8")
        compose_yaml(text)
        content = yaml.safe_load(text)
        json.dumps(content)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"--sweep: {name} cannot be read: {join_lines(error)}") from error
    try:
        return _check(content, name, args_class)
    except InputError as error:
        raise InputError(f"--sweep: {name}: {error}") from error


def _check(content: Any, name: str, args_class: type) -> SweepFile:
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        raise InputError("`settings` is missing. List the flags to vary, such as learning_rate: [1e-5, 3e-5].")
    for key in content:
        if key not in KEYS:
            raise InputError(f"unknown key {key}.{did_you_mean(str(key), KEYS)} Keys: {', '.join(KEYS)}.")
    method = content.get("method", "grid")
    if method not in METHODS:
        raise InputError(explain_choice("method", str(method), METHODS))
    for key in ("runs", "seeds", "winner_seeds", "min_steps"):
        if type(content.get(key, 1)) is not int or content.get(key, 1) < 1:
            raise InputError(f"{key} {content[key]!r} must be a whole number, at least 1.")
    hours, prune = content.get("hours", 1), content.get("prune", False)
    if type(hours) not in (int, float) or not 0 < hours < math.inf:
        raise InputError(f"hours {hours!r} must be a number above 0.")
    if type(prune) is not bool:
        raise InputError(f"prune {prune!r} must be true or false.")
    if method != "grid" and not {"runs", "hours"} & content.keys():
        raise InputError(f"method {method} needs a budget: `runs` or `hours`.")
    settings, defaults = {}, {}
    for flag, given in content["settings"].items():
        if isinstance(given, list | dict) or flag == BATCH_SIZE:
            settings[flag] = _read_values(flag, given, method, args_class)
        else:
            defaults[flag] = _convert(flag, given, args_class)
    for names in EXCLUSIVE:
        if names <= content["settings"].keys():
            raise InputError(f"{' and '.join(sorted(names))} cannot be combined. Remove one of these settings.")
    budget = ("runs", "hours", "seeds", "winner_seeds")
    kept = {key: value for key, value in content.items() if key not in budget}
    options = {key: value for key, value in content.items() if key != "settings"}
    sweep = SweepFile(name if name in PRESETS else kept, settings, defaults, **options)
    if sweep.uses_optuna and not find_spec("optuna"):
        what = "prune" if method in ("grid", "random") else f"method {method}"
        raise InputError(f"{what} needs Optuna. Run: pip install 'snugbert[optuna]'.")
    return sweep


def _read_values(flag: str, given: Any, method: str, args_class: type) -> Choices | Span:
    if not isinstance(given, dict):
        values = given if isinstance(given, list) else [given]
        if not values:
            raise InputError(f"{flag}: the list is empty.")
        return Choices(tuple(_convert(flag, value, args_class) for value in values))
    if not {"low", "high"} <= given.keys() <= {"low", "high", "step", "log"}:
        raise InputError(f"{flag}: a range has low and high, and step or log. Given: {', '.join(map(str, given))}.")
    low, high = (_convert(flag, given[name], args_class) for name in ("low", "high"))
    numbers = [value for value in (low, high) if isinstance(value, int | float) and not isinstance(value, bool)]
    log, is_integer = given.get("log", False), all(isinstance(value, int) for value in numbers)
    if len(numbers) < 2:
        raise InputError(f"{flag}: low and high must be numbers. For other values, write a list.")
    try:
        step = float(given["step"]) if "step" in given else 1.0 if is_integer and not log else None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{flag}: step {given['step']!r} is not a number.") from error
    if (
        type(log) is not bool
        or not low < high < math.inf
        or (step is not None and (log or not 0 < step < math.inf))
        or (log and low <= 0)
    ):
        raise InputError(
            f"{flag}: low must be below high, high must be finite, and step above 0. log must be true or false. With "
            "log: true, low must be above 0, and step cannot be set."
        )
    if step is None:
        if method == "grid" or flag == BATCH_SIZE:
            raise InputError(f"{flag}: {BATCH_SIZE} and a grid need a list or a range with a step.")
        return Span(low, high, log, is_integer)
    if high - low > MOST_VALUES * step:
        raise InputError(f"{flag}: the range has more than {MOST_VALUES:,} values. Set a larger step, or log: true.")
    count = math.floor((high - low) / step + 1e-9) + 1  # 0.3 / 0.1 is 2.9999999999999996
    return Choices(tuple(_convert(flag, f"{low + i * step:.12g}", args_class) for i in range(count)), ordered=True)


def _convert(flag: str, value: Any, args_class: type) -> Any:
    """Parses a value like the command line, and checks it. YAML reads 1e-5 as text."""
    if flag not in (*VARIED, BATCH_SIZE):
        hint = did_you_mean(str(flag), (*VARIED, BATCH_SIZE))
        raise InputError(f"settings: {flag} cannot vary.{hint} Set other flags on the command line.")
    name = "per_device_train_batch_size" if flag == BATCH_SIZE else flag
    if value is None:  # the flag is not set
        if not isinstance(None, get_type_hints(args_class)[name]):
            raise InputError(f"{flag}: null is not a value. Replace or remove it.")
        return None
    text = str(value).lower() if isinstance(value, bool) else str(value)
    freeze = [] if flag.startswith("freeze") else ["--freeze_layers", "1"]  # unfreeze_after_steps needs it
    try:
        argv = ["--output_dir", ".", *freeze, f"--{name}={text}"]
        (args,) = parse_arguments([args_class], argv, "snugbert", "")
    except InputError as error:
        message = error.args[0].partition(" `snugbert")[0]  # without the hint to `--help`
        raise InputError(re.sub(rf"^(argument )?--{name}(/--[\w-]+)?:? ", f"{flag}: ", message)) from error
    return getattr(args, name)
