"""Reads the arguments of a command into dataclasses, as in transformers' own example scripts, and suggests commands.

`--config FILE.yaml` reads the same arguments from a file. The command line takes precedence.
"""

import json
import logging
import re
import shlex
from argparse import SUPPRESS, Action, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser, TrainingArguments

from snugbert.cli.command_help import format_help
from snugbert.errors import InputError, did_you_mean, explain_choice, explain_files, explain_folder, join_lines
from snugbert.storage.inputs import stage
from snugbert.storage.uploads import choose_output, find_output
from snugbert.storage.urls import hide_credentials, is_url, name_parts

# Flags of transformers 4 that transformers 5 renamed. Command lines written for transformers 4 keep working.
RENAMED_FLAGS = {
    "--warmup_ratio": "--warmup_steps",  # a value below 1 is a share of the steps
    "--evaluation_strategy": "--eval_strategy",
    "--no_cuda": "--use_cpu",
}
HELP_FLAGS = {"-h", "--help", "--help-all"}
MODEL_FLAGS = ("model", "model_name_or_path", "tokenizer_name", "teacher_name_or_path", "init")
# Arguments whose values are files or folders. An argument whose name ends in `_file` is an input, too.
INPUTS = (*MODEL_FLAGS, "config_name", "dataset_name", "data_dir", "sweep", "input", "resume_from_checkpoint")
OUTPUTS = ("output_dir", "output_file", "output")
LOCAL = ("deepspeed", "accelerator_config")  # files of settings that other libraries open
# The words that HfArgumentParser accepts.
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")


class ArgumentParser(HfArgumentParser):
    """`HfArgumentParser` with a short `--help`. Errors are an [`InputError`] instead of a hundred lines of usage.

    The metadata of a field may contain `"advanced": True`: only `--help-all` lists the argument. `"positional": True`:
    the value is given without a flag.
    """

    def __init__(self, dataclass_types: Sequence[Any], *, prog: str, description: str, example: str = ""):
        self.advanced: set[str] = set()
        self.positional: list[str] = []
        self.example = example or prog
        super().__init__(dataclass_types, prog=prog, description=description, allow_abbrev=False, add_help=False)
        self.add_argument("--config", metavar="FILE.yaml", advanced=True, help="Read arguments from this YAML file.")
        self.add_argument("-h", "--help", action="help", advanced=True, help="List the main arguments.")
        self.add_argument("--help-all", action=_HelpAll, nargs=0, advanced=True, help="List all arguments.")

    def add_argument(self, *names: Any, advanced: bool = False, positional: bool = False, **kwargs: Any) -> Action:
        """Adds an argument, as in argparse, with the additional metadata of its field."""
        if positional:
            names = (names[0].removeprefix("--"),)
            kwargs.pop("required")  # argparse always requires positional arguments
            self.positional += names
        action = super().add_argument(*names, **kwargs)
        if advanced:
            self.advanced.add(action.dest)
        return action

    @property
    def flags(self) -> list[str]:
        """All flags, such as `--output_dir` and `--output-dir`."""
        return [flag for action in self._actions for flag in action.option_strings]

    @property
    def switches(self) -> set[str]:
        """All flags that need no value."""
        return {flag for action in self._actions if action.const is True for flag in action.option_strings}

    def check_flags(self, argv: list[str]) -> None:
        """Suggests a flag for the first unknown flag of a command line without `--help`."""
        if HELP_FLAGS & set(argv):
            return
        for argument in argv:
            match = re.fullmatch(r"(--\w[\w-]*)(=.*)?", argument, re.DOTALL)  # a value may begin with two hyphens
            if match and match[1] not in self.flags:
                flags = {flag.removeprefix("--").replace("-", "_") for flag in self.flags}
                hint = did_you_mean(match[1].removeprefix("--").replace("-", "_"), sorted(flags), prefix="--")
                self.error(f"unknown argument {match[1]}.{hint}")

    def format_help(self, everything: bool = False) -> str:
        """Returns the text of `--help`, or of `--help-all` if `everything`."""
        return format_help(
            " ".join([self.prog, "[arguments]", *self.positional]),
            self.description or "",
            self.example,
            self._actions,
            list(self.dataclass_types),
            self.advanced,
            everything,
        )

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = (action.option_strings or [action.dest])[0]
            raise InputError(explain_choice(name, str(value), map(str, action.choices)))

    def error(self, message: str) -> NoReturn:
        """Raises [`InputError`] with `message`."""
        end = "" if message.endswith((".", "?")) else "."
        raise InputError(f"{message}{end} `{self.prog} --help` lists the arguments.")


