"""The YAML file of `--sweep`: which flags vary, how they are searched, and the budget.

The how-to for fine-tuning has an example. `paper`, `fixed` and `stable` are files of the package.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from snugbert.cli.arguments import COUNT, NOT_NEGATIVE, POSITIVE, check_ranges
from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError, did_you_mean, join_lines, suggest_path

PRESETS = ("paper", "fixed", "stable")
BATCH_SIZE = "batch_size"  # over all processes and accumulation steps. Not a flag
# Flags that cannot be combined. The first pair sets the batch size, the second pair the length of a run.
EXCLUSIVE = ({BATCH_SIZE, "per_device_train_batch_size"}, {"num_train_epochs", "max_steps"})
DISTILLATION_SETTINGS = ("distillation_temperature", "distillation_weight")  # they need a teacher
# Settings that TrainingArguments lacks.
OWN_FLAGS = (
    "reinit_layers",
    "layerwise_lr_decay",
    "freeze_embeddings",
    "freeze_layers",
    "class_weights",
)
# Settings of the training that affect its result, and may vary.
TRAINING_FLAGS = (
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "warmup_steps",
    "lr_scheduler_type",
    "weight_decay",
    *OWN_FLAGS,
    "label_smoothing_factor",
    "optim",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "neftune_noise_alpha",
    "train_sampling_strategy",
)
VARIED = (BATCH_SIZE, *TRAINING_FLAGS, *DISTILLATION_SETTINGS)


@dataclass
class SweepFile:
    """The content of a sweep file."""

    method: str = field(default="grid", metadata={"choices": ["grid", "random", "tpe"]})
    runs: int | None = None  # maximum number of settings. A grid may have fewer
    hours: float | None = None  # no setting starts later
    prune: bool = False  # whether Optuna stops bad runs
    seeds: int = 1  # runs of each setting, the default of `--seeds`
    min_steps: int = 0  # minimum steps of a run, unless the user chose its length
    # The distribution of each flag that varies, as in Optuna.
    settings: dict[str, Any] = field(default_factory=dict, init=False)
    # Values that are the same in all runs, unless the user gives the flag.
    defaults: dict[str, Any] = field(default_factory=dict, init=False)
    # The part that must not change when a sweep continues: the preset's name, or the file without its budget.
    plan: Any = field(default=None, init=False)

    def __post_init__(self):
        if self.runs is None and self.method != "grid":
            raise InputError(f"method {self.method} needs `runs`, the number of settings to try.")
        check_ranges(self, runs=COUNT, hours=POSITIVE, seeds=COUNT, min_steps=NOT_NEGATIVE)

    @property
    def size(self) -> int:
        """Maximum number of settings."""
        if self.method != "grid":
            return self.runs or 0
        grid = math.prod(len(values.choices) for values in self.settings.values())
        return min(grid, self.runs or grid)


def read_sweep_file(name: str, args_class: type) -> SweepFile:
    """Reads a preset or a YAML file. The flags are the fields of the dataclass `args_class`."""
    file = Path(__file__).with_name(f"sweep_{name}.yaml") if name in PRESETS else Path(name)
    if not file.is_file():
        hint = did_you_mean(name, PRESETS) or suggest_path(name)
        raise InputError(f"--sweep: {name} is neither a YAML file nor one of {', '.join(PRESETS)}.{hint}")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(settings := content.pop("settings", None), dict):
            raise InputError("`settings` is missing. List the flags to vary, such as learning_rate: [1e-5, 3e-5].")
        sweep = _parse(SweepFile, content)
        for flag, given in settings.items():
            if flag not in VARIED:
                hint = did_you_mean(str(flag), VARIED)
                raise InputError(f"{flag} cannot vary.{hint} Settings that do not vary belong on the command line.")
            if flag == BATCH_SIZE or isinstance(given, list | dict):
                sweep.settings[flag] = _make_distribution(flag, given, sweep.method, args_class)
            else:
                sweep.defaults[flag] = read_value(flag, given, args_class)
        for names in EXCLUSIVE:
            if names <= settings.keys():
                raise InputError(f"{' and '.join(sorted(names))} cannot be combined. Remove one of these settings.")
    except (InputError, yaml.YAMLError, ValueError, TypeError) as error:
        raise InputError(f"--sweep: {name}: {join_lines(error)}") from error
    options = {key: content[key] for key in ("method", "prune", "min_steps") if key in content}
    sweep.plan = name if name in PRESETS else {**options, "settings": settings}
    return sweep


def _make_distribution(flag: str, given: Any, method: str, args_class: type) -> Any:
    """Returns Optuna's distribution for a list of values, or for a range with `low`, `high`, `log` and `step`."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(given, dict):
        values = [read_value(flag, value, args_class) for value in (given if isinstance(given, list) else [given])]
        given = {"choices": [getattr(value, "value", value) for value in values]}  # `value` of an Enum
        kind: Any = CategoricalDistribution
    elif method == "grid" or flag == BATCH_SIZE:
        raise InputError(f"{flag}: write a list. Grids and {BATCH_SIZE} have no ranges.")
    elif not isinstance(given.get("log", False), bool):  # Optuna would read any text as true
        raise InputError(f"{flag}: `log` must be true or false.")
    else:
        given = given | {name: read_value(flag, given[name], args_class) for name in ("low", "high") if name in given}
        kind = FloatDistribution if isinstance(given.get("low"), float) else IntDistribution
    try:
        return kind(**given)
    except (ValueError, TypeError) as error:
        raise InputError(f"{flag}: {error}") from error


def read_value(flag: str, value: Any, args_class: type) -> Any:
    """Parses a value like the command line, because YAML reads 1e-5 as text. None: the flag is not set."""
    name = "per_device_train_batch_size" if flag == BATCH_SIZE else flag
    return None if value is None else getattr(_parse(args_class, {name: value}), name)


def _parse(dataclass_type: type, values: dict[str, Any]) -> Any:
    argv = [f"--{name}={value}" for name, value in values.items()]
    try:
        (parsed,) = parse_arguments([dataclass_type], argv, "snugbert", "")
    except InputError as error:
        message = error.args[0].partition(" `snugbert")[0]  # without the hint to `--help`
        raise InputError(message.replace("--", "")) from error
    return parsed
