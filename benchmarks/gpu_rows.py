"""Measures rows one by one into a file that survives a crash. For the pieces of `benchmarks/gpu.sh`."""

import argparse
import gc
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_table import NOT_MEASURED, read_rows

Rows = Iterable[tuple[str, Callable[[], dict[str, Any]]]]  # names, and functions that measure
logger = logging.getLogger("snugbert.benchmarks.gpu")


def parse_piece(parser: argparse.ArgumentParser, pieces: Iterable[str], argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of a piece, and chooses the `device`.

    Args:
        parser: has the script's own arguments, among them `--rehearse`.
        pieces: names of the script's pieces.
        argv: the arguments.

    Raises:
        SystemExit: there is no GPU.
    """
    parser.add_argument("piece", choices=[*pieces])
    parser.add_argument(
        "--deadline", type=float, default=float("inf"), help="no row starts after this time.monotonic()"
    )
    args = parser.parse_args(argv)
    args.device = "cpu" if args.rehearse else "cuda"
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU. --rehearse tests this script on a CPU.")
    return args


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Appends a line to a file of rows. A crash may have left half a line before it."""
    with path.open("a") as file:
        file.write(f"\n{json.dumps(row)}\n")


def measure_rows(piece: str, rows: Rows, path: Path, deadline: float) -> None:
    """Measures the rows of a piece that are not in its file.

    A row is recorded before it starts, so a row that hangs or crashes the process remains as "did not finish". A row
    that fails records its error, and the next row runs.

    Args:
        rows: what to measure, in this order.
        deadline: no row starts after this `time.monotonic()`.

    Raises:
        SystemExit: the GPU refuses further work after an error. A new process can continue.
    """
    done = {name for name, row in read_rows(path).items() if row.get("error") != NOT_MEASURED}
    rows = [(name, measure) for name, measure in rows if name not in done]
    for name, _ in rows:
        append_row(path, {"row": name, "error": NOT_MEASURED})
    for name, measure in rows:
        start = time.monotonic()
        if start > deadline:
            return
        append_row(path, {"row": name, "error": "did not finish"})
        try:
            row = measure()
        except Exception as error:
            logger.exception("%s: %s", piece, name)
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        seconds = time.monotonic() - start
        append_row(path, {"row": name, **row, "measured_in_seconds": seconds})
        print(f"{piece}: {name}: {row.get('error', 'measured')}, {seconds:.1f} s", flush=True)
        if "CUDA error" in row.get("error", ""):
            raise SystemExit(f"{piece}: a new process continues after: {row['error']}")
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a GPU
