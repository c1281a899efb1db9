"""The card of an exported model: what it is, how it differs from the original, and code that runs it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel

from snugbert.card_snugbert import TAGS, code_span, find_base_model, inherit_header, read_card
from snugbert.configuration_snugbert import get_windows
from snugbert.reports.cards import Head, render, save_model_card

Wrapper = Literal["SentenceTransformer", "CrossEncoder"]


@dataclass
class Export:
    """Result of an export."""

    engine: str
    model_class: str
    dtype: str
    calibrated: bool  # whether ranges of activations were measured on text
    size: int  # of the model files, in bytes
    difference: float  # largest difference from the outputs of the SnugBERT model
    num_texts: int  # number of texts that both models ran on
    notes: list[str] = field(default_factory=list)


def write_card(
    output_dir: Path,
    source: Path,
    source_name: str,
    model: PreTrainedModel,
    to: str,
    done: Export,
    is_regression: bool,
    wrapper: Wrapper | None,
) -> None:
    """Writes README.md, with language and license of the original card. A card that the user wrote is not replaced."""
    name, config = type(model).__name__.removeprefix("SnugBert"), model.config
    head = Head(wrapper if wrapper == "SentenceTransformer" else name)
    if name == "ForSequenceClassification" and wrapper != "SentenceTransformer":
        reads_pairs = len(getattr(config, "text_columns", None) or ()) == 2
        head = Head(name, is_regression, reads_pairs or None, windows=get_windows(config))
    base = read_card(source / "README.md").data
    base_model, base_name = find_base_model(source_name)
    header = inherit_header(
        base,
        library_name="transformers" if to == "bert" else to,
        pipeline_tag=head.task,
        base_model=base_model or base.base_model,
        tags=[*TAGS, *([] if to == "bert" else [to])],
    )
    labels: Any = config.id2label
    thresholds = getattr(config, "thresholds", None) or {}
    run = {"name": output_dir.name, "to": to, "head": head, "wrapper": wrapper, "model_class": done.model_class}
    save_model_card(
        output_dir,
        "exported.md",
        header,
        head,
        name=output_dir.name,
        base_name=base_name,
        done=done,
        labels=[code_span(labels[index]) for index in sorted(labels)] if head.has_labels else [],
        thresholds=[f"{code_span(label)} from {value:.3f}" for label, value in thresholds.items()],
        code=render("run_export.md", config=config, **run),
    )
