"""Reads the arguments of a command into dataclasses, as in transformers' own example scripts.

`--config FILE.yaml` reads the same arguments from a file. The command line takes precedence.
"""

import argparse
import json
import logging
import re
from argparse import SUPPRESS, Action
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.hf_argparser import string_to_bool

from snugbert.cli.old_arguments import REMOVED, RENAMED, SWITCHES, translate
from snugbert.errors import InputError, did_you_mean, explain_choice, explain_files, explain_folder, join_lines
from snugbert.storage.inputs import stage
from snugbert.storage.uploads import choose_output, find_output
from snugbert.storage.urls import hide_credentials, is_url, name_parts

logger = logging.getLogger(__name__)

MODEL_FLAGS = ("model", "model_name_or_path", "tokenizer_name", "teacher_name_or_path", "init")
# Arguments whose values are files or folders. An argument whose name ends in `_file` is an input, too.
INPUTS = (*MODEL_FLAGS, "config_name", "dataset_name", "data_dir", "sweep", "input", "resume_from_checkpoint")
OUTPUTS = ("output_dir", "output_file", "output")
# Fields of `TrainingArguments` that `--help` lists, in addition to our own arguments. `--help-all` lists all fields.
TRAINING_HELP = {
    "output_dir": "Folder for the model, its results and its checkpoints. Default: trainer_output.",
    "per_device_eval_batch_size": "Examples per device and batch for evaluation.",
    "num_train_epochs": "Number of passes over the training examples.",
    "max_steps": "Optimizer steps, instead of --num_train_epochs. Default: not set.",
    "lr_scheduler_type": "Schedule after warmup: linear, cosine, constant_with_warmup, ...",
    "gradient_accumulation_steps": "Batches per optimizer step.",
    "eval_strategy": "When to evaluate during training: no, steps or epoch.",
    "eval_steps": "Steps between evaluations. Default: --logging_steps (fine-tuning: 500 if below 1).",
    "seed": "Random seed.",
    "use_cpu": "Train on the CPU even if there is a GPU.",
    "save_strategy": "When to save a checkpoint: no, steps, epoch or best.",
    "save_steps": "Steps between checkpoints. A value below 1 is a share of all steps.",
    "resume_from_checkpoint": "Checkpoint folder, or true for the newest in --output_dir. Default: new run.",
    "push_to_hub": "Upload the model and its card to the Hub.",
}
TRAINING_FIELDS = {field.name for field in fields(TrainingArguments)}
# Flags in the help group "output" begin with one of these prefixes.
OUTPUT_PREFIXES = ("output_", "overwrite_", "update_", "logging_", "save_", "report_", "resume_", "push_", "hub_")
GROUPS = ("data", "tokenizer", "model", "training", "output", "more")
MORE_HELP = "--config FILE.yaml reads the same arguments. --help-all lists all arguments."


