"""Measures SnugBERT and stock BERT on one GPU in at most 8.5 minutes. Start it with `benchmarks/gpu.sh quick`.

    benchmarks/gpu.sh quick                                # all pieces, then the table
    benchmarks/gpu.sh quick steps                          # one piece, which may take the whole time
    benchmarks/gpu.sh quick --plan                         # the pieces and their seconds
    benchmarks/gpu.sh quick --output_dir gpu-results       # the folder of the results

`gpu.py` describes the pieces. Each piece runs in a process of its own, which is killed when the piece's time is over.
Unused time goes to the next piece. The results of a killed piece are kept. A piece that crashes continues with its
next row in a new process.

The output folder has 7 files: the rows of each piece, `log.txt`, `table.md`, and `compiler-cache.zip`, which contains
what torch.compile and Triton compiled, in less than 16 MiB. If the cache is too large, single kernels are dropped
first. Pass the zip file as --compiler_cache, or put it into build/, and the next call compiles less. Reading the file
runs code in it, so use only a file that you made. The table and the cache are written after each piece.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from gpu_table import format_results

# Seconds of each piece, each with 17 to 24 s to start Python. On an H100 without a cache, correctness took 98 s, steps
# without rivals 107, and three tasks of lengths 101. The rest is an estimate. Correctness comes before speed.
PLAN = {"correctness": 95, "steps": 220, "lengths": 75, "processes": 85}
FINISHING = 10  # seconds for the compiler's cache and the table, all together
ENDING = 5  # seconds before the end of a piece, after which no row starts
SHORTEST = 15  # seconds that a new process needs to measure anything
REPOSITORY = Path(__file__).parents[1]
CACHE_FILE = "compiler-cache.zip"
NEEDED = ("datasets", "dill", "multiprocess", "sentencex")  # besides torch and transformers; see gpu.sh
CACHE_BYTES = 15 * 2**20  # of 16 MiB; the rest is for the zip's table of contents


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU, to test this script")
    add_driver_arguments(parser, PLAN)
    return parser.parse_args(argv)


def add_driver_arguments(parser: argparse.ArgumentParser, pieces: Iterable[str]) -> None:
    """Adds the arguments of a script that runs pieces."""
    parser.add_argument("piece", nargs="?", choices=[*pieces], help="one piece; default: all")
    parser.add_argument("--plan", action="store_true", help="print the pieces and their seconds, and measure nothing")
    parser.add_argument(
        "--compiler_cache", type=Path, default=REPOSITORY / "build" / CACHE_FILE, help="of an earlier run"
    )


def format_plan(plan: dict[str, int], finishing: int) -> str:
    """Formats the pieces and their seconds."""
    steps = plan | {"table, compiler's cache": finishing}
    lines = [f"{seconds:4} s  {name}" for name, seconds in steps.items()]
    return "\n".join([*lines, f"{sum(steps.values()):4} s"])


def run_pieces(args: argparse.Namespace, cache: Path) -> None:
    """Runs the pieces in order, and saves the results after each. Earlier results of these pieces are removed."""
    start = deadline = time.monotonic()
    (args.output_dir / "log.txt").unlink(missing_ok=True)
    for piece in [args.piece] if args.piece else PLAN:
        (args.output_dir / f"{piece}.jsonl").unlink(missing_ok=True)
        deadline += sum(PLAN.values()) if args.piece else PLAN[piece]
        command = [str(Path(__file__).with_name("gpu.py")), piece, "--deadline", str(deadline - ENDING)]
        command += ["--output_dir", str(args.output_dir)] + ["--rehearse"] * args.rehearse
        run_piece(piece, command, args.output_dir / f"{piece}.jsonl", deadline, cache)
        save_results(args.output_dir, cache, partial(format_results, args.output_dir, PLAN), time.monotonic() - start)


def save_results(folder: Path, cache: Path, make_table: Callable[[], str], seconds: float) -> None:
    """Writes the table and the compiler's cache. Prints an error if that fails, because later pieces must run."""
    try:
        (folder / "table.md").write_text(f"{make_table()}\n{seconds:.0f} s in total.\n")
        pack_cache(cache, folder / CACHE_FILE)
    except (Exception, SystemExit):
        traceback.print_exc()


def run_piece(
    piece: str, command: list[str], path: Path, deadline: float, cache: Path, log: IO[str] | None = None
) -> None:
    """Runs a piece in a process of its own until a deadline on the clock `time.monotonic`.

    A new process continues after a crash, unless the crashed one added no row.

    Args:
        piece: name of the piece, for messages.
        command: script and arguments.
        path: the file to which the script adds rows.
        deadline: when the process is killed.
        cache: the compiler's cache.
        log: a file for the output. None: the terminal.
    """
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TEARDOWN_CUPTI": "0",  # removing the profiler's hooks can break CUDA graphs
    }
    while (left := deadline - time.monotonic()) > SHORTEST:
        size = path.stat().st_size if path.exists() else 0
        status = run_until([sys.executable, *command], environment, left, log)
        if status == 0:
            return
        print(f"{piece}: {'the time is over' if status is None else f'exit status {status}'}", flush=True)
        if not path.exists() or path.stat().st_size == size:
            return


def run_until(
    command: list[str], environment: dict[str, str], seconds: float, log: IO[str] | None = None
) -> int | None:
    """Runs a command, and kills it and its processes after some seconds. Returns its exit status; None if killed."""
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pack_cache(folder: Path, file: Path) -> None:
    """Packs the compiler's cache into less than 16 MiB. If it is too large, single kernels are dropped first."""

    def value(path: Path) -> tuple[int, int]:
        # Graphs contain their kernels, so kernels on their own matter only where torch did not save a graph.
        first = path.relative_to(folder).parts[0]
        order = 0 if first in ("fxgraph", "aotautograd") else 1 if path.suffix == ".best_config" else 2
        return order, path.stat().st_size

    complete, file = file, file.with_suffix(".tmp")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        packed = 0
        for path in sorted((path for path in folder.rglob("*") if path.is_file()), key=value):
            if packed + path.stat().st_size > CACHE_BYTES:
                continue
            archive.write(path, path.relative_to(folder))
            packed += archive.infolist()[-1].compress_size
    file.replace(complete)


def unpack_cache(file: Path, folder: Path) -> None:
    """Unpacks a file of [`pack_cache`], if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    if file.exists():
        try:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(folder)
        except (OSError, zipfile.BadZipFile) as error:
            print(f"warning: {file} is not used: {error}", flush=True)


def run_and_print(
    packages: Sequence[str], run_pieces: Callable[[argparse.Namespace, Path], None], args: argparse.Namespace
) -> None:
    """Runs the pieces with the compiler's cache of an earlier call, and prints the table.

    Raises:
        SystemExit: some of the needed packages are missing.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise SystemExit(f"error: missing packages: {', '.join(missing)}. benchmarks/gpu.sh says how to bring them.")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    cache = REPOSITORY / "build/compiler-cache"
    unpack_cache(args.compiler_cache, cache)
    run_pieces(args, cache)
    table = args.output_dir / "table.md"
    print(f"\n{table.read_text() if table.exists() else 'No results.'}", flush=True)


def main(argv: list[str]) -> None:
    """Runs the pieces and prints the table, or prints the plan."""
    args = parse_arguments(argv)
    if args.plan:
        print(format_plan(PLAN, FINISHING))
    else:
        run_and_print(NEEDED, run_pieces, args)


if __name__ == "__main__":
    main(sys.argv[1:])
