"""Formats what the benchmarks print: machine, command and tables."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any


def describe_run(script: str, argv: Sequence[str], machine: Mapping[str, Any]) -> str:
    """Formats the machine and the command of a benchmark. Its tables follow."""
    return f"{format_machine(machine)}\n\n    python benchmarks/{Path(script).name} {shlex.join(argv)}\n"


def format_machine(machine: Mapping[str, Any]) -> str:
    """Formats the hardware and the versions."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def format_table(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Formats a Markdown table; nothing without lines."""
    lines = list(lines)
    return "\n".join([format_header(header), *map(format_line, lines)]) if lines else ""


def format_header(header: Iterable[str]) -> str:
    """Formats the header of a Markdown table whose lines are printed later, one by one."""
    header = list(header)
    return f"{format_line(header)}\n{format_line(['---'] * len(header))}"


def format_line(cells: Iterable[str]) -> str:
    """Formats a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def format_median(values: Sequence[float], digits: int = 2) -> str:
    """Formats the median, with the minimum and the maximum in parentheses."""
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"
