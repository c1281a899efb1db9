"""Runs `snugbert pretrain` with a dictionary of arguments."""

from snugbert_cli import main as snugbert_command


def run(arguments: dict, **more) -> int:
    arguments = {name: value for name, value in (arguments | more).items() if value is not None}
    return snugbert_command(["pretrain", *(text for name, x in arguments.items() for text in (f"--{name}", str(x)))])
