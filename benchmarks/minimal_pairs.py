"""Scoring minimal pairs: `snugbert evaluate` and minicons on the same weights and sentences, in one process.

    python benchmarks/minimal_pairs.py --pairs_file 'blimp/*.jsonl.gz' --config_name mini --tokenizer_name pretrained

minicons runs stock BERT with the weights of SnugBERT, in batches of sentences in the order of the files. It scores one
variant at a time. SnugBERT scores both at once. Some pairs of each file are scored, so that every paradigm counts.

Scores must agree before anything is timed. Both run on the CPU. They take turns within a round, and the one that goes
first alternates. Ratios compare the times of one round. "All pairs" scales our time to all pairs of the files.
minicons comes with `make test`, or with `pip install minicons`.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median

import numpy as np
from ladder_measures import select_pairs
from minicons.scorer import MaskedLMScorer
from side_by_side import describe_machine, positive
from transformers import BertConfig, BertForMaskedLM, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.documents import match_files
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import BAD, GOOD, read_pairs
from snugbert.evaluation.pseudo_likelihood import VARIANTS, encode_sentences, score_sentences

TOLERANCE = 1e-5  # relative, in float32, for sums of about ten log-probabilities


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs_file", nargs="+", required=True, help="files with BLiMP's columns")
    parser.add_argument("--pairs_per_file", type=positive, default=10, help="evenly spread over each file")
    parser.add_argument("--model_name_or_path", help="SnugBERT or BERT checkpoint")
    parser.add_argument("--config_name", help="random weights of this size instead; times do not depend on weights")
    parser.add_argument("--tokenizer_name", help="default: the model's")
    parser.add_argument("--batch_size", type=positive, default=16, help="sentences per batch of minicons")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seed", type=int, default=42, help="seed of random weights")
    return parser.parse_args(argv)


def score_with_minicons(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], variant: str, batch_size: int
) -> np.ndarray:
    """Scores sentences with minicons. *Shape:* (sentences,)"""
    scorer = MaskedLMScorer(model, "cpu", tokenizer=tokenizer)
    scores: list[float] = []
    for start in range(0, len(texts), batch_size):
        # Encoded here, because minicons 0.3.39 tokenizes with a method that transformers 5 removed.
        batch = tokenizer(texts[start : start + batch_size], padding=True, return_tensors="pt")
        scores += scorer.sequence_score(batch, reduction=lambda each: each.sum().item(), PLL_metric=variant)
    return np.array(scores)


def measure(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each side in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(rounds):
        for name in list(sides)[:: -1 if round_ % 2 else 1]:
            start = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def format_range(values: list[float]) -> str:
    """Formats the median and the range."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main(argv: list[str]) -> None:
    """Checks both sides, measures them, and prints the table."""
    args = parse_arguments(argv)
    machine = {**describe_machine("cpu"), "minicons": version("minicons")}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n    python benchmarks/minimal_pairs.py {shlex.join(argv)}\n", flush=True)

    all_pairs = read_pairs(match_files(args.pairs_file), GOOD, BAD)
    pairs = select_pairs(all_pairs, args.pairs_per_file)
    share = len(pairs) / len(all_pairs)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    set_seed(args.seed)
    names = {name: getattr(args, name) for name in ("model_name_or_path", "config_name", "tokenizer_name")}
    model, tokenizer = load_masked_model(ModelArguments(**names))
    model.to("cpu")  # type: ignore[arg-type]  # both sides, even if there is an accelerator
    stock = BertForMaskedLM(BertConfig(**{**model.config.to_dict(), "model_type": "bert"}))
    stock.load_state_dict(model.state_dict())

    def ours() -> dict[str, np.ndarray]:
        return score_sentences(model, list(encode_sentences(texts, tokenizer)), tokenizer.mask_token_id)

    def theirs(variant: str) -> np.ndarray:
        return score_with_minicons(stock, tokenizer, texts, variant, args.batch_size)

    scores = ours()  # these first runs also warm up
    difference = max(float(np.max(np.abs(theirs(name) / scores[name] - 1))) for name in VARIANTS)
    if difference > TOLERANCE:
        raise SystemExit(f"The scores differ by a factor of up to 1 + {difference:.1e}. Nothing was measured.")
    seconds = measure({"ours": ours, **{name: lambda name=name: theirs(name) for name in VARIANTS}}, args.rounds)

    original, within = (seconds[name] for name in VARIANTS)
    both = [sum(times) for times in zip(original, within, strict=True)]
    rows = {"both variants": both, "`original` only": original, "`within_word_l2r` only": within}
    print(f"{len(pairs):,} pairs. Largest relative difference of a score: {difference:.0e}.\n")
    print(
        "| minicons scores | seconds: ours (both) / minicons | minicons / ours: median (min-max) | all pairs, ours |"
    )
    print("|" + " --- |" * 4)
    for name, times in rows.items():
        ratios = [other / our for other, our in zip(times, seconds["ours"], strict=True)]
        minutes = median(seconds["ours"]) / share / 60
        cells = (name, f"{median(seconds['ours']):.3g} / {median(times):.3g}", format_range(ratios))
        print(f"| {' | '.join(cells)} | {minutes:.1f} minutes |")


if __name__ == "__main__":
    main(sys.argv[1:])