class _HelpAll(Action):
    def __call__(self, parser: Any, namespace: Namespace, values: Any, option_string: str | None = None) -> None:
        print(parser.format_help(everything=True), end="")
        parser.exit()


def parse_arguments(
    dataclass_types: Sequence[Any],
    argv: list[str],
    prog: str,
    description: str,
    example: str = "",
    opens: Sequence[str] = (),
) -> tuple[Any, ...]:
    """Reads `argv`, and the YAML file that `--config` names, into one instance of each dataclass.

    The constructors only get the arguments that were given, and local paths instead of URLs, see [`_replace_urls`].
    The command itself opens the URLs of the arguments in `opens`.
    """
    parser = ArgumentParser(dataclass_types, prog=prog, description=description, example=example)
    argv = _replace_opposites([_renamed(argument) for argument in argv], parser)
    argv, files = _without_config(argv, parser)
    if parser.positional:
        argv = _complete_switches(argv, parser)
    local_files = [_stage_one("config", file) if is_url(file) else file for file in files]
    from_files = [argument for file in local_files for argument in _read_yaml_arguments(Path(file), parser)]
    # TrainingArguments takes seconds to construct. Handle --help and wrong flags before that.
    parser.check_flags(argv)
    parser.parse_args(from_files + argv)
    if any(issubclass(dtype, TrainingArguments) for dtype in dataclass_types) and not find_spec("accelerate"):
        raise ModuleNotFoundError("TrainingArguments needs accelerate", name="accelerate")
    for action in parser._actions:  # leaves out arguments that were not given
        action.default = SUPPRESS
    given = vars(parser.parse_args(from_files + argv))
    for name, value in given.items():
        for each in value if isinstance(value, list) else [value]:
            _check_path(name, each)
    given = _replace_urls(given, opens)
    try:
        return tuple(
            dataclass_type(**{each.name: given[each.name] for each in fields(dataclass_type) if each.name in given})
            for dataclass_type in dataclass_types
        )
    except InputError:
        raise
    except (ValueError, TypeError) as error:  # a dataclass rejected a value, usually TrainingArguments
        raise InputError(str(error)) from error


def _check_path(name: str, value: Any) -> None:
    """Checks that an input file or the folder of a model exists. Only a store knows what a URL names."""
    if not isinstance(value, str) or "://" in value:
        return
    mistake = ""
    if name.endswith("_file") and not name.startswith(("output_", "overwrite_")):
        is_pipe = Path(value).exists() and not Path(value).is_dir() and not Path(value).is_file()
        mistake = "" if is_pipe else explain_files(value)
    elif name in MODEL_FLAGS:
        mistake = explain_folder(value)
    if mistake:
        raise InputError(f"--{name}: {mistake}")


def _replace_urls(given: dict[str, Any], opens: Sequence[str]) -> dict[str, Any]:
    """Replaces URLs by local paths: inputs by copies, outputs by folders that are uploaded later.

    `opens` names the arguments whose URLs are not replaced.
    """
    local = dict(given)
    for name in OUTPUTS:  # first, because a checkpoint to resume from can be in an output folder
        if is_url(given.get(name, "")) and name not in opens:
            local[name] = _find_output_path(name, given[name])
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if name in opens or name in OUTPUTS or not any(map(is_url, values)):
            continue
        if name in LOCAL or (name.endswith("_dir") and name not in INPUTS):
            kind = "folder" if name.endswith("_dir") else "file"
            raise InputError(f"--{name}: {hide_credentials(values[0])} is a URL. Use a local {kind}.")
        if name.endswith("_file") or name in INPUTS:
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
    folder, _, file = url.rpartition("/") if name == "output_file" else (url, "", "")
    if name == "output_file" and (not file or len(name_parts(url)) < 2):
        raise InputError(
            f"--{name}: {hide_credentials(url)} names no file. Use a URL like s3://bucket/folder/file.jsonl."
        )
    if not name_parts(url):
        raise InputError(f"{_flag(name)}: {hide_credentials(url)} names no bucket. Use a URL like s3://bucket/folder.")
    return str(choose_output(folder) / file)


def _stage_one(name: str, url: str) -> str:
    paths = stage(url, _flag(name))
    if len(paths) > 1:
        raise InputError(f"{_flag(name)}: {hide_credentials(url)} matches {len(paths)} files. Name one file.")
    return str(paths[0])


