"""How many blocks a window needs: loss at equal tokens, and what reveals the label of a next-sentence pair.

    python benchmarks/windows.py --tokenizer_name tok --sources books=books.txt wiki=wiki.txt \
        --held_out books=books-held-out.txt wiki=wiki-held-out.txt --output_dir windows

A corpus with more blocks than `--window_blocks` is read window by window, see `block_windows.py` of the package. The
corpus here has one source after the other, in the order of `--sources`. So a block has one source, and a small window
has few. All runs get the same tokens with the settings of `examples/pretrain_small_corpus.yaml` for little text. They
differ in the number of blocks in a window and the seed.

The initial weights are the same in all runs, from the bigrams of the whole corpus. With `--bigram_init`, each run
would take them from its first window. A real window has enough text for that, and a small one here does not.

A real block has 4.2 million tokens. A corpus of hundreds of them is too large to train on here, so blocks are made
smaller (`--block_tokens`). Small blocks have few documents, real blocks thousands. So the windows here are less
diverse than real windows.

Losses are of masked tokens on held-out text of each source, without sentence pairs. Next-sentence accuracy is on pairs
of the held-out text of all sources. The classifiers see only a part of each pair, see `sentence_pairs.py`.

Finished runs are kept in the output folder. The same command continues an interrupted benchmark. `--report` prints the
tables of the finished runs.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from pretraining_ladder import as_flags
from sentence_pairs import HEADER, join_blocks, measure, row, snugbert_epochs
from side_by_side import describe_machine, positive
from steps import check_settings, format_seeds, format_table, run_snugbert
from transformers import PreTrainedTokenizerBase

from snugbert import SnugBertForPreTraining
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.corpus import preparation
from snugbert.data.corpus.corpus import Corpus, open_corpus
from snugbert.errors import InputError
from snugbert.evaluation.held_out_text import score_examples
from snugbert.families.loading import load_tokenizer
from snugbert.files import write_atomically
from snugbert.trainers.pretraining.corpora import VALIDATION_SEED
from snugbert.trainers.pretraining.examples import PretrainingDataset

LENGTH = 128  # of the pairs
BATCH_SHARE = 4  # so many batches of text make a block
SCORED = 1000  # examples of each source
START = {
    "config_name": "tiny",
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "bigram_init": True,
    "max_steps": 10,
    "learning_rate": 1e-9,
}
SETTINGS = {
    "phases": "64:80%:mlm,128:20%",
    "mlm_probability": 0.3,
    "per_device_train_batch_size": 32,
    "optim": "muon",
    "learning_rate": 4e-3,
    "warmup_steps": 0.05,
    "weight_decay": 0.1,
    "adam_beta2": 0.98,
    "logging_steps": 20,
    "save_strategy": "no",
    "overwrite_output_dir": True,
    "use_cpu": True,
    "bf16": True,
}
COMPARED = ("tokenizer_name", "sources", "held_out", "block_tokens", "num_train_epochs")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer_name", required=True, help="tokenizer folder")
    parser.add_argument("--sources", nargs="+", required=True, help="name=pattern, in the order of the corpus")
    parser.add_argument("--held_out", nargs="+", required=True, help="name=pattern")
    parser.add_argument("--windows", nargs="+", type=positive, default=[8, 32, 128], help="and the whole corpus")
    parser.add_argument("--block_tokens", type=positive, default=2**11)
    parser.add_argument("--num_train_epochs", type=float, default=1.0)
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--only", choices=STEPS, help="train models, or classify pairs. Default: both")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the tables of the finished runs")
    return parser.parse_args(argv)


# --- text -------------------------------------------------------------------------------------------------------


@contextmanager
def small_blocks(tokens: int) -> Iterator[None]:
    """Makes `prepare_corpus` write blocks of about so many tokens. A document is never divided."""
    before = preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS
    preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS = tokens, tokens // BATCH_SHARE
    try:
        yield
    finally:
        preparation.BLOCK_TOKENS, preparation.BATCH_CHARACTERS = before


def prepare(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> Corpus:
    """Prepares the corpus, or opens it."""
    folder = args.output_dir / "corpus"
    if folder.exists():
        return open_corpus(folder, tokenizer)
    patterns = [source.partition("=")[2] for source in args.sources]
    with small_blocks(args.block_tokens):
        preparation.prepare_corpus(
            patterns, tokenizer, folder, language="en", preprocessing_num_workers=1, show_progress=False
        )
    return open_corpus(folder, tokenizer)


# --- runs -------------------------------------------------------------------------------------------------------


def train(
    window_blocks: int, seed: int, args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Trains a model, and returns its scores and the number of steps."""
    folder = args.output_dir / f"{window_blocks}-{seed}"
    names = ("tokenizer_name", "num_train_epochs")
    flags = (
        SETTINGS | {name: getattr(args, name) for name in names} | {"model_name_or_path": args.output_dir / "start"}
    )
    pretrain(flags | {"window_blocks": window_blocks, "seed": seed}, folder, args)
    steps = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    return score(folder, args, tokenizer) | {"steps": steps}


