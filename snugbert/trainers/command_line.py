"""What every `snugbert` command shares: reading its arguments, guarding its output folder, finding a checkpoint.

Arguments are dataclasses, as in transformers' own example scripts; those of `TrainingArguments` are among them.
`--config FILE.yaml` takes the same names from a file, and what stands on the command line wins over it.
"""

import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from huggingface_hub import HfApi
from huggingface_hub.utils import httpx
from transformers import HfArgumentParser, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging as transformers_logging

# Flags of transformers 4 that transformers 5 renamed. A command line somebody already has should keep working.
RENAMED_FLAGS = {
    "--warmup_ratio": "--warmup_steps",  # a number below 1 is a share of the steps
    "--evaluation_strategy": "--eval_strategy",
    "--no_cuda": "--use_cpu",
}


FALSE = ("false", "f", "no", "n", "0")  # as HfArgumentParser reads them

# The names that a run writes next to its model. Everything else in an output folder belongs to the user.
WRITTEN_BY_A_RUN = re.compile(
    r"checkpoint-\d+|((train|all|(eval|predict)(_(mm|ax))?)_)?results\.json|results\.md|"
    r"(trainer_state|config|plan)\.json",
    re.ASCII,
)


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one sentence: what is wrong, where, what to do.

    The command line prints the message alone; any other exception keeps its traceback.
    """


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
    from_files = [argument for file in files for argument in _arguments_of_yaml(Path(file))]
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


def _arguments_of_yaml(file: Path) -> list[str]:
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
        name, value = key.value, _value_of_yaml(node, file)
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


def _value_of_yaml(node: yaml.Node, file: Path) -> str | list[str]:
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


def parse_json(text: str) -> Any:
    """Parses JSON.

    Raises:
        ValueError: not JSON, nested too deeply, or a number with too many digits.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except ValueError as error:
        raise ValueError("a number has too many digits") from error


def set_up(training_args: TrainingArguments) -> None:
    """What every run wants: log lines on standard error, from the main process only, one GPU a process.

    Raises:
        InputError: a negative learning rate or seed, or the result is to be pushed to a Hub that cannot be reached or
            does not know the token.
    """
    for name in ("learning_rate", "seed", "data_seed"):
        if (getattr(training_args, name) or 0) < 0:
            raise InputError(f"--{name} {getattr(training_args, name)} must not be negative.")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    level = logging.INFO if training_args.should_log else logging.ERROR
    logging.getLogger("snugbert").setLevel(level)
    # Trainer's own INFO lines repeat what we print; its warnings matter.
    transformers_logging.set_verbosity(logging.WARNING if training_args.should_log else logging.ERROR)
    transformers_logging.disable_progress_bar()  # of reading and writing weights; training keeps its own
    if training_args.n_gpu > 1:
        # Trainer would split every batch over them within one process, which is slow and cannot divide a loss exactly.
        logging.getLogger(__name__).warning(
            "one of %d GPUs is used; for all of them: accelerate launch -m snugbert ...", training_args.n_gpu
        )
        training_args._n_gpu = 1
    if not torch.accelerator.is_available():
        training_args.dataloader_pin_memory = False  # torch warns at every epoch that there is nothing to pin for
    move_hub_token(training_args)
    if training_args.push_to_hub and training_args.should_save:
        _check_hub(training_args.hub_token)


def move_hub_token(training_args: TrainingArguments) -> None:
    """Moves `hub_token` from the arguments to the environment (`HF_TOKEN`), where huggingface_hub looks for it.

    Trainer pickles its arguments into output folders and uploads them. A token among them would be published.
    """
    if isinstance(training_args.hub_token, str):
        os.environ["HF_TOKEN"] = training_args.hub_token
        # Asks huggingface_hub for it even where HF_HUB_DISABLE_IMPLICIT_TOKEN is set.
        training_args.hub_token = True  # type: ignore[assignment]


