"""Repeated text: what it does to a run, what corpora contain, and what it costs to find it.

    python benchmarks/repeated_text.py train --tokenizer_name tok --train_file books/train-00.txt.gz \
        --validation_file books/validation.txt.gz --seeds 1 2 3 --output_dir repeated
    python benchmarks/repeated_text.py find books='books/train-*.txt.gz' wiki=wiki/train.txt.gz
    python benchmarks/repeated_text.py cost --tokenizer_name tok --train_file 'books/train-*.txt.gz'

`train` takes `LINES` lines of the text and inserts copies of them at random places, until the copies have a given
share of the characters. It prepares each text with `snugbert prepare`, one of them also with --deduplicate, and
pretrains on each corpus for the same number of steps. The same command continues after an interruption. `--report`
prints the finished runs.

`cost` prepares the text in pairs, with and without counting, and compares the processor time of all processes and the
wall time. The order alternates. Memory is the increase of the peak resident set while random hashes are counted, in a
new process.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from steps import check_settings, format_seeds, format_table, run_snugbert

from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.data.documents import find_files, read_documents
from snugbert.data.repeated_text import HashCounts, RepeatCounter, read_report
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.files import write_atomically

LINES, SHORTEST, LONGEST = 20, 60, 120  # repeated lines, and their number of characters
# Share of the characters in copies, and --deduplicate.
TEXTS: dict[str, tuple[float, str | None]] = {
    "no copies added": (0, None),
    "10 % copies": (0.1, None),
    "50 % copies": (0.5, None),
    "90 % copies": (0.9, None),
    "90 % copies, --deduplicate lines": (0.9, "lines"),
}
SETTINGS = {
    "config_name": "tiny",
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "max_seq_length": 64,
    "per_device_train_batch_size": 64,
    "optim": "muon",
    "learning_rate": 4e-3,
    "warmup_steps": 0.05,
    "logging_steps": 20,
    "per_device_eval_batch_size": 64,
    "max_eval_samples": 1000,
    "eval_strategy": "no",
    "save_strategy": "no",
    "overwrite_output_dir": True,
    "use_cpu": True,
}
COMPARED = ("tokenizer_name", "train_file", "validation_file", "max_steps")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    find = commands.add_parser("find")
    find.add_argument("corpora", nargs="+", help="name=pattern")
    cost = commands.add_parser("cost")
    cost.add_argument("--pairs", type=positive, default=6)
    cost.add_argument("--num_workers", type=positive, default=2)
    cost.add_argument("--millions", type=positive, default=16, help="million different lines, for the memory")
    cost.add_argument("--only_memory", action="store_true", help=argparse.SUPPRESS)  # in the new process
    train = commands.add_parser("train")
    train.add_argument("--validation_file", nargs="+", required=True)
    train.add_argument("--max_steps", type=positive, default=200)
    train.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    train.add_argument("--output_dir", type=Path, required=True)
    train.add_argument("--report", action="store_true", help="only print the table of the finished runs")
    for command in (cost, train):
        command.add_argument("--train_file", nargs="+", required=command is train)
        command.add_argument("--tokenizer_name", required=command is train)
    return parser.parse_args(argv)


# --- train ------------------------------------------------------------------------------------------------------


def add_copies(documents: list[list[str]], share: float) -> Iterator[list[str]]:
    """Yields documents with copies of some of their lines, which have a share of the characters."""
    rng = random.Random(0)
    fitting = sorted({line for line in chain.from_iterable(documents) if SHORTEST <= len(line) <= LONGEST})
    repeated = rng.sample(fitting, LINES)
    number_lines = sum(map(len, documents))
    characters = sum(map(len, chain.from_iterable(documents)))
    mean_length = sum(map(len, repeated)) / LINES
    per_line = share / (1 - share) * characters / mean_length / number_lines
    for document in documents:
        copied: list[str] = []
        for line in document:
            number = int(per_line) + (rng.random() < per_line % 1)
            copied += [line, *rng.choices(repeated, k=number)]
        yield copied


def train(args: argparse.Namespace) -> None:
    """Prepares the texts and runs the pretraining runs that are not finished."""
    check_settings(args.output_dir, {name: getattr(args, name) for name in COMPARED})
    documents = list(read_documents(find_files(args.train_file)))
    for name, (share, deduplicate) in TEXTS.items():
        folder = args.output_dir / f"{share}-{deduplicate}"
        if not (folder / "corpus/repeated_text.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            text = folder / "text.txt"
            text.write_text("\n\n".join("\n".join(document) for document in add_copies(documents, share)))
            flags = {"tokenizer_name": args.tokenizer_name, "train_file": text, "output_dir": folder / "corpus"}
            flags |= {"deduplicate": deduplicate} if deduplicate else {}
            run_snugbert(["prepare", *as_flags(flags), "--overwrite_output_dir"], folder / "prepare.txt")
        for seed in args.seeds:
            if not (folder / f"{seed}.json").exists():
                flags = SETTINGS | {name: getattr(args, name) for name in ("tokenizer_name", "max_steps")}
                flags |= {"corpus": folder / "corpus", "validation_file": args.validation_file}
                flags |= {"seed": seed, "output_dir": folder / str(seed)}
                start = time.monotonic()
                run_snugbert(["pretrain", *as_flags(flags), "--do_train", "--do_eval"], folder / f"{seed}/log.txt")
                write_atomically(folder / f"{seed}.json", json.dumps(read_scores(folder / str(seed))))
                print(f"{name}, seed {seed}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def read_scores(folder: Path) -> dict[str, float]:
    """Reads the training loss at the end of a run and the scores on held-out text."""
    scores = json.loads((folder / "eval_results.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = [line["mlm_loss"] for line in lines if "mlm_loss" in line]
    return {"training": logged[-1], "held out": scores["eval_mlm_loss"], "accuracy": scores["eval_mlm_accuracy"]}


def report_training(args: argparse.Namespace) -> str:
    """Makes the table of the finished runs."""
    rows = [["text", "lines that are copies", "seeds", "training loss", "held-out loss", "held-out accuracy, %"]]
    for name, (share, deduplicate) in TEXTS.items():
        folder = args.output_dir / f"{share}-{deduplicate}"
        runs = [json.loads(file.read_text()) for file in sorted(folder.glob("[0-9]*.json"))]
        found = read_report(folder / "corpus")
        if runs and found is not None:
            cells = [format_seeds([run[key] for run in runs], 3) for key in ("training", "held out")]
            cells.append(format_seeds([100 * run["accuracy"] for run in runs], 1))
            rows.append([name, f"{found.lines.copies:,} of {found.lines.total:,}", str(len(runs)), *cells])
    return format_table(rows)


# --- find -------------------------------------------------------------------------------------------------------


def find(corpora: Iterable[str]) -> str:
    """Makes a table of the repeated text of corpora. Checks the numbers against plain counts."""
    rows = [["corpus", "lines", "copies", "their characters", "documents", "copies", "most frequent lines"]]
    for name, _, pattern in (corpus.partition("=") for corpus in corpora):
        documents = list(read_documents(find_files([pattern])))
        counter = RepeatCounter()
        for _ in counter.follow(enumerate(documents)):
            pass
        found = counter.summarize()
        plain = Counter(chain.from_iterable(documents))
        expected = (plain.total() - len(plain), len(documents) - len(set(map(tuple, documents))))
        if (found.lines.copies, found.documents.copies) != expected:
            raise SystemExit(f"error: {name}: {found}, but a plain count finds {expected}.")
        rows.append(
            [
                name,
                f"{found.lines.total:,}",
                f"{found.lines.copies:,} ({found.lines.copies / found.lines.total:.2%})",
                f"{found.copied_share:.2%}",
                f"{found.documents.total:,}",
                f"{found.documents.copies:,}",
                ", ".join(f"{count} x `{text}`" for count, text in found.lines.frequent),
            ]
        )
    return format_table(rows)


# --- cost -------------------------------------------------------------------------------------------------------


def measure_cost(args: argparse.Namespace) -> str:
    """Compares the processor time and the time of preparing a text with and without counting."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    count = RepeatCounter.follow
    ratios: dict[str, list[float]] = {"processor time": [], "time": []}
    for pair in range(args.pairs):
        costs: dict[bool, tuple[float, float]] = {}
        for counts in ((True, False), (False, True))[pair % 2]:
            RepeatCounter.follow = count if counts else lambda counter, documents: iter(documents)  # type: ignore
            with tempfile.TemporaryDirectory() as folder:
                before, start = processor_seconds(), time.monotonic()
                prepare_corpus(args.train_file, tokenizer, folder, preprocessing_num_workers=args.num_workers)
                costs[counts] = (processor_seconds() - before, time.monotonic() - start)
        for ratio, counted, plain in zip(ratios.values(), costs[True], costs[False], strict=True):
            ratio.append(counted / plain)
    RepeatCounter.follow = count  # type: ignore[method-assign]
    documents = list(enumerate(read_documents(find_files(args.train_file))))
    start = time.process_time()
    for _ in RepeatCounter().follow(iter(documents)):
        pass
    counting = time.process_time() - start
    lines = sum(len(document) for _, document in documents)
    memory = [sys.executable, __file__, "cost", "--only_memory", "--millions", str(args.millions)]
    rows = [["", ""]]
    rows += [
        [f"{name} with counting / without", f"{median(ratio):.3f} ({min(ratio):.3f} to {max(ratio):.3f})"]
        for name, ratio in ratios.items()
    ]
    rows.append([f"counting {lines:,} lines alone", f"{counting:.2f} s"])
    rows.append(json.loads(subprocess.run(memory, check=True, capture_output=True, text=True).stdout))
    return format_table(rows)


def processor_seconds() -> float:
    """Returns the processor time of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_memory(millions: int) -> list[str]:
    """Counts random hashes, and describes time and memory."""
    rng = np.random.default_rng(0)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    counts = HashCounts()
    for _ in range(millions * 400):
        counts.add(rng.integers(-(2**63), 2**63 - 1, 2500))
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6
    return [
        f"counting {millions} million different lines, processor time and memory per million",
        f"{(time.process_time() - start) / millions:.2f} s, {megabytes / millions:.0f} MB",
    ]


def main(argv: list[str]) -> None:
    """Runs a measurement and prints its table."""
    args = parse_arguments(argv)
    if args.command == "cost" and args.only_memory:
        print(json.dumps(measure_memory(args.millions)))
        return
    try:
        if args.command == "train" and not args.report:
            train(args)
        machine: dict[str, Any] = describe_machine("cpu")
        print(", ".join(f"{name} {value}" for name, value in machine.items()), end="\n\n")
        if args.command == "train":
            print(report_training(args))
        else:
            print(find(args.corpora) if args.command == "find" else measure_cost(args))
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
