"""Minimal pairs: `snugbert evaluate` and the official code of the BabyLM Challenge on the same checkpoint and pairs.

    git clone https://github.com/babylm-org/babylm-eval
    python benchmarks/babylm_scores.py --official babylm-eval/strict --pairs_file 'blimp/*.jsonl.gz' \
        --pairs_per_file 100 --model_name_or_path pretrained

The official code runs unmodified in its own process, with `--backend mlm` at temperature 1. It opens SnugBERT
checkpoints with `trust_remote_code`. `--python` names the Python of another environment for the official code. The
transformers that its requirements name, 4.51.3, cannot open SnugBERT checkpoints: convert them to BERT first.

Both must prefer the same sentence of every pair, unless both sentences have the same score. The official code counts
these ties as right, and `snugbert evaluate` counts them as wrong.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from side_by_side import describe_machine, positive

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.documents import match_files
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import BAD, GOOD, MinimalPair, read_pairs, summarize
from snugbert.evaluation.pseudo_likelihood import VARIANTS, encode_sentences, score_sentences

TOLERANCE = 1e-3  # nats, for a difference of two sums of about ten log-probabilities in float32


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, help="the folder that contains evaluation_pipeline")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="runs the official code; default: this"
    )
    parser.add_argument("--pairs_file", nargs="+", required=True, help="files with BLiMP's columns")
    parser.add_argument("--pairs_per_file", type=positive, help="score the first pairs of each file; default: all")
    parser.add_argument("--model_name_or_path", required=True, help="a masked language model")
    return parser.parse_args(argv)


def run_official_code(pairs: list[MinimalPair], args: argparse.Namespace) -> tuple[np.ndarray, float]:
    """Returns whether the official code prefers each acceptable sentence, and its mean over paradigms in percent."""
    rows = defaultdict(list)
    for row, pair in enumerate(pairs):
        rows[pair.paradigm].append(row)
    model = Path(args.model_name_or_path)
    with tempfile.TemporaryDirectory() as folder:
        data, results = Path(folder, "pairs"), Path(folder, "results")
        data.mkdir()
        for number, (paradigm, members) in enumerate(rows.items()):
            labels = {"UID": paradigm, "linguistics_term": pairs[members[0]].phenomenon, "field": "all"}
            lines = [{"sentence_good": pairs[row].good, "sentence_bad": pairs[row].bad} | labels for row in members]
            (data / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [str(args.python.absolute()), "-m", "evaluation_pipeline.sentence_zero_shot.run", "--task", "blimp"]
        command += ["--backend", "mlm", "--data_path", str(data), "--output_dir", str(results)]
        command += ["--model_path_or_name", str(model.resolve() if model.exists() else model), "--save_predictions"]
        subprocess.run(command, cwd=args.official, stdout=subprocess.DEVNULL, check=True)  # its tables
        (file,) = results.rglob("predictions.json")
        predictions = json.loads(file.read_text())
        mean = file.with_name("best_temperature_report.txt").read_text().split()[-1]
    right = np.empty(len(pairs), bool)
    for paradigm, members in rows.items():
        for row, prediction in zip(members, predictions[paradigm]["predictions"], strict=True):
            right[row] = prediction["pred"] == pairs[row].good
    return right, float(mean)


def main(argv: list[str]) -> None:
    """Scores the pairs with both, and prints the table.

    Raises:
        SystemExit: the decisions differ on a pair that is no tie.
    """
    args = parse_arguments(argv)
    print(", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()))
    print(f"\n    python benchmarks/babylm_scores.py {shlex.join(argv)}\n", flush=True)
    by_file = [read_pairs([file], GOOD, BAD) for file in match_files(args.pairs_file)]
    pairs = [pair for file_pairs in by_file for pair in file_pairs[: args.pairs_per_file]]
    official, official_mean = run_official_code(pairs, args)

    model, tokenizer = load_masked_model(ModelArguments(model_name_or_path=args.model_name_or_path))
    sentences = list(encode_sentences([text for pair in pairs for text in (pair.good, pair.bad)], tokenizer))
    scores = score_sentences(model, sentences, tokenizer.mask_token_id)[VARIANTS[0]]
    gaps = scores[::2] - scores[1::2]
    differ = np.abs(gaps[(gaps > 0) != official])

    print("| pairs | ties | official code | SnugBERT, ties right | SnugBERT, ties wrong |\n|" + " --- |" * 5)
    both = summarize(pairs, np.stack([gaps >= 0, gaps > 0], axis=1))["accuracy"].values()
    cells = [official_mean, *(100 * accuracy for accuracy in both)]
    print(f"| {len(pairs):,} | {(gaps == 0).sum()} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    print(f"\nDecisions that differ: {(differ > 0).sum()}, in addition to ties.")
    if (differ > TOLERANCE).any():
        raise SystemExit(f"The scores of one pair differ by {differ.max():.1e} nats, so it is no tie.")


if __name__ == "__main__":
    main(sys.argv[1:])
