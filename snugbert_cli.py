"""The `snugbert` command line: runs the command that was typed.

This module is not part of the package, because importing the package imports torch and transformers, which takes
seconds. So `snugbert --help`, mistyped commands and flags, and shell completion answer at once.
"""

import gc
import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from snugbert_arguments import did_you_mean, find_mistake, read_flags


class Command(NamedTuple):
    """A command: a module with a function `main(argv)`. It is imported when the command runs.

    Fine-tuning commands of tasks without arguments of their own share the module `task_command`, whose `main` also
    takes the name of the command and the head of its models.
    """

    module: str
    extra: str  # what to install: snugbert[extra]
    summary: str
    head: str = ""


TASK_COMMAND = "snugbert.trainers.finetuning.task_command"

COMMANDS = {
    "vocabulary": Command(
        "snugbert.vocabulary.vocabulary_arguments", "train", "train a tokenizer on text, or extend one"
    ),
    "prepare": Command("snugbert.trainers.pretraining.prepare", "train", "tokenize a corpus once, for many runs"),
    "pretrain": Command(
        "snugbert.trainers.pretraining.pretraining_arguments", "train", "pretrain a model on a corpus"
    ),
    "glue": Command(
        "snugbert.trainers.finetuning.glue_command", "train", "fine-tune and score a classifier for texts or pairs"
    ),
    "squad": Command("snugbert.trainers.finetuning.squad_command", "train", "fine-tune and score question answering"),
    "ner": Command(
        "snugbert.trainers.finetuning.ner_command", "train", "fine-tune and score named-entity recognition"
    ),
    "swag": Command(TASK_COMMAND, "train", "fine-tune and score multiple choice", "ForMultipleChoice"),
    "predict": Command("snugbert.prediction.predict_command", "train", "predict every row of a file of any size"),
    "evaluate": Command(
        "snugbert.evaluation.evaluation_arguments", "train", "score a masked language model without fine-tuning"
    ),
    "convert": Command(
        "snugbert.checkpoints.conversion", "train", "convert checkpoints of BERT and its relatives, and back"
    ),
    "export": Command(
        "snugbert.export.export_command", "train", "export a model to ONNX, OpenVINO, CTranslate2 or BERT"
    ),
    "demo": Command("snugbert.demo.serve", "demo", "try a checkpoint on a web page"),
}

# The modules that the extras `train` and `demo` install.
EXTRA_MODULES = (
    "accelerate",
    "datasets",
    "evaluate",
    "gradio",
    "joblib",
    "matplotlib",
    "psutil",
    "pyarrow",
    "scipy",
    "sentencex",
    "seqeval",
    "sklearn",
    "starlette",
    "tqdm",
)


def format_usage() -> str:
    """Returns the text of `snugbert --help`."""
    return "\n".join(
        [
            "usage: snugbert <command> [arguments]",
            "",
            *(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items()),
            "",
            "snugbert <command> --help   lists the arguments of a command",
            "snugbert --version          prints the version",
        ]
    )


def read_version() -> str:
    """Reads `snugbert.__version__` from the file, without importing the package."""
    package = find_spec("snugbert")
    assert package is not None and package.origin is not None
    match = re.search(r'^__version__ = "(.+)"', Path(package.origin).read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def main(argv: list[str] | None = None) -> int:
    """Runs `snugbert` with `argv` (default: `sys.argv[1:]`).

    Returns:
        The exit status. 0: done. 2: an error in the input, printed as one message. 130 and 143: stopped by SIGINT
        (Ctrl-C) or SIGTERM. 141: the reader of the output closed the pipe, as `| head` does.
    """
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:  # None if it was closed before the process started
                sys.stdout.flush()
    except OSError as error:
        # Python flushes again on exit and would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        return _fail("snugbert", f"cannot write the output: {error.strerror}.")


def _complete() -> None:
    """Completes commands, flags and file names for the shell, and exits. docs/reference/command-line.md sets it up."""
    import argparse

    import argcomplete

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        arguments = commands.add_parser(name, add_help=False)
        for flag in read_flags(command.module):
            arguments.add_argument(flag, nargs="*")
        arguments.add_argument("paths", nargs="*")
    argcomplete.autocomplete(parser)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(format_usage())
        return 0
    if arguments[0] == "--version":
        print(f"snugbert {read_version()}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        return _fail("snugbert", f"unknown command {name!r}.{hint} Commands: {', '.join(COMMANDS)}.")
    try:
        return _run_command(name, rest)
    except KeyboardInterrupt:
        print(
            f"\nsnugbert {name}: interrupted. Partial output was kept. Run the same command again to continue; "
            "for training add --resume_from_checkpoint true.",
            file=sys.stderr,
        )
        return 130


def _run_command(name: str, arguments: list[str]) -> int:
    if sys.stderr is None or not sys.stderr.isatty():  # no progress bars in log files
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

    program = f"snugbert {name}"
    if mistake := find_mistake(COMMANDS[name].module, arguments):
        help_hint = f" `{program} --help` lists the arguments." if mistake.startswith("unknown argument") else ""
        return _fail(program, mistake + help_hint)
    # These take seconds to import.
    from huggingface_hub.utils import httpx
    from safetensors import SafetensorError

    from snugbert.errors import InputError, RunStopped

    try:
        command = COMMANDS[name]
        import_module(command.module).main(arguments, *([name, command.head] if command.head else []))
        _leave_process_group()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA_MODULES:
            raise
        install = f"pip install 'snugbert[{COMMANDS[name].extra}]'"
        return _fail(program, f"the package {error.name} is not installed. Run: {install}")
    # SafetensorError: probably a full disk. TransportError: the network failed.
    except (InputError, OSError, SafetensorError, httpx.TransportError) as error:
        if isinstance(error, BrokenPipeError) and sys.stdout is not None:
            sys.stdout.flush()  # raises again if stdout is the closed pipe
        return _fail(program, " ".join(str(error).split()))  # Hub errors have several lines
    except RunStopped as stop:
        _leave_process_group()
        return 128 + stop.number
    return 0


def _fail(program: str, message: str) -> int:
    print(f"{program}: error: {message}", file=sys.stderr)
    return 2


def _leave_process_group() -> None:
    """Ends the threads that connect the processes of a run. Without this, some processes abort on exit."""
    if "torch.distributed" not in sys.modules:
        return
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        gc.collect()  # frees the model first, because DDP's threads use the group
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
