"""What an evaluation prints and writes: tables, `results.json`, and metadata for model cards."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index

from snugbert.errors import InputError, format_count
from snugbert.evaluation.held_out_text import TextResults
from snugbert.evaluation.pseudo_likelihood import VARIANTS
from snugbert.files import write_atomically
from snugbert.reports.cards import eval_result, table
from snugbert.reports.pretrained_card import format_results
from snugbert.trainers.pretraining.baselines import format_comparison

RESULTS_NAME = "results.json"
VARIANT_TITLES = {"original": "PLL", "within_word_l2r": "PLL, within-word left-to-right"}


def check_report_dir(output_dir: Path, overwrite: bool) -> None:
    """Raises an [`InputError`] if the folder already contains results, unless they may be overwritten."""
    if output_dir.exists() and not output_dir.is_dir():
        raise InputError(f"--output_dir: {output_dir} is a file, not a folder.")
    if (output_dir / RESULTS_NAME).exists() and not overwrite:
        raise InputError(
            f"--output_dir: {output_dir} already contains results. Choose another folder, or replace them "
            "(--overwrite_output_dir)."
        )


def check_card(name: str | None) -> Path:
    """Returns the card in the folder of the model `name`.

    Raises:
        InputError: there is no folder or no card, or the header of the card is invalid.
    """
    card = None if name is None else Path(name) / "README.md"
    if card is None or not card.is_file():
        raise InputError(
            "--update_card: the model is not a folder with a README.md. Remove the flag, or create the card first."
        )
    try:
        ModelCard.load(card)
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"--update_card: the header of {card} is invalid: {error}") from error
    return card


def format_pairs(results: dict[str, Any]) -> str:
    """Returns the table of phenomena that the command prints."""
    lines = [("", "pairs", *VARIANT_TITLES.values())]
    lines += [
        (name.replace("_", " "), f"{group['pairs']:,}", *_percent(group))
        for name, group in results["phenomena"].items()
    ]
    lines.append(("mean over paradigms", f"{results['pairs']:,}", *_percent(results)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]) for name, *numbers in lines]
    paradigms = format_count(len(results["paradigms"]), "paradigm")
    title = f"Minimal pairs: percent correct in {paradigms}. Chance is 50. PLL: pseudo-log-likelihood."
    return "\n".join([title, *rows])


def pairs_tables(results: dict[str, Any]) -> str:
    """Returns Markdown tables of phenomena and paradigms."""
    phenomena = [
        (name.replace("_", " "), group["paradigms"], group["pairs"], *_percent(group))
        for name, group in results["phenomena"].items()
    ]
    mean = ("mean over paradigms", len(results["paradigms"]), results["pairs"], *_percent(results))
    paradigms = [
        (name, paradigm["phenomenon"].replace("_", " "), paradigm["pairs"], *_percent(paradigm))
        for name, paradigm in results["paradigms"].items()
    ]
    titles = tuple(VARIANT_TITLES.values())
    return (
        "Percent of pairs in which the model finds the acceptable sentence more likely. Ties count as wrong. Chance "
        "is 50. PLL: pseudo-log-likelihood.\n\n"
        f"{table(('phenomenon', 'paradigms', 'pairs', *titles), [*phenomena, mean])}\n\n"
        f"{table(('paradigm', 'phenomenon', 'pairs', *titles), paradigms)}"
    )


def _percent(group: dict[str, Any]) -> list[str]:
    return [f"{100 * group['accuracy'][variant]:.1f}" for variant in VARIANTS]


def pairs_eval_results(results: dict[str, Any], dataset_name: str) -> list[EvalResult]:
    """Returns the mean accuracies in the Hub's format."""
    return [
        eval_result(
            results["accuracy"][variant],
            task_type="fill-mask",
            task_name="Minimal pairs",
            dataset_name=dataset_name,
            metric_type="accuracy",
            metric_name=f"Accuracy, {VARIANT_TITLES[variant]}",
        )
        for variant in VARIANTS
    ]


def format_text(results: TextResults) -> str:
    """Returns the table of held-out text that the command prints."""
    return "\n".join(
        [
            f"Held-out text: {results['dataset']}. {_describe_text(results)}",
            format_comparison(results["metrics"], results["baselines"], results["objective"]),
            f"The baseline predicts tokens by their frequency in the {results['token_frequencies']}.",
        ]
    )


def text_table(results: TextResults) -> str:
    """Returns a Markdown table of the scores on held-out text."""
    scores = format_results(results["metrics"], results["baselines"], results["token_frequencies"])
    return f"{_describe_text(results)}\n\n{scores}"


def _describe_text(results: TextResults) -> str:
    examples = "pairs" if results["objective"] != "mlm" else "full sentences"
    return (
        f"{format_count(results['examples'], 'example')} ({examples}), {format_count(results['tokens'], 'token')} "
        f"({results['unknown_tokens']:.2%} unknown), {format_count(results['characters'], 'character')}."
    )


def write_report(
    output_dir: Path, results: dict[str, Any], sections: Iterable[str], eval_results: list[EvalResult]
) -> None:
    """Writes `results.md`, `card_metadata.yaml` and `results.json` into a folder.

    Args:
        output_dir: the folder.
        results: the content of `results.json`.
        sections: Markdown for `results.md`.
        eval_results: for the header of the model's card.
    """
    metadata = {"model-index": eval_results_to_model_index(results["model"], eval_results)}
    write_atomically(output_dir / "results.md", "\n\n".join(sections) + "\n")
    write_atomically(output_dir / "card_metadata.yaml", yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True))
    write_atomically(output_dir / RESULTS_NAME, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def update_card(file: Path, eval_results: list[EvalResult]) -> None:
    """Adds results to the header of a model card. They replace earlier values of the same metrics."""
    card: Any = ModelCard.load(file)
    kept = [
        old for old in card.data.eval_results or [] if not any(new.is_equal_except_value(old) for new in eval_results)
    ]
    card.data.eval_results = [*kept, *eval_results]
    card.data.model_name = card.data.model_name or file.resolve().parent.name
    old_metrics = card.data.metrics or []
    if isinstance(old_metrics, str):  # YAML also allows a single name
        old_metrics = [old_metrics]
    card.data.metrics = sorted({*old_metrics, *(new.metric_type for new in eval_results)})
    write_atomically(file, str(card))
