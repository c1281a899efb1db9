"""`snugbert <command> ...`: finds the command and hands over its arguments.

A command is a function `main(argv)` in a module of its own, imported only when it is called.
"""

import os
import sys
from importlib import import_module
from typing import Any

from snugbert import __version__

# command -> (module with `main(argv)`, one line of help)
COMMANDS = {
    "vocabulary": ("snugbert.trainers.vocabulary.command", "train a WordPiece vocabulary on text files"),
    "prepare": (
        "snugbert.trainers.pretraining.prepare_command",
        "tokenize text once, to pretrain on it many times",
    ),
    "pretrain": ("snugbert.trainers.pretraining.command", "pretrain with masked tokens and next sentences"),
    "glue": (
        "snugbert.trainers.glue.command",
        "fine-tune and score on classification of sentences and sentence pairs",
    ),
    "squad": ("snugbert.trainers.squad.command", "fine-tune and score on answering questions from a text"),
    "ner": ("snugbert.trainers.ner.command", "fine-tune and score on named entities"),
    "convert": ("snugbert.convert", "checkpoints from and to BERT, from DistilBERT and from TensorFlow"),
    "demo": ("snugbert.demo", "a page to try a checkpoint on"),
}


def usage() -> str:
    """The text of `snugbert --help`."""
    lines = [f"  {command:<12}{text}" for command, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: snugbert <command> [arguments]",
            "",
            *lines,
            "",
            "`snugbert <command> --help` lists a command's arguments.",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs `snugbert` with `argv` (default: the process's own) and returns its exit status.

    0: done; 2: something the user gave cannot be used, said in one sentence; 130: interrupted; 141: the reader
    closed the pipe, as `| head` does.
    """
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None:  # it may have been closed from the start
                sys.stdout.flush()
    except OSError as error:
        # The interpreter flushes once more when it exits, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"snugbert: error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"snugbert {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        print(
            f"snugbert: error: unknown command {command!r}; the commands are {', '.join(COMMANDS)}.", file=sys.stderr
        )
        return 2

    from huggingface_hub.utils import httpx
    from safetensors import SafetensorError

    from snugbert.errors import InputError

    try:
        module = import_module(COMMANDS[command][0])
    except ModuleNotFoundError as error:
        extra = "demo" if command == "demo" else "train"
        problem = f"the package {error.name} is not installed. Run: pip install 'snugbert[{extra}]'"
        print(f"snugbert {command}: error: {problem}", file=sys.stderr)
        return 2
    try:
        module.main(rest)
        _leave_process_group()
    # SafetensorError: a disk that is full; TransportError: a network that was lost.
    except (InputError, OSError, SafetensorError, httpx.TransportError) as error:
        if isinstance(error, BrokenPipeError) and sys.stdout is not None:
            sys.stdout.flush()  # raises again if stdout is the closed pipe
        message = " ".join(str(error).split())  # the Hub's own have several lines
        print(f"snugbert {command}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"\nsnugbert {command}: interrupted; what was written stays. The same command goes on with a corpus, a "
            "sweep or a suite; training goes on from its last checkpoint with --resume_from_checkpoint true.",
            file=sys.stderr,
        )
        return 130
    return 0


def _leave_process_group() -> None:
    """Ends the threads that connect several processes. Sometimes they abort a process that exits without it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
