"""Reads mutated files through the readers of the commands. Each must be read, or refused with one sentence.

    python tests/helpers/fuzz.py --files 3000 --seed 1
    python tests/helpers/fuzz.py --format corpus --seed 1 --number 17    # one file, with its traceback

Defects are: a message of many lines, or without a file, a folder or a flag; a traceback; a signal; a file that
takes too long or too much memory. What is read must be plausible, such as token ids inside the vocabulary. Each batch
of files is read by a forked process.
"""

import argparse
import contextlib
import gc
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fuzz_formats import FORMATS, make_small
from mutations import mutate
from safetensors import SafetensorError

from snugbert.errors import InputError

BATCH = 100  # files for each process
SECONDS, PATIENCE = 10, 60  # of computing and of waiting, for a file
MEGABYTES = 300  # that a file of a few kilobytes may take
OUTCOMES = ("read", "refused", "message", "traceback", "signal", "hang", "memory")
# A command prints these without a traceback.
REFUSALS = (InputError, OSError, SafetensorError)


class Result(NamedTuple):
    """What happened to a file."""

    number: int
    outcome: str
    file: str
    detail: str = ""


def fuzz(name: str, numbers: Sequence[int], seed: int) -> list[Result]:
    """Reads mutated files of a format, and returns what happened to each. The seed and the number determine a file."""
    results: list[Result] = []
    make_small()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        # In another process: a fork of this one would lack the threads that tokenizing starts, and wait for them.
        writer = get_context("fork").Process(target=FORMATS[name].write, args=(folder,))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        contents = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        chosen = [file for pattern in FORMATS[name].patterns for file in sorted(folder.glob(pattern))]
        # No command opens the code of a model.
        chosen = [file.relative_to(folder) for file in chosen if file.is_file() and file.suffix != ".py"]
        while len(results) < len(numbers):
            batch = numbers[len(results) : len(results) + BATCH]
            results += _read_batch(name, batch, seed, folder, contents, chosen)
    return results


def _read_batch(
    name: str, numbers: Sequence[int], seed: int, folder: Path, contents: Mapping[Path, bytes], chosen: Sequence[Path]
) -> list[Result]:
    """Reads files in a forked process, until one ends it."""
    answers, questions = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        status = 1
        try:
            _read_files(name, numbers, seed, folder, contents, chosen, questions)
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    os.close(questions)
    with os.fdopen(answers) as stream:
        results = [Result(*json.loads(line)) for line in stream]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status > 0:
        raise RuntimeError(f"{name}, after file {results[-1].number if results else None}: the reading process failed")
    if status < 0:
        outcome = "hang" if -status in (signal.SIGPROF, signal.SIGALRM) else "signal"
        file = str(_mutate(numbers[len(results)], seed, contents, chosen)[0])
        results.append(Result(numbers[len(results)], outcome, file, signal.Signals(-status).name))
    return results


def _mutate(number: int, seed: int, contents: Mapping[Path, bytes], chosen: Sequence[Path]) -> tuple[Path, bytes]:
    generator = random.Random(f"{seed} {number}")
    file = generator.choice(chosen)
    return file, mutate(contents[file], file.name, generator)


def _read_files(
    name: str,
    numbers: Sequence[int],
    seed: int,
    folder: Path,
    contents: Mapping[Path, bytes],
    chosen: Sequence[Path],
    answers: int,
) -> None:
    verbose = len(numbers) == 1
    if not verbose:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
    for file in chosen:  # undamaged files are read. What this loads would otherwise seem to be taken by the first file
        _restore(folder, contents)
        FORMATS[name].read(folder, folder / file)
    for number in numbers:
        _restore(folder, contents)
        file, data = _mutate(number, seed, contents, chosen)
        (folder / file).write_bytes(data)
        before = _peak_megabytes()
        _set_alarms(SECONDS, PATIENCE)
        outcome, detail = _read_file(FORMATS[name].read, folder, folder / file, verbose)
        _set_alarms(0, 0)
        taken = _peak_megabytes() - before
        if taken > MEGABYTES:
            outcome, detail = "memory", f"{taken:.0f} MB, {outcome} {detail}"
        os.write(answers, f"{json.dumps([number, outcome, str(file), detail])}\n".encode())
        if outcome == "memory":  # the peak of this process says nothing about the next file
            return


def _read_file(read: Callable[[Path, Path], Any], folder: Path, file: Path, verbose: bool) -> tuple[str, str]:
    try:
        read(folder, file)
    except REFUSALS as error:
        text = str(error)
        has_place = isinstance(error, OSError) or any(each in text for each in (file.name, str(file.parent), "--"))
        # A name in a mutated file can contain a line break, and changed settings are a table.
        is_clear = has_place and (text.count("\n") < 3 or "has other settings" in text)
        return "refused" if is_clear else "message", f"{type(error).__name__}: {text}"
    except BaseException as error:
        if verbose:
            traceback.print_exc()
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/snugbert/" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        return "traceback", f"{place} {type(error).__name__}: {str(error)[:200]}"
    return "read", ""


def _restore(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Makes the files of a folder undamaged again, and removes all others."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()
        elif path.relative_to(folder) not in contents:
            path.unlink()
    for name, data in contents.items():
        file = folder / name
        if not file.exists() or file.stat().st_size != len(data) or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _set_alarms(seconds: float, patience: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, patience)


# --- the table --------------------------------------------------------------------------------------------------


def find_defects(name: str, files: int, seed: int = 1) -> int:
    """Prints a row of the table, and the defects below it. Returns 1 if there are any."""
    start = time.monotonic()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # Trainer requests garbage collection
    results = fuzz(name, range(files), seed)
    counts = Counter(result.outcome for result in results)
    print(f"{name:<12}{len(results):>7}" + "".join(f"{counts[outcome]:>10}" for outcome in OUTCOMES), end="")
    print(f"{time.monotonic() - start:>10.0f}")
    assert counts["refused"], "no file was refused"
    defects = [result for result in results if result.outcome not in ("read", "refused")]
    for result in defects:
        print(f"  {result.number} {result.outcome} {result.file} {result.detail}")
    return int(bool(defects))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=3000, help="number of mutated files of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these formats")
    parser.add_argument("--number", type=int, help="read only this file, and print its traceback")
    args = parser.parse_args()
    if args.number is not None:
        for name in args.format or FORMATS:
            print(*fuzz(name, [args.number], args.seed))
        return
    print(f"{'format':<12}{'files':>7}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES) + "   seconds")
    sys.exit(sum(find_defects(name, args.files, args.seed) for name in args.format or FORMATS))


if __name__ == "__main__":
    main()