def _flag(name: str) -> str:
    return name if name in ("input", "output") else f"--{name}"  # these two are positional arguments


def _renamed(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return RENAMED_FLAGS.get(flag, flag) + equals + value


def _replace_opposites(argv: list[str], parser: ArgumentParser) -> list[str]:
    """Replaces `--no_<switch>` by `--<switch> false`."""
    switches, replaced = parser.switches, []
    for argument in argv:
        switch = re.sub(r"^--no[_-]", "--", argument)
        is_opposite = argument not in parser.flags and switch in switches
        replaced += [switch, "false"] if is_opposite else [argument]
    return replaced


def _complete_switches(argv: list[str], parser: ArgumentParser) -> list[str]:
    """Adds `true` after a switch without a value. Otherwise, a positional argument would be read as the value."""
    switches, completed = parser.switches, []
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        completed.append(argument)
        if argument in switches and following.lower() not in TRUE + FALSE:
            completed.append("true")
    return completed


def _without_config(argv: list[str], parser: ArgumentParser) -> tuple[list[str], list[str]]:
    rest: list[str] = []
    files: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--config":
            file = next(arguments, None)
            if file is None:
                parser.error("argument --config: expected a file")
            files.append(file)
        elif argument.startswith("--config="):
            files.append(argument.removeprefix("--config="))
        else:
            rest.append(argument)
    return rest, files


def compose_yaml(text: str) -> yaml.Node | None:
    """Reads YAML without aliases. With aliases, a few lines can expand to billions of values."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
            raise ValueError("aliases are not supported. Write the value again")
        return yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(join_lines(error)) from error


def _read_yaml_arguments(file: Path, parser: ArgumentParser) -> list[str]:
    if not file.is_file():
        raise InputError(f"--config: the file {file} does not exist.")
    try:
        root = compose_yaml(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"--config: {file} is not a YAML file: {error}") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode) or not all(
        isinstance(key, yaml.ScalarNode) and re.fullmatch(r"[\w-]+", key.value) for key, _ in root.value
    ):
        raise InputError(f"--config: {file} must contain only `name: value` lines.")
    arguments = []
    for key, node in root.value:
        name, value = key.value, _read_yaml_value(node, file)
        opposite = _replace_opposites([f"--{name}"], parser)
        if len(opposite) == 2 and str(value).lower() in TRUE:  # `no_do_lower_case: true`
            name, value = opposite[0].removeprefix("--"), opposite[1]
        if name == "config":
            raise InputError(f"--config: {file} contains `config`, but config files cannot be nested.")
        if _renamed(f"--{name}") not in parser.flags:
            hint = did_you_mean(name.replace("-", "_"), (flag.removeprefix("--") for flag in parser.flags))
            raise InputError(f"--config: {file}, line {key.start_mark.line + 1}: unknown argument {name}.{hint}")
        if value in ("", "~", "null"):
            continue
        if name.replace("-", "_") == "trust_remote_code" and str(value).lower() not in FALSE:
            logging.getLogger(__name__).warning(
                "%s sets trust_remote_code: code from the tokenizer's repository will run on this machine", file
            )
        arguments.append(_renamed(f"--{name}"))
        values = value if isinstance(value, list) else [value]
        if any(each.startswith("--") for each in values):
            raise InputError(
                f"--config: {file}: the value of {name} begins with --. Write arguments as `name: value`."
            )
        arguments.extend(values)
    return arguments


def _read_yaml_value(node: yaml.Node, file: Path) -> str | list[str]:
    """Returns scalars and lists of them as written, so that `no` does not become False, and other values as JSON."""
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [item.value for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        return node.value
    try:
        return json.dumps(yaml.safe_load(yaml.serialize(node)))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        line = node.start_mark.line + 1
        raise InputError(f"--config: {file}, line {line}: invalid value ({join_lines(error)}).") from error


def format_command(command: str, flags: Mapping[str, Any]) -> str:
    """Returns a command line to copy. A flag may have a list of values."""
    words = ["snugbert", command]
    for name, value in flags.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(each).lower() if isinstance(each, bool) else str(each) for each in values)]
    return shlex.join(words)


def changed_flags(arguments: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of the flags `names` that differ from their defaults."""
    changed = {}
    for field in fields(arguments):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if field.name in names and getattr(arguments, field.name) != default:
            changed[field.name] = getattr(arguments, field.name)
    return changed