class HelpFormatter(argparse.HelpFormatter):
    """Shows each argument as its first flag and its help, without short flags."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=42, width=119)

    def _format_action_invocation(self, action: Action) -> str:
        return (action.option_strings or [action.dest])[0]


class ArgumentParser(HfArgumentParser):
    """`HfArgumentParser` with a short `--help`. Errors raise an [`InputError`] instead of printing a hundred lines.

    It reads the metadata that [`argument`] adds to a field. A dataclass's `help_group` is its title in the help.
    The result contains only the arguments that were given, so that the dataclasses choose their own defaults.
    """

    def __init__(
        self,
        dataclass_types: Sequence[Any],
        prog: str,
        description: str = "",
        example: str = "",
        shows_everything: bool = False,
    ):
        super().__init__(
            (),
            prog=prog,
            description=description,
            epilog=f"example: {example or prog}",
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
            conflict_handler="resolve",
        )
        self.shows_everything = shows_everything
        self.opened: set[str] = set()  # arguments whose URLs the command itself opens
        self.groups = {title: self.add_argument_group(title) for title in GROUPS}
        self.dataclass_types = dataclass_types
        for dtype in dataclass_types:
            self.group = getattr(dtype, "help_group", "data")
            self._add_dataclass_arguments(dtype)
        self.group = "more"
        self.add_argument("--config", advanced=True, help="Read arguments from this YAML or JSON file.")
        self.add_argument("--help", "-h", action="help", advanced=True, help="List the main arguments.")
        self.add_argument("--help-all", action="help", advanced=True, help="List all arguments.")
        self.usage = " ".join([prog, "[arguments]", *(action.dest for action in self._get_positional_actions())])

    def add_argument(  # type: ignore[override]
        self,
        *names: str,
        advanced: bool | None = None,
        positional: bool = False,
        opens_urls: bool = False,
        range: object = None,
        **options: Any,
    ) -> Action:
        """Adds an argument, as in argparse, with the additional metadata of its field."""
        is_opposite = options.get("action") == "store_false"  # HfArgumentParser's `--no_...`. Ours is added below
        if options.get("type") is string_to_bool:  # `--bf16` alone means true, even if its default is None
            options |= {"nargs": "?", "const": True}
        if positional:
            names = (names[0].removeprefix("--"),)
            del options["required"]  # argparse always requires positional arguments
        group = self.groups["output" if names[0].removeprefix("--").startswith(OUTPUT_PREFIXES) else self.group]
        action = group.add_argument(*names, **options)
        for old in (old for old, new in RENAMED.items() if names[0] == f"--{new}"):  # see `translate`
            flags = (f"--{old}", f"--{old.replace('_', '-')}")
            kind = {"type": string_to_bool, "nargs": "?", "const": True} if old in SWITCHES else options
            group.add_argument(*flags, **kind | {"default": SUPPRESS, "help": SUPPRESS})
        if action.const is True:
            group.add_argument(
                f"--no_{action.dest}", action="store_false", dest=action.dest, default=SUPPRESS, help=SUPPRESS
            )
        if advanced is None and action.dest in TRAINING_FIELDS:  # transformers' own field
            advanced = action.dest not in TRAINING_HELP
            action.help = TRAINING_HELP.get(action.dest, action.help)
        if opens_urls:
            self.opened.add(action.dest)
        is_hidden = is_opposite or (advanced and not self.shows_everything)
        action.help = SUPPRESS if is_hidden else _complete_help(action)
        action.default = SUPPRESS
        return action

    def format_help(self) -> str:
        """Returns the text of `--help`, or of `--help-all` if `shows_everything`."""
        more = "" if self.shows_everything else f"\n{MORE_HELP}\n"
        return super().format_help() + more

    def check_flags(self, argv: list[str], where: str = "") -> None:
        """Raises an error for the first unknown flag, and suggests a similar one. `where`: the file with the flags."""
        known = sorted({flag.removeprefix("--").replace("-", "_") for flag in self._option_string_actions})
        for word in argv:
            flag = word.partition("=")[0]  # a value may begin with two hyphens
            if re.fullmatch(r"--\w[\w-]*", flag) and flag not in self._option_string_actions:
                name = flag.removeprefix("--").replace("-", "_")
                if name in REMOVED:
                    self.error(f"{where}{flag} was an argument of transformers 4. {REMOVED[name]}")
                self.error(f"{where}unknown argument {flag}.{did_you_mean(name, known, prefix='--')}")

    def parse_given(self, argv: list[str]) -> dict[str, Any]:
        """Returns the arguments, by name, of a command line and of the files that `--config` names."""
        finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        finder.add_argument("--config", action="append", default=[])
        found, argv = finder.parse_known_args(argv)
        if not {"-h", "--help", "--help-all"} & set(argv):
            self.check_flags(argv)
        files = [_stage_one("config", file) if is_url(file) else file for file in found.config]
        from_files = [word for file in files for word in self._read_config(file)]
        line = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv}
        return translate(vars(self.parse_args(from_files + argv)), line)

    def _read_config(self, name: str) -> list[str]:
        """Returns the arguments in a YAML or JSON file as a command line. Values stay text."""
        texts, parsed = _read_yaml(name)
        argv = []
        for argument, value in texts.items():
            if value in ("", "~", "null"):
                continue
            values = value if isinstance(value, list) else [value]
            if isinstance(value, dict):
                values = [json.dumps(parsed.get(argument), default=str)]
            if not all(isinstance(each, str) for each in values):
                raise InputError(f"--config: {name}: a value of {argument} is neither text nor a number.")
            if any(each.startswith("--") for each in values):
                raise InputError(f"--config: {name}: a value of {argument} begins with --.")
            action = self._option_string_actions.get(f"--{argument}")
            if action is not None and action.nargs == 0:  # `no_do_eval: true`
                argument, values = action.dest, [str(not string_to_bool(values[0])).lower()]
            if argument.replace("-", "_") == "trust_remote_code" and string_to_bool(values[0]):
                logger.warning("%s sets trust_remote_code: code from the Hub will run on this machine", name)
            argv += [f"--{argument}", *values]
        self.check_flags(argv, f"--config: {name}: ")
        return argv

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = (action.option_strings or [action.dest])[0]
            raise InputError(explain_choice(name, str(value), map(str, action.choices)))

    def error(self, message: str) -> NoReturn:
        """Raises [`InputError`] with `message`."""
        end = "" if message.endswith((".", "?")) else "."
        raise InputError(f"{message}{end} `{self.prog} --help` lists the arguments.")


def _read_yaml(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values of a YAML or JSON file twice: as text, and as Python's types."""
    try:
        text = Path(name).read_text(encoding="utf-8")
        texts, parsed = (yaml.load(text, loader) or {} for loader in (yaml.BaseLoader, yaml.SafeLoader))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"--config: {name}: {join_lines(error)}.") from error
    if not isinstance(texts, dict):
        raise InputError(f"--config: {name} must contain only `name: value` lines.")
    return texts, parsed