def _check_hub(token: Any) -> None:
    # The training would be done, or all runs of a sweep, before a push fails.
    hub = HfApi(token=token)
    try:
        hub.whoami()
    except (OSError, httpx.HTTPError) as error:
        raise InputError(f"--push_to_hub: {hub.endpoint} cannot be used: {' '.join(str(error).split())}") from error


def claim_output_dir(training_args: TrainingArguments, overwrite: bool) -> str | None:
    """Makes sure that a run cannot overwrite another by accident, and says where to resume. Changes nothing.

    Args:
        training_args: `output_dir` is looked at; `resume_from_checkpoint` may be a folder or "true" for the newest
            whole checkpoint of `output_dir`, if any run was begun there: a job that may be stopped at any time, or not
            have begun yet, has one command.
        overwrite: the run that is there may be replaced, see [`clear_output_dir`].

    Returns:
        The checkpoint folder to resume from, or None to start from the beginning.

    Raises:
        InputError: the folder holds a run and neither resuming nor overwriting was asked for, or the checkpoint to
            resume from is missing or not whole.
    """
    output_dir = Path(training_args.output_dir or "")
    resume = str(training_args.resume_from_checkpoint or "false")
    checkpoint = None
    if resume.lower() == "true":
        checkpoint = newest_checkpoint(output_dir)
        if checkpoint is None and files_of_a_run(output_dir):
            raise InputError(f"--resume_from_checkpoint true: {output_dir} holds no whole checkpoint to resume from.")
    elif resume.lower() != "false":
        checkpoint = Path(resume)
        if not _is_whole(checkpoint):
            raise InputError(f"--resume_from_checkpoint: {resume} is not a whole checkpoint folder.")
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    resumes_here = checkpoint is not None and checkpoint.resolve().parent == output_dir.resolve()
    if files_of_a_run(output_dir) and not resumes_here and not overwrite:
        raise InputError(
            f"--output_dir: {output_dir} already holds a run; choose another folder, go on with it "
            "(--resume_from_checkpoint true), or replace it (--overwrite_output_dir)."
        )
    return None if checkpoint is None else str(checkpoint)


def clear_output_dir(training_args: TrainingArguments) -> None:
    """Removes the checkpoints and results of an earlier run. Call it after everything that can fail."""
    if training_args.should_save:
        remove_run(Path(training_args.output_dir or ""))


def remove_run(output_dir: Path) -> None:
    """Removes the checkpoints and results of a run. Its model stays until a new one replaces it."""
    for path in files_of_a_run(output_dir):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.json":
            path.unlink()


def files_of_a_run(output_dir: Path) -> list[Path]:
    """The checkpoints, results and configuration of the run in `output_dir`. Empty if there is no run."""
    if not output_dir.is_dir():
        return []
    return sorted(path for path in output_dir.iterdir() if WRITTEN_BY_A_RUN.fullmatch(path.name))


def checkpoints_in(output_dir: Path) -> list[Path]:
    """The folders `checkpoint-<step>` of a run, in the order of their steps."""
    folders = [path for path in files_of_a_run(output_dir) if path.name.startswith("checkpoint-") and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def newest_checkpoint(output_dir: Path) -> Path | None:
    """The whole checkpoint of the highest step in `output_dir`; half-written ones are passed over with a warning."""
    for folder in reversed(checkpoints_in(output_dir)):
        if _is_whole(folder):
            return folder
        logging.getLogger(__name__).warning("%s is not a whole checkpoint and is passed over", folder)
    return None


def _is_whole(checkpoint: Path) -> bool:
    # Trainer writes trainer_state.json after everything else, so a checkpoint that has it was written to the end. One
    # without an optimizer (--save_only_model) is whole, but nothing to resume from.
    try:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        kinds = (int, list, dict)
        if not all(map(isinstance, (state.global_step, state.log_history, state.stateful_callbacks), kinds)):
            return False
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False  # not written to its end, or not by Trainer
    return any(True for pattern in ("optimizer*", "global_step*") for _ in checkpoint.glob(pattern))
