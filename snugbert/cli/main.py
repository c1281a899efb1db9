"""Runs a command: reads its arguments, and turns errors into messages and an exit status."""

import errno
import functools
import gc
import os
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch.distributed as dist
from huggingface_hub.utils import httpx

from snugbert.cli.parser import parse_arguments
from snugbert.errors import COMMAND, InputError, RunStopped, join_lines
from snugbert.storage.uploads import find_output, write_output
from snugbert_cli import COMMANDS

# Modules that read command lines, files, models and datasets. Error classes that they define, and ValueErrors that
# they raise, mean a problem in the input. A ValueError from other code is a bug.
READERS = (
    "_csv",
    "argparse",
    "codecs",
    "csv",
    "datasets",
    "fsspec",
    "gzip",
    "huggingface_hub",
    "json",
    "optuna",
    "pandas.errors",
    "pyarrow",
    "safetensors",  # its error probably means a full disk
    "transformers.configuration_utils",
    "transformers.dynamic_module_utils",
    "transformers.models.auto",
    "transformers.tokenization",
    "transformers.utils.hub",
    "yaml",
    "zlib",
    "zstandard",
)
# Package -> the extra that installs it, for packages that only some uses of a command need.
EXTRAS = {
    "tensorflow": "tensorflow",
    "sentence_transformers": "embeddings",
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    **dict.fromkeys(("openvino", "nncf"), "openvino"),
}


def run_command(name: str, arguments: list[str]) -> None:
    """Reads the arguments of a command, one of `COMMANDS`, and runs it. Errors keep their tracebacks."""
    command = COMMANDS[name]
    program = f"snugbert {name}"
    types = [_import(dataclass_name) for dataclass_name in command.arguments]
    example = f"{program} {command.example}"
    instances = parse_arguments(types, arguments, program, command.summary, example)
    import_module("snugbert.registration")
    run = functools.partial(_import(command.function), *instances, **command.options)
    values = {argument: value for each in instances for argument, value in vars(each).items()}
    output = find_output(values.get(command.uploads))  # None: the folder is local
    run() if output is None else write_output(output, run)


def run_and_report(name: str, arguments: list[str]) -> int:
    """Runs a command. Prints an error in the input as one message, and returns the exit status."""
    if sys.stderr is None or not sys.stderr.isatty():  # no progress bars in log files
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ[COMMAND] = name
    try:
        run_command(name, arguments)
    except RunStopped as stop:
        _leave_process_group()
        return 128 + stop.number
    except Exception as error:
        if message := _explain(error, name):
            print(f"snugbert {name}: error: {message}", file=sys.stderr)
            return 1 if isinstance(error, RuntimeError) else 2
        if not _is_one_of_several():
            raise
        traceback.print_exc()
        return 1
    _leave_process_group()
    return 0


def _explain(error: Exception, name: str) -> str:
    """Returns the message for an error in the input or a lost process. Empty if the traceback should be printed."""
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).partition(".")[0]
        if error.name is None or package == "snugbert":
            return ""
        problem, option = ("is too old", "-U ") if find_spec(package) else ("is not installed", "")
        extra = EXTRAS.get(package, COMMANDS[name].extra)
        return f"the package {package} {problem}. Run: pip install {option}'snugbert[{extra}]'"
    if isinstance(error, RuntimeError):
        return _import("trainers.run.processes.explain_lost_process")(error) or ""
    if isinstance(error, InputError):
        return str(error)  # its lines are not joined, because they may form a table
    if isinstance(error, BrokenPipeError) and sys.stdout is not None:
        sys.stdout.flush()  # raises again if stdout is the closed pipe
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
        return "a disk is full. Free some space, and run the same command again."
    if isinstance(error, OSError | httpx.TransportError) or _is_from_reader(error):
        return join_lines(error) or type(error).__name__
    return ""


def _is_from_reader(error: Exception) -> bool:
    """Whether one of `READERS` defines the error's class, or raised the error as a ValueError."""
    modules = [type(error).__module__]
    if isinstance(error, ValueError | EOFError):
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        modules.append(frames[-1].f_globals["__name__"])
    return any(module.startswith(READERS) for module in modules)


def _import(name: str) -> Any:
    """Imports a class or function by its name in the package."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"snugbert.{module}"), attribute)


def _is_one_of_several() -> bool:
    return dist.is_available() and dist.is_initialized()


def _leave_process_group() -> None:
    """Ends the threads that connect the processes of a run. Without this, some processes abort on exit."""
    if _is_one_of_several():
        gc.collect()  # frees the model first, because DDP's threads use the group
        dist.destroy_process_group()


def abandon_process_group(status: int) -> None:
    """Ends a failed process at once if its run has several. On a normal exit, gloo could make all wait forever."""
    if _is_one_of_several():
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(status)
