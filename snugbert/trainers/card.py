"""The parts that all model cards of the commands share: the file, the header's results, tables, versions."""

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
    """Writes `README.md` into the folder of a model, unless somebody's own words are there.

    A card is taken for somebody's own where it lacks the comment that ours, and Trainer's, begin with.

    Args:
        output_dir: the folder that holds model and tokenizer.
        header: what the Hub reads.
        sections: what people read, as Markdown, the title first; the versions of the packages are put behind them.
    """
    file = output_dir / "README.md"
    if file.exists() and not any(mark in file.read_text(encoding="utf-8") for mark in (OWN_CARD, TRAINERS_CARD)):
        return
    packages = ", ".join(f"{package} {version}" for package, version in versions().items())
    compose(header, [*sections, f"## Versions\n\n{packages}"]).save(file)


def eval_result(value: float, *, dataset_name: str, dataset_id: str | None = None, **fields: Any) -> EvalResult:
    """A figure as the Hub reads it, of at most six digits.

    Args:
        value: the figure.
        dataset_name: what the data are called.
        dataset_id: their id on the Hub; what is not there has its name, as the Hub wants an id of all data.
        fields: others of `EvalResult`.
    """
    return EvalResult(
        dataset_type=dataset_id or re.sub(r"\W+", "-", dataset_name.lower()).strip("-"),
        dataset_name=dataset_name,
        metric_value=float(f"{value:.6g}"),
        **fields,
    )


def versions() -> dict[str, str]:
    """What figures depend on beside data and settings."""
    return {
        "snugbert": snugbert.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; whole numbers get their thousands separated, text is shown as it stands."""
    names = tuple(header)
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return escape(str(value))
