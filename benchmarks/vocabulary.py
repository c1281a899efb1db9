"""Time and memory of training a vocabulary, beside the tokenizers library's own trainer on the same text.

    python benchmarks/vocabulary.py --train_file 'books/train-*.txt.gz' --validation_file books/validation.txt.gz \
        --init bert-base-uncased

The library gets the same lines, normalizer, pre-tokenizer and size, and `limit_alphabet` or the 256 bytes to begin
with; both may use all cores. Each run is a process of its own, from opening the text to a tokenizer in memory; imports
are not in it. Sides take turns within a round, who goes first alternates, and a ratio is that of two runs of a round.
CPU seconds are those of all threads, and say more where others use the machine, too.

Memory is the most that was resident during the run less what was before. Pieces a word, of words as the tokenizer's
pre-tokenizer makes them, are counted on the validation text. "Same" says whether all runs of a side, each of them with
another seed of Python's hashes, ended with the same tokenizer.

With `--init`, another row says the same of learning more pieces for that tokenizer, which the library has nothing for.
"""

import argparse
import hashlib
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import tokenizers
from side_by_side import machine_of, positive
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError
from snugbert.models import TokenizerArguments, load_tokenizer
from snugbert.trainers.documents import find_files, read_lines
from snugbert.trainers.vocabulary.extension import extend_tokenizer, learn_extension, tokens_per_word
from snugbert.trainers.vocabulary.learning import (
    ALPHABET_SIZE,
    KINDS,
    SPECIAL_TOKENS,
    Kind,
    count_words,
    learn_tokens,
    make_tokenizer,
)

SIDES = ("ours", "library")
INIT = "init"  # the name of its row
LINES_AT_ONCE = 1000  # in a batch that the library is given, as its documentation does


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", required=True, help="text, as for `snugbert vocabulary`")
    parser.add_argument("--validation_file", nargs="+", required=True, help="other text, to count pieces of")
    parser.add_argument("--vocab_size", type=positive, default=30522)
    parser.add_argument("--init", help="a tokenizer to go on from, to the size below")
    parser.add_argument("--init_vocab_size", type=positive, default=34522)
    parser.add_argument("--rounds", type=positive, default=3)
    # What a process of its own does.
    parser.add_argument("--run", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def train(row: str, side: str, args: argparse.Namespace) -> PreTrainedTokenizerBase:
    """The tokenizer that a side makes of the text."""
    lines = read_lines(find_files(args.train_file))
    if row == INIT:
        old = load_tokenizer(TokenizerArguments(tokenizer_name=args.init))
        words = count_words(lines, old, show_progress=False)
        extension = learn_extension(words, old, args.init_vocab_size - len(old), show_progress=False)
        return extend_tokenizer(old, extension, args.init)
    kind: Kind = row  # type: ignore[assignment]
    tokenizer = make_tokenizer(kind)
    if side == "ours":
        words = count_words(lines, tokenizer, show_progress=False)
        return make_tokenizer(kind, *learn_tokens(words, args.vocab_size, kind=kind, show_progress=False))
    options: dict[str, Any] = {"special_tokens": list(SPECIAL_TOKENS), "vocab_size": args.vocab_size}
    options |= {"min_frequency": 2, "show_progress": False}
    if kind == "wordpiece":
        trainer: Any = WordPieceTrainer(limit_alphabet=ALPHABET_SIZE, **options)
    elif kind == "bpe":
        trainer = BpeTrainer(limit_alphabet=ALPHABET_SIZE, continuing_subword_prefix="##", **options)
    else:
        trainer = BpeTrainer(initial_alphabet=ByteLevel.alphabet(), **options)
    batches = iter(lambda: list(islice(lines, LINES_AT_ONCE)), [])
    tokenizer.backend_tokenizer.train_from_iterator(batches, trainer)
    return tokenizer


def run(row: str, side: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds, those of all cores, bytes of memory, pieces a word of held-out text, and a digest of the tokenizer."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    start, cpu_start = time.perf_counter(), time.process_time()
    tokenizer = train(row, side, args)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    held_out = count_words(read_lines(find_files(args.validation_file)), tokenizer, show_progress=False)
    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    pieces = tokens_per_word(held_out, tokenizer)
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak, "pieces": pieces}
    return result | {"digest": digest, "size": len(tokenizer)}


def run_alone(row: str, side: str, round_: int, args: argparse.Namespace, argv: list[str]) -> dict[str, Any]:
    """[`run`] in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, *argv, "--run", row, side],
        env=os.environ | {"PYTHONHASHSEED": str(round_ + 1), "TOKENIZERS_PARALLELISM": "true"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


def table(results: dict[tuple[str, str], list[dict[str, Any]]], rows: list[str]) -> list[str]:
    """The lines of the table."""
    header = (
        "model",
        "seconds: ours / library",
        "library's / ours: median (min-max)",
        "CPU seconds: ours / library",
        "peak MB: ours / library",
        "pieces a word: ours / library",
        "same: ours / library",
    )
    lines = [header, ("---",) * len(header)]
    for row in rows:
        sides = [results[row, side] for side in SIDES if (row, side) in results]

        def both(cell: Any, sides: list[list[dict[str, Any]]] = sides) -> str:
            return " / ".join([*map(cell, sides), *["-"] * (2 - len(sides))])

        ratios = [theirs["seconds"] / ours["seconds"] for ours, theirs in zip(sides[0], sides[-1], strict=True)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if len(sides) == 2 else ""
        lines.append(
            (
                f"{row}, {sides[0][0]['size']:,}",
                both(lambda runs: f"{median(run['seconds'] for run in runs):.1f}"),
                ratio,
                both(lambda runs: f"{median(run['cpu_seconds'] for run in runs):.1f}"),
                both(lambda runs: f"{max(run['memory'] for run in runs) / 1e6:,.0f}"),
                both(lambda runs: f"{median(run['pieces'] for run in runs):.4f}"),
                both(lambda runs: "yes" if len({run["digest"] for run in runs}) == 1 else "no"),
            )
        )
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main(argv: list[str]) -> None:
    """Prints the table."""
    args = parse_arguments(argv)
    try:
        if args.run:
            print(json.dumps(run(*args.run, args)))
            return
        machine = machine_of("cpu") | {"tokenizers": tokenizers.__version__, "cores": len(os.sched_getaffinity(0))}
        print(", ".join(f"{name} {value}" for name, value in machine.items()))
        print(f"\n    python benchmarks/vocabulary.py {shlex.join(argv)}\n", flush=True)
        rows = [*KINDS, INIT] if args.init else [*KINDS]
        results: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for round_ in range(args.rounds):
            for row in rows:
                sides = SIDES[:1] if row == INIT else SIDES[:: -1 if round_ % 2 else 1]
                for side in sides:
                    results[row, side].append(run_alone(row, side, round_, args, argv))
        print("\n".join(table(results, rows)))
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
