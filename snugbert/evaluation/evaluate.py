"""Runs `snugbert evaluate`: loads the model, scores it, prints and writes the results."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import EvalResult
from transformers import PreTrainedModel, set_seed

from snugbert.card_snugbert import escape, find_base_model
from snugbert.data.documents import match_files
from snugbert.data.sources import describe_file
from snugbert.errors import InputError
from snugbert.evaluation.evaluation_arguments import (
    EvaluatedModelArguments,
    EvaluationArguments,
    HeldOutTextArguments,
    PairsArguments,
)
from snugbert.evaluation.evaluation_report import (
    check_card,
    check_report_dir,
    format_pairs,
    format_text,
    pairs_eval_results,
    pairs_tables,
    text_table,
    update_card,
    write_report,
)
from snugbert.evaluation.held_out_text import score_text
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import Pair, read_pairs, score_pairs
from snugbert.files import writing
from snugbert.progress import format_duration
from snugbert.reports.cards import package_versions
from snugbert.reports.evaluation_plots import PLOT_NAME, draw_minimal_pairs
from snugbert.reports.pretrained_card import metric_eval_results
from snugbert.trainers.pretraining.corpora import join_names


class _Section(NamedTuple):
    """What an evaluation reports about one kind of data.

    Attributes:
        results: for `results.json`.
        markdown: for `results.md`.
        eval_results: for the header of the model's card.
    """

    results: dict[str, Any]
    markdown: str
    eval_results: list[EvalResult]


def run(
    model_args: EvaluatedModelArguments,
    pairs_args: PairsArguments,
    text_args: HeldOutTextArguments,
    args: EvaluationArguments,
) -> None:
    """Scores a model, prints the results and writes them.

    Raises:
        InputError: the model or the data cannot be used, or the output folder already contains results.
    """
    if not pairs_args.pairs_file and not text_args.validation_file:
        raise InputError("no data. Give --pairs_file, --validation_file, or both.")
    output_dir = None if args.output_dir is None else Path(args.output_dir)
    if output_dir is not None:
        check_report_dir(output_dir, args.overwrite_output_dir)
    card = check_card(model_args.model_name_or_path) if args.update_card else None
    files = match_files(pairs_args.pairs_file)
    pairs = read_pairs(files, pairs_args.good_column_name, pairs_args.bad_column_name)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)  # fails early if it cannot be created

    sections: dict[str, _Section] = {}
    if text_args.validation_file:  # first, because pairs can take much longer
        sections["held_out_text"] = _evaluate_text(model_args, text_args, args.seed)
    if pairs:
        sections["minimal_pairs"] = _evaluate_pairs(model_args, files, pairs, args.seed)
    eval_results = [result for section in sections.values() for result in section.eval_results]
    if output_dir is not None:
        results = {
            "model": find_base_model(model_args.model_name_or_path)[1],
            "config": model_args.config_name,
            "bf16": model_args.bf16,
            **{name: section.results for name, section in sections.items()},
            "versions": package_versions(),
        }
        with writing(output_dir, "run the same command again"):
            plot = output_dir / PLOT_NAME
            plot.unlink(missing_ok=True)
            if pairs:
                draw_minimal_pairs(sections["minimal_pairs"].results, plot)
            write_report(output_dir, results, [section.markdown for section in sections.values()], eval_results)
        print(
            f"Written to {output_dir}: results.json, results.md, card_metadata.yaml"
            + (f", {PLOT_NAME}" if pairs else "")
        )
    if card is not None:
        with writing(card, "run the same command again"):
            update_card(card, eval_results)
        print(f"Updated {card}")


def _precision(model: PreTrainedModel, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast(model.device.type, torch.bfloat16) if bf16 else nullcontext()


def _evaluate_text(model_args: EvaluatedModelArguments, text_args: HeldOutTextArguments, seed: int) -> _Section:
    set_seed(seed)
    model, tokenizer = load_masked_model(model_args, sentence_pairs=not text_args.no_nsp)
    start = time.perf_counter()
    with _precision(model, model_args.bf16):
        scores = score_text(model, tokenizer, text_args, cache_dir=model_args.cache_dir)
    duration = time.perf_counter() - start
    print(f"{format_text(scores)}\nTime: {format_duration(duration)}\n")
    return _Section(
        {**scores, "seconds": duration},
        f"# Held-out text: {escape(scores['dataset'])}\n\n{text_table(scores)}",
        metric_eval_results(scores["metrics"], scores["dataset"]),
    )


def _evaluate_pairs(
    model_args: EvaluatedModelArguments, files: Sequence[Path], pairs: Sequence[Pair], seed: int
) -> _Section:
    set_seed(seed)
    model, tokenizer = load_masked_model(model_args, required=["mask_token"])
    start = time.perf_counter()
    with _precision(model, model_args.bf16):
        scores = score_pairs(model, tokenizer, pairs)
    duration = time.perf_counter() - start
    print(f"{format_pairs(scores)}\nTime: {format_duration(duration)}\n")
    # Several files are usually one benchmark in a folder of its own.
    folders = sorted({file.resolve().parent.name for file in files})
    dataset = describe_file(files[0]) if len(files) == 1 else join_names(folders)
    return _Section(
        {"dataset": dataset, **scores, "seconds": duration},
        f"# Minimal pairs: {escape(dataset)}\n\n{pairs_tables(scores)}",
        pairs_eval_results(scores, dataset),
    )
