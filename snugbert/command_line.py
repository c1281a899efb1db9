"""What every `snugbert` command shares: reading its arguments, guarding its output folder, finding a checkpoint.

Arguments are dataclasses, as in transformers' own example scripts; those of `TrainingArguments` are among them.
`--config FILE.yaml` takes the same names from a file, and what stands on the command line wins over it.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any, NoReturn

import yaml
from transformers import HfArgumentParser

from snugbert.errors import InputError

# Flags of transformers 4 that transformers 5 renamed. A command line somebody already has should keep working.
RENAMED_FLAGS = {
    "--warmup_ratio": "--warmup_steps",  # a number below 1 is a share of the steps
    "--evaluation_strategy": "--eval_strategy",
    "--no_cuda": "--use_cpu",
}


FALSE = ("false", "f", "no", "n", "0")  # as HfArgumentParser reads them


class ArgumentParser(HfArgumentParser):
    """`HfArgumentParser` whose complaint is an [`InputError`], not a hundred lines of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise [`InputError`] with `message`."""
        raise InputError(f"{message} (`{self.prog} --help` lists the arguments)")


def parse_arguments(dataclass_types: tuple[Any, ...], argv: list[str], prog: str, description: str) -> tuple[Any, ...]:
    """Reads `argv`, and the YAML file that `--config` names, into one instance of each dataclass.

    Args:
        dataclass_types: the dataclasses, `TrainingArguments` or a subclass among them.
        argv: the arguments behind the command's name.
        prog: the command as typed, for messages.
        description: what the command does, for `--help`.

    Raises:
        InputError: an unknown argument or a value of the wrong kind.
    """
    parser = ArgumentParser(dataclass_types, prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE.yaml", help="Take arguments from this YAML file, by the same names.")
    argv = [_renamed(argument) for argument in argv]
    argv, files = _without_config(argv, parser)
    from_files = [argument for file in files for argument in _read_yaml_arguments(Path(file))]
    try:
        *instances, _, unknown = parser.parse_args_into_dataclasses(
            args=from_files + argv, look_for_args_file=False, return_remaining_strings=True
        )
    except InputError:
        raise
    except ValueError as error:  # a dataclass refused a value, TrainingArguments most often
        raise InputError(str(error)) from error
    if unknown:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    return tuple(instances)


def _renamed(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return RENAMED_FLAGS.get(flag, flag) + equals + value


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


def _read_yaml_arguments(file: Path) -> list[str]:
    if not file.is_file():
        raise InputError(f"--config: there is no file {file}.")
    try:
        text = file.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            # A few lines of them can stand for gigabytes.
            raise InputError(f"--config: {file} has aliases (*name). Write the values out.")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--config: {file} is not a YAML file: {error}") from error
    except RecursionError as error:
        raise InputError(f"--config: {file} is nested too deeply.") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode) or not all(
        isinstance(key, yaml.ScalarNode) and re.fullmatch(r"[\w-]+", key.value) for key, _ in root.value
    ):
        raise InputError(f"--config: {file} must hold `name: value` lines.")
    arguments = []
    for key, node in root.value:
        name, value = key.value, _read_yaml_value(node, file)
        if name == "config":
            raise InputError(f"--config: {file} names another file with `config`; put its arguments here.")
        if value in ("", "~", "null"):
            continue
        if name.replace("-", "_") == "trust_remote_code" and str(value).lower() not in FALSE:
            logging.getLogger(__name__).warning(
                "%s sets trust_remote_code: code from the tokenizer's repository will run on this machine", file
            )
        arguments.append(_renamed(f"--{name}"))
        values = value if isinstance(value, list) else [value]
        if any(each.startswith("--") for each in values):
            raise InputError(f"--config: {file}: a value of {name} begins with --. Write arguments as `name: value`.")
        arguments.extend(values)
    return arguments


def _read_yaml_value(node: yaml.Node, file: Path) -> str | list[str]:
    """Scalars as written, so that `no` stays a word and does not become False. Dictionaries as JSON."""
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [item.value for item in node.value]
    if isinstance(node, yaml.ScalarNode):
        return node.value
    try:
        return json.dumps(yaml.safe_load(yaml.serialize(node)))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        line = node.start_mark.line + 1
        raise InputError(f"--config: {file}, line {line}: invalid value ({error}).") from error
