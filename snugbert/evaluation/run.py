"""Runs `snugbert evaluate`: loads the model, scores it, prints and writes the results."""

import time
from pathlib import Path
from typing import Any

from snugbert.card_snugbert import find_base_model
from snugbert.evaluation.arguments import EvaluatedModelArguments, EvaluationArguments, PairsArguments
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import read_pairs, score_pairs
from snugbert.evaluation.plot import PLOT_NAME, draw_minimal_pairs
from snugbert.evaluation.report import (
    check_card,
    check_output_dir,
    format_pairs,
    pairs_eval_results,
    pairs_tables,
    update_card,
    write_report,
)
from snugbert.trainers.card import package_versions
from snugbert.trainers.documents import match_files
from snugbert.trainers.log_lines import format_duration
from snugbert.trainers.splits import describe_file
from snugbert.writing import writing


def run(model_args: EvaluatedModelArguments, pairs_args: PairsArguments, args: EvaluationArguments) -> None:
    """Scores a model, prints the results and writes them.

    Raises:
        InputError: the model or the data cannot be used, or the output folder already contains results.
    """
    output_dir = None if args.output_dir is None else Path(args.output_dir)
    if output_dir is not None:
        check_output_dir(output_dir, args.overwrite_output_dir)
    card = check_card(model_args.model_name_or_path) if args.update_card else None
    files = match_files(pairs_args.pairs_file)
    pairs = read_pairs(files, pairs_args.good_column_name, pairs_args.bad_column_name)
    model, tokenizer = load_masked_model(model_args)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)  # fails early if it cannot be created

    start = time.perf_counter()
    scores = score_pairs(model, tokenizer, pairs)
    duration = time.perf_counter() - start
    print(f"{format_pairs(scores)}\nTime: {format_duration(duration)}")

    name = find_base_model(model_args.model_name_or_path)[1]
    # Several files are usually one benchmark in a folder of its own.
    dataset = describe_file(files[0]) if len(files) == 1 else files[0].resolve().parent.name
    eval_results = pairs_eval_results(scores, dataset)
    results: dict[str, Any] = {
        "model": name,
        "config": model_args.config_name,
        "minimal_pairs": {"dataset": dataset, **scores, "seconds": duration},
        "versions": package_versions(),
    }
    if output_dir is not None:
        with writing(output_dir, "run the same command again"):
            draw_minimal_pairs(scores, output_dir / PLOT_NAME)
            write_report(output_dir, results, [f"# Minimal pairs: {dataset}", pairs_tables(scores)], eval_results)
        print(f"Written to {output_dir}: results.json, results.md, card_metadata.yaml, {PLOT_NAME}")
    if card is not None:
        update_card(card, eval_results)
        print(f"Updated {card}")