def pretrain(flags: dict[str, Any], folder: Path, args: argparse.Namespace) -> None:
    """Runs `snugbert pretrain` on the corpus."""
    flags = flags | {"corpus": args.output_dir / "corpus", "output_dir": folder}
    run_snugbert(["pretrain", *as_flags(flags), "--do_train"], folder / "log.txt")


def make_start(number: int, args: argparse.Namespace) -> None:
    """Makes the initial weights of all runs, from the bigrams of the whole corpus. The steps change nothing."""
    flags = SETTINGS | START | {"tokenizer_name": args.tokenizer_name, "window_blocks": number}
    pretrain(flags, args.output_dir / "start", args)


def score(folder: Path, args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Returns the masked token loss on each held-out source, and the next-sentence accuracy, in percent."""
    model = SnugBertForPreTraining.from_pretrained(folder)
    sources = dict(each.split("=", 1) for each in args.held_out)

    def score_text(patterns: list[str], objective: Any) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as text:
            corpus = preparation.prepare_corpus(
                patterns, tokenizer, text, language="en", preprocessing_num_workers=1, show_progress=False
            )
            dataset = PretrainingDataset(corpus, tokenizer, LENGTH, objective, seed=VALIDATION_SEED)
            return score_examples(model, tokenizer, dataset, min(len(dataset), SCORED), batch_size=32)

    losses = {name: score_text([pattern], "mlm")["mlm_loss"] for name, pattern in sources.items()}
    pairs = score_text(list(sources.values()), "nsp")
    return losses | {"mean": mean(losses.values()), "pairs": 100 * pairs["nsp_accuracy"]}


def classify(
    window_blocks: int, seed: int, args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> list[float]:
    """Measures the pairs of the corpus, and returns the columns of `sentence_pairs.py`."""
    corpus = prepare(args, tokenizer)
    text = join_blocks(corpus)
    epochs = snugbert_epochs(corpus, text, tokenizer, LENGTH, seed, window_blocks)
    return np.array(measure(epochs, text, LENGTH, seed)).tolist()


def run_all(args: argparse.Namespace) -> None:
    """Runs everything that is not finished. A seed is finished before the next one begins."""
    check_settings(args.output_dir, {name: getattr(args, name) for name in COMPARED})
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    number = len(prepare(args, tokenizer).blocks)
    windows = [*args.windows, number]
    if args.only != "classify" and not (args.output_dir / "start/model.safetensors").exists():
        make_start(number, args)
    for seed in args.seeds:
        for step, window_blocks in product([args.only] if args.only else STEPS, windows):
            file = args.output_dir / f"{step}-{window_blocks}-{seed}.json"
            if not file.exists():
                start = time.monotonic()
                result = STEPS[step](window_blocks, seed, args, tokenizer)
                write_atomically(file, json.dumps(result))
                print(f"{file.stem}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


STEPS: dict[str, Callable[..., Any]] = {"train": train, "classify": classify}


# --- report -----------------------------------------------------------------------------------------------------


def report(args: argparse.Namespace) -> str:
    """Makes the tables of the finished runs."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=args.tokenizer_name))
    corpus = open_corpus(args.output_dir / "corpus", tokenizer)
    number, names = len(corpus.blocks), [each.partition("=")[0] for each in args.held_out]
    reference = read_results("train", number, args)
    header = ["blocks in a window", "windows in an epoch", "steps in a window", "seeds", *names, "mean of the sources"]
    rows = [[*header, "mean, minus the mean of the whole corpus", "next-sentence accuracy, %"]]
    pair_rows = [HEADER.replace("| recipe |", "| blocks in a window |")]
    for window_blocks in (*args.windows, number):
        title, windows = "all" if window_blocks == number else str(window_blocks), -(-number // window_blocks)
        if runs := read_results("train", window_blocks, args):
            steps = mean(run["steps"] for run in runs.values()) / args.num_train_epochs / windows
            losses = [format_seeds([run[name] for run in runs.values()], 3) for name in (*names, "mean")]
            differences = [run["mean"] - reference[seed]["mean"] for seed, run in runs.items() if seed in reference]
            difference = format_seeds(differences, 3) if differences else ""
            accuracy = format_seeds([run["pairs"] for run in runs.values()], 1)
            rows.append([title, str(windows), f"{steps:.0f}", str(len(runs)), *losses, difference, accuracy])
        if columns := read_results("classify", window_blocks, args):
            pair_rows.append(row(LENGTH, title, np.array(list(columns.values()))))
    return f"{number} blocks, {corpus}\n\n{format_table(rows)}\n\n" + "\n".join(pair_rows)


def read_results(step: str, window_blocks: int, args: argparse.Namespace) -> dict[int, Any]:
    """Returns the finished results of a step, by seed."""
    files = {seed: args.output_dir / f"{step}-{window_blocks}-{seed}.json" for seed in args.seeds}
    return {seed: json.loads(file.read_text()) for seed, file in files.items() if file.exists()}


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the tables."""
    args = parse_arguments(argv)
    try:
        if not args.report:
            run_all(args)
        print(", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()))
        print(f"\n    python benchmarks/windows.py {shlex.join(argv)}\n")
        print(report(args))
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
