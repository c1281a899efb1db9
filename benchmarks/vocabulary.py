"""Time and memory of training a vocabulary, compared with the tokenizers library's own trainer on the same text.

    python benchmarks/vocabulary.py --train_file 'books/train-*.txt.gz' --validation_file books/validation.txt.gz \
        --init bert-base-uncased

The library gets the same lines, normalizer, pre-tokenizer and size, and the same alphabet limit or the 256 bytes. Both
sides may use all cores. Each run is a new process. Its time covers everything from opening the text to a tokenizer in
memory, without imports. Sides take turns within a round, and the side that goes first alternates. Ratios compare two
runs of the same round. CPU seconds sum all threads, and are more reliable on a shared machine.

Memory is the peak resident set minus the resident set before the run. Tokens per word are counted on the validation
text, with the words of the tokenizer's pre-tokenizer. "Same" shows whether all runs of a side gave the same tokenizer,
each with a different Python hash seed.

`--init` adds a row for extending an existing tokenizer. The library has no counterpart.
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
from side_by_side import describe_machine, positive
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerBase

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.documents import find_files, read_lines
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.vocabulary.extension import extend_tokenizer, learn_extension, tokens_per_word
from snugbert.vocabulary.learning import (
    ALPHABET_SIZE,
    KINDS,
    SPECIAL_TOKENS,
    TokenizerKind,
    count_words,
    learn_tokens,
    make_tokenizer,
)

SIDES = ("ours", "library")
INIT = "init"  # row of --init
LINES_AT_ONCE = 1000  # batch size for the library, as in its documentation


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", required=True, help="text files, as for `snugbert vocabulary`")
    parser.add_argument("--validation_file", nargs="+", required=True, help="held-out text files")
    parser.add_argument("--vocab_size", type=positive, default=30522)
    parser.add_argument("--init", help="tokenizer to extend")
    parser.add_argument("--init_vocab_size", type=positive, default=34522)
    parser.add_argument("--rounds", type=positive, default=3)
    # Internal: the run of a process.
    parser.add_argument("--run", nargs=2, metavar=("ROW", "SIDE"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def train(row: str, side: str, args: argparse.Namespace) -> PreTrainedTokenizerBase:
    """Trains the tokenizer of a side."""
    lines = read_lines(find_files(args.train_file))
    if row == INIT:
        old = load_tokenizer(TokenizerArguments(tokenizer_name=args.init))
        words = count_words(lines, old)
        extension = learn_extension(words, old, args.init_vocab_size - len(old))
        return extend_tokenizer(old, extension, args.init)
    kind: TokenizerKind = row  # type: ignore[assignment]
    tokenizer = make_tokenizer(kind)
    if side == "ours":
        words = count_words(lines, tokenizer)
        return make_tokenizer(kind, *learn_tokens(words, args.vocab_size, kind=kind))
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
    """Trains a tokenizer. Returns seconds, CPU seconds, memory in bytes, tokens per held-out word, digest and size."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    start, cpu_start = time.perf_counter(), time.process_time()
    tokenizer = train(row, side, args)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    held_out = count_words(read_lines(find_files(args.validation_file)), tokenizer)
    digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    pieces = tokens_per_word(held_out, tokenizer)
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": peak, "pieces": pieces}
    return result | {"digest": digest, "size": len(tokenizer)}


def run_alone(row: str, side: str, round_: int, args: argparse.Namespace, argv: list[str]) -> dict[str, Any]:
    """Calls [`run`] in a new process."""
    process = subprocess.run(
        [sys.executable, __file__, *argv, "--run", row, side],
        env=os.environ | {"PYTHONHASHSEED": str(round_ + 1), "TOKENIZERS_PARALLELISM": "true"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


def table(results: dict[tuple[str, str], list[dict[str, Any]]], rows: list[str]) -> list[str]:
    """Formats the table."""
    header = (
        "model",
        "seconds: ours / library",
        "library's / ours: median (min-max)",
        "CPU seconds: ours / library",
        "peak MB: ours / library",
        "tokens per word: ours / library",
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
    """Measures, and prints the table."""
    args = parse_arguments(argv)
    try:
        if args.run:
            print(json.dumps(run(*args.run, args)))
            return
        machine = describe_machine("cpu") | {
            "tokenizers": tokenizers.__version__,
            "cores": len(os.sched_getaffinity(0)),
        }
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
