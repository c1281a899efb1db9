"""What the model cards of all commands share: heads, templates, results for the Hub, tables, package versions."""

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData

import snugbert
from snugbert.card_snugbert import BIAS_WARNING, OWN_CARD, TASKS, TRAINERS_CARD, escape, how_to_load

TEMPLATES = Path(__file__).parent / "templates"
ENVIRONMENT = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """Renders a template that is a part of a card or of `results.md`."""
    return ENVIRONMENT.get_template(template).render(escape=escape, **values).strip()


class Head(NamedTuple):
    """A head, for the text of `templates/heads.md`. All fields but the first are about classifiers."""

    name: str  # of the class, without SnugBert
    is_regression: bool = False  # whether it predicts a number instead of labels
    text_pairs: bool | None = None  # whether it reads pairs of texts. None: unknown, so the card shows both
    thresholds: int = 0  # number of thresholds. 1: for the positive one of two labels. More: one per label
    # Maximum tokens of a window, and tokens that neighboring windows share, if the model reads long texts. The card
    # then shows how to average the logits, because a pipeline reads one window.
    windows: tuple[int, int] | None = None

    @property
    def task(self) -> str | None:
        """The Hub's name of the task, if there is one."""
        return "sentence-similarity" if self.name == "SentenceTransformer" else TASKS[self.name]

    @property
    def has_labels(self) -> bool:
        """Whether the model predicts labels."""
        return self.task in ("text-classification", "token-classification") and not self.is_regression

    def describe(self, macro: str, *arguments: Any) -> str:
        """Returns the text of a macro of `templates/heads.md`: "ability", "limits" or "use"."""
        return getattr(ENVIRONMENT.get_template("heads.md").module, macro)(self, *arguments).strip()


def show_use(name: str, head: Head) -> str:
    """Returns the section on how to load and use the model, with the package snugbert and without it."""
    uses = [f"\n{head.describe('use', with_package)}" for with_package in (False, True)]
    return how_to_load(name, head.name, *uses)


def save_model_card(output_dir: Path, template: str, header: ModelCardData, head: Head, **values: Any) -> None:
    """Renders a template, and writes it as `README.md` into the folder of a model.

    Does not replace a card that the user wrote. Cards written by SnugBERT or Trainer start with a comment.
    """
    file = output_dir / "README.md"
    if file.exists() and not any(mark in file.read_text(encoding="utf-8") for mark in (OWN_CARD, TRAINERS_CARD)):
        return
    shared: dict[str, Any] = {
        "own_card": OWN_CARD,
        "bias_warning": BIAS_WARNING,
        "versions": package_versions(),
        "ability": head.describe("ability"),
        "limits": head.describe("limits"),
    }
    card = ModelCard.from_template(header, str(TEMPLATES / template), escape=escape, table=table, **shared, **values)
    card.text = re.sub(r"\n{3,}", "\n\n", card.text) + "\n"  # removes the gaps that omitted parts leave
    card.save(file)


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
    return "\n".join(f"| {' | '.join(format_cell(value) for value in line)} |" for line in lines)


def format_cell(value: Any) -> str:
    """Formats a value of a table for Markdown."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return escape(str(value))