def _complete_help(action: Action) -> str:
    """Returns the help of an argument, with its default if the help does not name it."""
    text = action.help or ""
    if text == SUPPRESS:
        return text
    value = getattr(action.default, "value", action.default)  # of an enum
    if action.required and action.option_strings:
        return f"{text} Required."
    if value in (None, "", [], {}, SUPPRESS) or "default" in text.lower():
        return text
    return f"{text} Default: {str(value).lower() if isinstance(value, bool) else value}."


def parse_arguments(
    dataclass_types: Sequence[Any], argv: list[str], prog: str, description: str = "", example: str = ""
) -> tuple[Any, ...]:
    """Reads `argv`, and the files that `--config` names, into one instance of each dataclass.

    The constructors get only the arguments that were given. [`_replace_urls`] replaces URLs by local paths.
    """
    parser = ArgumentParser(dataclass_types, prog, description, example, shows_everything="--help-all" in argv)
    given = parser.parse_given(argv)
    if any(issubclass(dtype, TrainingArguments) for dtype in dataclass_types) and not find_spec("accelerate"):
        raise ModuleNotFoundError("TrainingArguments needs accelerate", name="accelerate")
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            _check_path(name, each)
    given = _replace_urls(given, parser.opened)
    try:
        return parser.parse_dict(given)
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # a dataclass rejected a value, usually TrainingArguments
        raise InputError(str(error)) from error


def _check_path(name: str, value: Any) -> None:
    """Checks that an input file or the folder of a model exists. A URL is checked when it is opened."""
    if not isinstance(value, str) or is_url(value):
        return
    mistake = explain_folder(value) if name in MODEL_FLAGS else ""
    if name.endswith("_file") and name not in OUTPUTS and not Path(value).is_fifo():
        mistake = explain_files(value)
    if mistake:
        raise InputError(f"--{name}: {mistake}")


def _replace_urls(given: dict[str, Any], opened: set[str]) -> dict[str, Any]:
    """Replaces URLs by local paths: inputs by copies, outputs by folders that are uploaded later.

    `opened` names the arguments whose URLs are not replaced.
    """
    local = dict(given)
    for name in OUTPUTS:  # first, because a checkpoint to resume from can be in an output folder
        if is_url(given.get(name, "")) and name not in opened:
            local[name] = _find_output_path(name, given[name])
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if name in opened or name in OUTPUTS or not any(map(is_url, values)):
            continue
        if name not in INPUTS and not name.endswith("_file"):
            if name.endswith("_dir"):
                raise InputError(f"--{name}: {hide_credentials(value)} is a URL. Use a local folder.")
            continue
        output = find_output(local.get("output_dir"))
        folder, _, checkpoint = str(value).rstrip("/").rpartition("/")
        if name == "resume_from_checkpoint" and output is not None and folder == output.url:
            local[name] = str(output.folder / checkpoint)
        elif isinstance(value, list):
            staged = (stage(each, f"--{name}") if is_url(each) else [each] for each in value)
            local[name] = [str(path) for paths in staged for path in paths]
        else:
            local[name] = _stage_one(name, value)
    return local


def _find_output_path(name: str, url: str) -> str:
    """Returns the local path for an output."""
    is_file = name == "output_file"
    folder, _, file = url.rpartition("/") if is_file else (url, "", "")
    if len(name_parts(url)) < 1 + is_file or (is_file and not file):
        raise InputError(f"{_flag(name)}: {hide_credentials(url)} is incomplete. Use a URL like s3://bucket/folder.")
    return str(choose_output(folder) / file)


def _stage_one(name: str, url: str) -> str:
    paths = stage(url, _flag(name))
    if len(paths) > 1:
        raise InputError(f"{_flag(name)}: {hide_credentials(url)} matches {len(paths)} files. Name one file.")
    return str(paths[0])


def _flag(name: str) -> str:
    return name if name in ("input", "output") else f"--{name}"  # these two are positional arguments
