"""Code for the model cards of all commands: the file, results for the Hub, tables, package versions."""

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCardData

import snugbert
from snugbert.card_snugbert import OWN_CARD, TRAINERS_CARD, compose, escape


def save_model_card(output_dir: Path, header: ModelCardData, sections: list[str]) -> None:
    """Writes `README.md` into the folder of a model, with the package versions as its last section.

    Does not replace a card that the user wrote. Cards written by SnugBERT or Trainer start with a comment.
    """
    file = output_dir / "README.md"
    if file.exists() and not any(mark in file.read_text(encoding="utf-8") for mark in (OWN_CARD, TRAINERS_CARD)):
        return
    packages = ", ".join(f"{package} {version}" for package, version in package_versions().items())
    compose(header, [*sections, f"## Versions\n\n{packages}"]).save(file)


def eval_result(value: float, *, dataset_name: str, dataset_id: str | None = None, **fields: Any) -> EvalResult:
    """Returns a metric in the Hub's format, rounded to six significant digits."""
    return EvalResult(
        dataset_type=dataset_id or re.sub(r"\W+", "-", dataset_name.lower()).strip("-"),
        dataset_name=dataset_name,
        metric_value=float(f"{value:.6g}"),
        **fields,
    )


def package_versions() -> dict[str, str]:
    """Returns the versions of the packages that affect the results."""
    return {
        "snugbert": snugbert.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a Markdown table. Integers get thousands separators. Text is escaped."""
    names = tuple(header)
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return escape(str(value))
