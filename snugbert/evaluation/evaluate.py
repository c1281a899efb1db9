"""Runs `snugbert evaluate`: loads the model, scores it, prints tables, and writes results and metadata for cards."""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from huggingface_hub import EvalResult
from huggingface_hub.repocard_data import eval_results_to_model_index
from transformers import set_seed
from transformers.utils import logging as transformers_logging

from snugbert.card_snugbert import escape, find_base_model
from snugbert.data.documents import match_files
from snugbert.data.sources import describe_file
from snugbert.errors import InputError, format_count, shorten
from snugbert.evaluation.evaluation_arguments import EvaluatedModelArguments, EvaluationArguments, HeldOutTextArguments
from snugbert.evaluation.held_out_text import score_text
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import MinimalPair, read_pairs, score_pairs
from snugbert.evaluation.pseudo_likelihood import VARIANTS
from snugbert.files import check_new_results, explaining_failed_writes, write_atomically
from snugbert.progress import format_duration
from snugbert.reports.cards import eval_result, package_versions, table
from snugbert.reports.pretrained_card import format_results, metric_eval_results
from snugbert.shared_cores import share_cores
from snugbert.trainers.run.log import set_up_logging

RESULTS_NAME = "results.json"
TITLES = ("PLL", "PLL, within-word left-to-right")  # titles of `VARIANTS`


class _Section(NamedTuple):
    """The report on one kind of data."""

    results: dict[str, Any]  # for results.json
    markdown: str  # for results.md
    eval_results: list[EvalResult]  # for the header of the model's card


def evaluate_model(
    model_args: EvaluatedModelArguments, args: EvaluationArguments, text_args: HeldOutTextArguments
) -> None:
    """Scores a model, prints the results and writes them."""
    set_up_logging()
    transformers_logging.disable_progress_bar()  # the bar for reading weights
    share_cores()
    if not args.pairs_file and not text_args.validation_file:
        raise InputError("no data. Pass --pairs_file, --validation_file, or both.")
    output_dir = None if args.output_dir is None else Path(args.output_dir)
    if output_dir is not None:
        check_new_results(output_dir, [RESULTS_NAME], args.overwrite_output_dir)
    files = match_files(args.pairs_file)
    pairs = read_pairs(files, args.good_column_name, args.bad_column_name)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)  # fails early if it cannot be created

    sections: dict[str, _Section] = {}
    if text_args.validation_file:  # first, because pairs can take much longer
        sections["held_out_text"] = _evaluate_text(model_args, text_args, args.seed)
    if pairs:
        sections["minimal_pairs"] = _evaluate_pairs(model_args, files, pairs, args.seed)
    if output_dir is not None:
        results: dict[str, Any] = {
            "model": find_base_model(model_args.model_name_or_path)[1],
            "config": model_args.config_name,
            "bf16": model_args.bf16,
            **{name: section.results for name, section in sections.items()},
            "versions": package_versions(),
        }
        with explaining_failed_writes(output_dir, "run the same command again"):
            markdown = "\n\n".join(section.markdown for section in sections.values())
            write_atomically(output_dir / "results.md", f"{markdown}\n")
            eval_results = [result for section in sections.values() for result in section.eval_results]
            metadata = {"model-index": eval_results_to_model_index(results["model"], eval_results)}
            header = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
            write_atomically(output_dir / "card_metadata.yaml", header)
            write_atomically(output_dir / RESULTS_NAME, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"Written to {output_dir}: results.json, results.md, card_metadata.yaml")


def _load_and_score(
    score: Callable[..., dict[str, Any]], model_args: EvaluatedModelArguments, seed: int, **requirements: Any
) -> dict[str, Any]:
    """Scores a model, and adds the time that it took. `requirements` are options of [`load_masked_model`]."""
    set_seed(seed)
    model, tokenizer = load_masked_model(model_args, **requirements)
    start = time.perf_counter()
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model_args.bf16):
        scores = score(model, tokenizer)
    return {**scores, "seconds": time.perf_counter() - start}


def _evaluate_text(model_args: EvaluatedModelArguments, text_args: HeldOutTextArguments, seed: int) -> _Section:
    score = partial(score_text, args=text_args, cache_dir=model_args.cache_dir)
    scores = _load_and_score(score, model_args, seed, sentence_pairs=not text_args.no_nsp)
    metrics, baselines, frequencies = scores["metrics"], scores["baselines"], scores["token_frequencies"]
    examples = "pairs" if scores["objective"] != "mlm" else "full sentences"
    description = (
        f"{format_count(scores['examples'], 'example')} ({examples}), {format_count(scores['tokens'], 'token')} "
        f"({scores['unknown_tokens']:.2%} unknown), {format_count(scores['characters'], 'character')}."
    )
    results = format_results(metrics, baselines, frequencies)
    duration = format_duration(scores["seconds"])
    print(f"Held-out text: {scores['dataset']}. {description}\n\n{results}\n\nTime: {duration}\n")
    return _Section(
        scores,
        f"# Held-out text: {escape(scores['dataset'])}\n\n{description}\n\n{results}",
        metric_eval_results(metrics, scores["dataset"]),
    )


def _evaluate_pairs(
    model_args: EvaluatedModelArguments, files: Sequence[Path], pairs: Sequence[MinimalPair], seed: int
) -> _Section:
    scores = _load_and_score(partial(score_pairs, pairs=pairs), model_args, seed, required=["mask_token"])
    phenomena, paradigms = _make_pairs_tables(scores)
    print(f"{phenomena}\nTime: {format_duration(scores['seconds'])}\n")
    # Several files usually belong to one benchmark, which has its own folder.
    folders = sorted({file.resolve().parent.name for file in files})
    dataset = describe_file(files[0]) if len(files) == 1 else shorten(folders)
    return _Section(
        {"dataset": dataset, **scores},
        f"# Minimal pairs: {escape(dataset)}\n\n{phenomena}\n\n{paradigms}",
        [
            eval_result(
                scores["accuracy"][variant],
                task_type="fill-mask",
                task_name="Minimal pairs",
                dataset_name=dataset,
                metric_type="accuracy",
                metric_name=f"Accuracy, {title}",
            )
            for variant, title in zip(VARIANTS, TITLES, strict=True)
        ],
    )


def _make_pairs_tables(results: dict[str, Any]) -> tuple[str, str]:
    """Returns Markdown tables of phenomena, with their mean, and of paradigms."""

    def percent(group: dict[str, Any]) -> list[str]:
        return [f"{100 * group['accuracy'][variant]:.1f}" for variant in VARIANTS]

    phenomena = [
        (name.replace("_", " "), group["paradigms"], group["pairs"], *percent(group))
        for name, group in results["phenomena"].items()
    ]
    phenomena.append(("mean over paradigms", len(results["paradigms"]), results["pairs"], *percent(results)))
    paradigms = [
        (name, paradigm["phenomenon"].replace("_", " "), paradigm["pairs"], *percent(paradigm))
        for name, paradigm in results["paradigms"].items()
    ]
    explanation = (
        "Percent of pairs in which the model finds the acceptable sentence more likely. Ties count as wrong. Chance "
        "is 50. PLL: pseudo-log-likelihood."
    )
    return (
        f"{explanation}\n\n{table(('phenomenon', 'paradigms', 'pairs', *TITLES), phenomena)}",
        table(("paradigm", "phenomenon", "pairs", *TITLES), paradigms),
    )
