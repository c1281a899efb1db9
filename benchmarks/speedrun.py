"""The speedrun: how soon a recipe reaches fixed scores, from fixed text. See docs/explanation/speedrun.md.

    python benchmarks/speedrun.py run --vocab_size 8192 --config examples/pretrain_small_corpus.yaml --bf16 true

`run` is a new folder. `snugbert pretrain` gets all further flags. The script makes the text, trains a vocabulary and a
model, scores it, and prints its row of the table. After an interruption, the same command continues.

The time is that of `snugbert vocabulary` and `snugbert pretrain`. Core hours are the CPU time of these processes.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from reporting import format_header, format_line
from side_by_side import choose_device, describe_machine
from speedrun_text import clone, make_text

BLIMP = "https://github.com/alexwarstadt/blimp", "3e56b06"
TIMES = "times.jsonl"  # a line for each process


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line. Returns the flags of `snugbert pretrain` separately."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="new folder, or the folder of an interrupted run")
    parser.add_argument("--vocab_size", default="8192")
    return parser.parse_known_args(argv)


def train(folder: Path, vocab_size: str, flags: list[str]) -> None:
    """Makes the text, the vocabulary and the model, unless they exist."""
    text, tokenizer, model = folder / "text", folder / "tokenizer", folder / "model"
    make_text(text)
    training = ["--train_file", text / "books.txt", text / "wikipedia.txt"]
    if not (tokenizer / "tokenizer.json").exists():
        run("vocabulary", [*training, "--vocab_size", vocab_size, "--output_dir", tokenizer], folder / TIMES)
    if not (model / "train_results.json").exists():
        data = [*training, "--tokenizer_name", tokenizer, "--validation_file", text / "held_out.txt"]
        run("pretrain", [*flags, *data, "--resume_from_checkpoint", "true", "--output_dir", model], folder / TIMES)


def run(command: str, flags: list[str | Path], times: Path | None = None) -> None:
    """Runs a `snugbert` command in a new process, and adds its time to a file, also if it fails."""
    start, before = time.monotonic(), os.times()
    try:
        subprocess.run([sys.executable, "-m", "snugbert", command, *flags], check=True)
    finally:
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        if times is not None:
            with times.open("a") as file:
                file.write(json.dumps({"hours": (time.monotonic() - start) / 3600, "core_hours": used / 3600}) + "\n")


def score(folder: Path) -> dict[str, float]:
    """Scores the model on all held-out text and all pairs of BLiMP. Returns percent, and bits per character."""
    scores, pairs = folder / "scores", clone(BLIMP, folder)
    if not (scores / "results.json").exists():
        subprocess.run(["git", "-C", pairs, "checkout", "--quiet", BLIMP[1], "--", "data"], check=True)
        text = ["--validation_file", folder / "text" / "held_out.txt", "--no_nsp", "true"]
        flags = ["--model_name_or_path", folder / "model", *text, "--pairs_file", pairs / "data" / "*.jsonl"]
        run("evaluate", [*flags, "--output_dir", scores])
    results = json.loads((scores / "results.json").read_text())
    return {
        "bits per character": results["held_out_text"]["metrics"]["bits_per_character"],
        "BLiMP": 100 * results["minimal_pairs"]["accuracy"]["original"],
    }


def main(argv: list[str]) -> None:
    """Trains, scores, and prints the row."""
    args, flags = parse_arguments(argv)
    train(args.folder, args.vocab_size, flags)
    scores = score(args.folder)
    times = [json.loads(line) for line in (args.folder / TIMES).read_text().splitlines()]
    hours, core_hours = (sum(line[name] for line in times) for name in ("hours", "core_hours"))
    machine = describe_machine(choose_device("cpu" in shlex.join(flags)))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    numbers = [f"{core_hours:.2f}", f"{60 * hours:.1f}", *(f"{value:.3g}" for value in scores.values())]
    print(format_header(["date", "commit", "device", "core hours", "minutes", *scores, "flags"]))
    print(format_line([str(date.today()), commit, machine["device"], *numbers, f"`{shlex.join(argv[1:])}`"]))


if __name__ == "__main__":
    main(sys.argv[1:])
