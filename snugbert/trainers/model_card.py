"""What the model cards of all commands have in common: who wrote them, tables, versions."""

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData

import snugbert

# A card that holds one of these was written by a program and may be replaced; the second is Trainer's.
OWN_CARD = "<!-- Written by `snugbert`, which replaces it as long as this line is here. -->"
REPLACEABLE = (OWN_CARD, "<!-- This model card has been generated automatically according to the information")
HOW_TO_OPEN = (
    "The folder holds the code of the model. Where the package snugbert is installed, `import snugbert` stands for "
    "`trust_remote_code=True`."
)


def save_model_card(output_dir: Path, header: ModelCardData, sections: list[str]) -> None:
    """Writes `README.md` into the folder of a model, unless somebody's own words are there.

    A card is taken for somebody's own where it lacks the comment that cards of this function, and Trainer's, begin
    with.

    Args:
        output_dir: the folder that holds model and tokenizer.
        header: what the Hub reads.
        sections: what people read, as Markdown, the title first; the versions of the packages are put behind them.
    """
    file = output_dir / "README.md"
    if file.exists() and not any(mark in file.read_text(encoding="utf-8") for mark in REPLACEABLE):
        return
    packages = ", ".join(f"{package} {version}" for package, version in versions().items())
    parts = [f"---\n{header.to_yaml()}\n---", OWN_CARD, *sections, f"## Versions\n\n{packages}"]
    ModelCard("\n\n".join(parts) + "\n").save(file)


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
    return re.sub(r"([|*_<\\])", r"\\\1", str(value)).replace("\n", " ")  # as it stands, not as Markdown
