r"""The speedrun: how fast a recipe reaches fixed scores, from fixed text. See docs/explanation/speedrun.md.

    python benchmarks/speedrun.py run --track cpu --config examples/pretrain_small_corpus.yaml --bf16 true \
        --num_train_epochs 4

`run` is a new folder. `snugbert pretrain` gets all further flags. The script makes the text, trains a vocabulary and a
model, scores it, and prints its row of the table. After an interruption, the same command continues.

The time is the training time in the log of `snugbert pretrain`, over all parts of an interrupted run. A core hour is
an hour of a thread.
"""

import argparse
import json
import shlex
import subprocess
import sys
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from recipe import read_log
from reporting import format_header, format_line
from speedrun_text import clone, make_text

from snugbert_cli import main as run_command

BLIMP = "https://github.com/alexwarstadt/blimp", "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
SCRIPTS = Path(__file__).parent


def parse_arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses the command line. Returns the flags of `snugbert pretrain` separately."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("folder", type=Path, help="new folder, or the folder of an interrupted run; comes first")
    parser.add_argument("--track", choices=["cpu", "gpu"], required=True)
    parser.add_argument("--vocab_size", default="8192")
    return parser.parse_known_args(argv)


def record_run(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Stores the command, the threads and the commit of a new run, and returns them.

    Raises:
        SystemExit: the folder has a run of another command or with another number of threads.
    """
    file, settings = folder / "run.json", {"command": shlex.join(argv), "threads": torch.get_num_threads()}
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        describe = ["git", "-C", SCRIPTS, "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
        file.write_text(json.dumps({**settings, "commit": commit}))
    run = json.loads(file.read_text())
    if {**run, **settings} != run:
        found = f"`{run['command']}` with OMP_NUM_THREADS={run['threads']}"
        raise SystemExit(f"error: {folder} has a run of {found}. Choose another folder.")
    return run


def train(folder: Path, args: argparse.Namespace, flags: list[str]) -> None:
    """Makes the text, the vocabulary and the model, unless they exist."""
    text, tokenizer, model = folder / "text", folder / "tokenizer", folder / "model"
    make_text(text)
    training = ["--train_file", text / "books.txt", text / "wikipedia.txt"]
    if not (tokenizer / "tokenizer.json").exists():
        run("vocabulary", *training, "--vocab_size", args.vocab_size, "--output_dir", tokenizer)
    if not (model / "train_results.json").exists():
        data = [*training, "--tokenizer_name", tokenizer, "--validation_file", text / "held_out.txt"]
        device = ["--use_cpu", str(args.track == "cpu")]
        run("pretrain", *flags, *data, *device, "--resume_from_checkpoint", "true", "--output_dir", model)


def run(command: str, *flags: str | Path) -> None:
    """Runs a `snugbert` command in this process.

    Raises:
        SystemExit: it failed or was stopped.
    """
    if status := run_command([command, *map(str, flags)]):
        raise SystemExit(status)


def score(folder: Path) -> dict[str, float]:
    """Scores the model on all held-out text, and on all pairs of BLiMP in percent."""
    scores, pairs = folder / "scores", clone(BLIMP, folder)
    if not (scores / "results.json").exists():
        subprocess.run(["git", "-C", pairs, "checkout", "--quiet", BLIMP[1], "--", "data"], check=True)
        text = ["--validation_file", folder / "text" / "held_out.txt", "--no_nsp", "true"]
        flags = ["--model_name_or_path", folder / "model", *text, "--pairs_file", pairs / "data" / "*.jsonl"]
        run("evaluate", *flags, "--output_dir", scores)
    results = json.loads((scores / "results.json").read_text())
    blimp, text_scores = results["minimal_pairs"]["accuracy"]["original"], results["held_out_text"]["metrics"]
    return {"BLiMP": 100 * blimp, "bits per character": text_scores["bits_per_character"]}


def count_seconds(model: Path) -> float:
    """Returns the training time in the log. Steps after its last line count as much as the average step."""
    lines, steps = read_log(model), json.loads((model / "trainer_state.json").read_text())["global_step"]
    pairs = pairwise([{"tokens": 0}, *lines])
    seconds = sum((line["tokens"] - before["tokens"]) / line["tokens_per_second"] for before, line in pairs)
    return seconds * steps / lines[-1]["step"]


def main(argv: list[str]) -> None:
    """Trains, scores, and prints the row."""
    args, flags = parse_arguments(argv)
    record = record_run(args.folder, argv[1:])
    train(args.folder, args, flags)
    scores, seconds = score(args.folder), count_seconds(args.folder / "model")
    time = f"{seconds / 60:.1f} minutes"
    if args.track == "cpu":
        time = f"{seconds * record['threads'] / 3600:.2f} core hours"
    header = ["track", "date", "time", *scores, "commit", "flags"]
    cells = [args.track, str(date.today()), time, f"{scores['BLiMP']:.2f}", f"{scores['bits per character']:.4f}"]
    print(format_header(header), format_line([*cells, record["commit"], f"`{record['command']}`"]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
