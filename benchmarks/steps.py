"""Steps of long benchmarks: each runs a command in a new process and is skipped once it is finished."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pretraining_ladder import run_logged

from snugbert.errors import InputError
from snugbert.files import write_atomically
from snugbert.reports.intervals import estimate_mean_interval


def check_settings(output_dir: Path, settings: Mapping[str, Any]) -> None:
    """Records the settings of a new benchmark, or checks that they equal the recorded ones.

    Args:
        output_dir: folder of the benchmark.
        settings: arguments that finished steps depend on, by name.

    Raises:
        InputError: they differ.
    """
    file = output_dir / "settings.json"
    current = json.loads(json.dumps(dict(settings), default=str))
    recorded = json.loads(file.read_text()) if file.exists() else current
    if changed := [name for name in current if current[name] != recorded.get(name)]:
        raise InputError(
            f"{output_dir} has results with other settings ({', '.join(changed)}). Choose another folder."
        )
    if not file.exists():
        output_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(current))


def run_snugbert(command: Sequence[str], log: Path) -> None:
    """Runs a `snugbert` command in a new process, whose output goes to the file `log`.

    Raises:
        SystemExit: the command failed or was stopped.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    run_logged([sys.executable, "-m", "snugbert", *command], log, title=str(log.parent))


def format_seeds(values: Sequence[float], digits: int) -> str:
    """Formats the mean over seeds, the standard deviation and the 95 % interval of the mean (Student's t)."""
    text = f"{mean(values):.{digits}f}"
    if len(set(values)) == 1:
        return text
    interval = estimate_mean_interval(values)
    ends = "" if interval is None else f" ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
    return f"{text} ± {stdev(values):.{digits}f}{ends}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats a Markdown table. The first row is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
