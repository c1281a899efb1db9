"""`--help` of every command: short, each argument once, with its default. `--help-all`: every argument."""

import re

import pytest

from snugbert_cli import COMMANDS, main


def print_help(command: str, flag: str, capsys) -> list[str]:
    with pytest.raises(SystemExit) as exit:
        main([command, flag])
    assert exit.value.code in (0, None)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_lists_each_argument_once(command, capsys):
    lines = print_help(command, "--help", capsys)
    assert len(lines) <= 75 and max(map(len, lines)) <= 119
    assert lines[0].startswith(f"usage: snugbert {command} ")
    example = next(line for line in lines if line.startswith("example: "))
    assert example.startswith(f"example: snugbert {command} ")
    assert "--help-all" in lines[-1]
    names = [line.split()[0] for line in lines if re.match(r"  [-\w]", line)]
    assert len(set(names)) == len(names) and not any(name.startswith("--no_") for name in names if name != "--no_nsp")

    everything = print_help(command, "--help-all", capsys)
    listed = [line.split()[0] for line in everything if re.match(r"  [-\w]", line)]
    assert len(set(listed)) == len(listed) and set(names) <= set(listed)
    assert {"--config", "--help", "--help-all"} <= set(listed)
    assert "SUPPRESS" not in "\n".join(everything)


def test_effective_defaults(capsys):
    text = {line.split()[0]: line for line in print_help("glue", "--help", capsys) if line.startswith("  --")}
    assert text["--num_train_epochs"].endswith("Default: 3.") and "--adam_beta1" not in text
    assert text["--bf16"].endswith("Default: true on Ampere and newer GPUs.")
