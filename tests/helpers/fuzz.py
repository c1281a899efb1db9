"""Reads mutated files through the readers of the commands. Each must be read, or refused with one sentence.

    python tests/helpers/fuzz.py --files 3000 --seed 1
    python tests/helpers/fuzz.py corpus --number 17    # only one file

Defects are: a message of many lines, or without a file, a folder or a flag; a traceback; a signal; a file that
takes too long or too much memory. What is read must be plausible, such as token ids inside the vocabulary.
"""

import argparse
import gc
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from fuzz_formats import FORMATS, make_small
from mutations import mutate
from safetensors import SafetensorError

from snugbert.errors import COMMAND, InputError

SECONDS, PATIENCE = 10, 60  # of computing and of waiting, for a file
MEGABYTES = 300  # that a file of a few kilobytes may take
REFUSALS = (InputError, OSError, SafetensorError)  # a command prints these without a traceback


def find_defects(name: str, numbers: Iterable[int], seed: int = 1) -> int:
    """Reads mutated files of a format, and prints the defects. Returns 1 if there are any.

    The seed and the number determine a file. Each file is named before it is read, because it may end the process.
    """
    make_small()
    torch.set_num_threads(1)
    gc.freeze()  # Trainer requests garbage collection
    os.environ[COMMAND] = "fuzz"  # messages name flags
    sys.stdout.reconfigure(errors="backslashreplace")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        original, folder = Path(root, "original"), Path(root, "folder")
        folder.mkdir()
        write, patterns, read = FORMATS[name]
        write(folder)
        folder.rename(original)
        files = [file for pattern in patterns for file in sorted(original.glob(pattern))]
        files = [file.relative_to(original) for file in files if file.is_file() and file.suffix != ".py"]

        def restore() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(original, folder)

        for file in files:  # what undamaged files load would otherwise seem to be taken by the first damaged file
            restore()
            read(folder, folder / file)
        for number in numbers:
            restore()
            rng = random.Random(f"{seed} {number}")
            file = rng.choice(files)
            (folder / file).write_bytes(mutate((original / file).read_bytes(), file.name, rng))
            print(f"\r{name} {number} {file}", end=" ", flush=True)
            outcome, detail = _read_file(read, folder, folder / file)
            counts[outcome] += 1
            if outcome == "defect":
                print(detail)
    print(f"\r{name}:", *(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["defect"] > 0)


def _read_file(read: Callable[[Path, Path], Any], folder: Path, file: Path) -> tuple[str, str]:
    """Returns "read", "refused" or "defect", and what is wrong."""
    outcome, memory, start = "read", _peak_megabytes(), time.process_time()
    signal.alarm(PATIENCE)
    try:
        with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
            read(folder, file)
    except REFUSALS as error:
        outcome, text = "refused", str(error)
        has_place = isinstance(error, OSError) or any(each in text for each in (file.name, str(file.parent), "--"))
        # A name in a mutated file can contain a line break, and changed settings are a table.
        if not has_place or (text.count("\n") > 2 and "has other settings" not in text):
            return "defect", f"{type(error).__name__}: {text}"
    except BaseException:
        return "defect", traceback.format_exc()
    finally:
        signal.alarm(0)
    seconds, megabytes = time.process_time() - start, _peak_megabytes() - memory
    if seconds > SECONDS or megabytes > MEGABYTES:
        return "defect", f"{seconds:.0f} s, {megabytes:.0f} MB"
    return outcome, ""


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Reads files of each format in a process of its own. Returns how many formats have defects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("formats", nargs="*", default=[*FORMATS])
    parser.add_argument("--files", type=int, default=3000, help="number of mutated files of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, help="read only this file")
    args = parser.parse_args()
    numbers = range(args.files) if args.number is None else [args.number]
    failed = 0
    for name in args.formats:
        read = lambda name=name: sys.exit(find_defects(name, numbers, args.seed))  # noqa: E731
        process = get_context("fork").Process(target=read)
        process.start()
        process.join()
        if process.exitcode != 0:
            failed += 1
            print(f"{name}: exit status {process.exitcode}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
