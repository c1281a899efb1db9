"""What a pretraining run leaves beside its model: `training.png`, the curves of its log, and a model card.

The log is `metrics.jsonl`, a JSON object a line. A line of training has `step`, `tokens` (word pieces seen so far),
`learning_rate`, `mlm_loss` and `mlm_accuracy`, with next sentences `nsp_loss` and `nsp_accuracy`; a line of an
evaluation has `step` and the same figures as `eval_mlm_loss` and so on. Losses are in nats, accuracies from 0 to 1.
"""

import json
import platform
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData

import snugbert

PICTURE = "training.png"
TASKS = {"mlm": "Masked tokens", "nsp": "Next sentences"}
MEASURES = {"loss": "loss (nats)", "accuracy": "accuracy"}
FIGURES = {
    "mlm_loss": "masked token loss, nats",
    "mlm_accuracy": "masked token accuracy",
    "nsp_loss": "next sentence loss, nats",
    "nsp_accuracy": "next sentence accuracy",
}
FORMS = {"loss": ".3f", "accuracy": ".1%"}
COLORS = {"training": "#2b6cb0", "validation": "#d9480f"}
MANY_LINES = 400  # a curve of more lines of the log is drawn pale, with the means of `MEANS` stretches over it
MEANS = 200
# A card that holds one of these was written by a program and may be replaced; the second is Trainer's.
OWN_CARD = "<!-- Written by `snugbert pretrain`, which replaces it as long as this line is here. -->"
REPLACEABLE = (OWN_CARD, "<!-- This model card has been generated automatically according to the information")
INTRODUCTION = (
    "A BERT encoder, pretrained from raw text with SnugBERT. As it is, it fills in masked words; classifiers, taggers "
    "and sentence embeddings are fine-tuned from it. It knows nothing but the text below, and shares its faults."
)
HOW_TO_LOAD = """```python
from transformers import AutoModel, AutoTokenizer, pipeline

tokenizer = AutoTokenizer.from_pretrained({name}, trust_remote_code=True)
model = AutoModel.from_pretrained({name}, trust_remote_code=True)
fill_mask = pipeline("fill-mask", model={name}, trust_remote_code=True)
```

The folder holds the code of the model. Where the package snugbert is installed, `import snugbert` stands for
`trust_remote_code=True`."""

Curve = tuple[list[float], list[float]]


# --- the picture ------------------------------------------------------------------------------------------------


def draw_training(metrics_file: Path, image_file: Path, baselines: Mapping[str, float] | None = None) -> None:
    """Draws losses, accuracies and the learning rate of a run over the word pieces it has seen.

    Args:
        metrics_file: the log, see above; a line that is not whole, as a killed run leaves it, is passed over.
        image_file: the picture, a PNG. It is not written where the log has no figure to show.
        baselines: figures of [`FIGURES`] that a model scores which knows only frequencies; they become dotted lines.
    """
    from matplotlib.figure import Figure  # here, as it takes a second to import, which no other part of a run needs
    from matplotlib.ticker import PercentFormatter

    lines = _read_metrics(metrics_file)
    tasks = [task for task in TASKS if any(f"{task}_loss" in name for line in lines for name in line)]
    if not tasks:
        return
    unit, unit_name = _unit(max(line["tokens"] for line in lines))
    figure = Figure(figsize=(6 * len(tasks) + 0.5, 8), dpi=130, layout="constrained", facecolor="white")
    panels = figure.subplots(3, len(tasks), sharex=True, squeeze=False, height_ratios=(4, 4, 1.3))
    rates = _curve(lines, "learning_rate", unit)
    for column, task in enumerate(tasks):
        for row, (measure, label) in enumerate(MEASURES.items()):
            name = f"{task}_{measure}"
            _draw_panel(
                panels[row, column],
                {"training": _curve(lines, name, unit), "validation": _curve(lines, f"eval_{name}", unit)},
                (baselines or {}).get(name),
                FORMS[measure],
            )
            panels[row, column].set_ylabel(label)
            if measure == "accuracy":
                panels[row, column].yaxis.set_major_formatter(PercentFormatter(1))
        panels[0, column].set_title(TASKS[task], fontsize=13, fontweight="bold", loc="left")
        panels[2, column].plot(*rates, color="#666666", marker=_marker(rates))
        panels[2, column].set_ylim(bottom=0)
        panels[2, column].set_ylabel("learning rate")
        panels[2, column].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
        panels[2, column].set_xlabel(f"word pieces seen{unit_name}")
        panels[2, column].set_xlim(left=0)
    for panel in panels.flat:
        panel.grid(color="#e4e4e4", linewidth=0.7)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(image_file, format="png")


def _read_metrics(metrics_file: Path) -> list[dict[str, Any]]:
    """The whole lines of the log, in order, each with `tokens`; none if nothing has been learned yet."""
    lines = []
    for text in metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            lines.append(line)
    known = [{"step": 0, "tokens": 0}, *(line for line in lines if "tokens" in line)]
    if len(known) == 1:
        return []
    # Steps have nearly the same number of word pieces each.
    steps, tokens = [line["step"] for line in known], [line["tokens"] for line in known]
    lines = [{"tokens": float(np.interp(line["step"], steps, tokens))} | line for line in lines]
    return sorted(lines, key=lambda line: line["tokens"])


def _unit(most: float) -> tuple[float, str]:
    for unit, name in ((1e9, " (billions)"), (1e6, " (millions)"), (1e3, " (thousands)")):
        if most >= unit:
            return unit, name
    return 1, ""


def _curve(lines: list[dict[str, Any]], name: str, unit: float) -> Curve:
    points = [(line["tokens"] / unit, line[name]) for line in lines if name in line]
    return [x for x, _ in points], [y for _, y in points]


def _draw_panel(panel: Any, curves: dict[str, Curve], baseline: float | None, form: str) -> None:
    """Draws curves and the baseline; `form` is that of their last values in the legend."""
    for name, (tokens, values) in curves.items():
        if not values:
            continue
        label = f"{name}, last {values[-1]:{form}}"
        if len(values) > MANY_LINES:
            panel.plot(tokens, values, color=COLORS[name], linewidth=0.6, alpha=0.35)
            tokens, values = _means(tokens), _means(values)
        panel.plot(tokens, values, color=COLORS[name], linewidth=1.7, marker=_marker((tokens, values)), label=label)
    if baseline is not None:
        panel.axhline(baseline, color="#666666", linestyle=":", label=f"without context {baseline:{form}}")
    panel.legend(frameon=False)


def _marker(curve: Curve) -> str | None:
    return "o" if len(curve[0]) == 1 else None  # a line of one point is none


def _means(values: list[float]) -> list[float]:
    edges = [round(part * len(values) / MEANS) for part in range(MEANS + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


# --- the model card ---------------------------------------------------------------------------------------------


def write_model_card(
    output_dir: Path,
    *,
    name: str,
    language: str | None,
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    figures: Mapping[str, float] | None = None,
    baselines: Mapping[str, float] | None = None,
    dataset_name: str | None = None,
) -> None:
    """Writes `README.md` into the folder of the model, unless somebody's own words are there.

    A card is taken for somebody's own where it lacks the comment that cards of this function, and Trainer's, begin
    with. The curves are shown if the folder has them, see [`draw_training`].

    Args:
        output_dir: the folder that holds model and tokenizer.
        name: what the model is called, on the Hub if it goes there.
        language: ISO 639-1 code, or None.
        data: what the model was trained and evaluated on: rows of a table, from what to how much.
        settings: how it was trained, likewise.
        figures: final figures on the validation text, those of [`FIGURES`] that there are.
        baselines: the same of a model that knows only frequencies.
        dataset_name: a dataset on the Hub, for the card's header.
    """
    file = output_dir / "README.md"
    if file.exists() and not any(mark in file.read_text(encoding="utf-8") for mark in REPLACEABLE):
        return
    header = ModelCardData(
        language=language,
        library_name="transformers",
        pipeline_tag="fill-mask",
        tags=["snugbert", "bert", "masked-lm", "pretraining"],
        datasets=None if dataset_name is None else [dataset_name],
    )
    versions = {
        "snugbert": snugbert.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    sections = [
        f"---\n{header.to_yaml()}\n---",
        OWN_CARD,
        f"# {name}",
        INTRODUCTION,
        HOW_TO_LOAD.format(name=json.dumps(name)),
        f"## Text\n\n{_table(('what', 'value'), data.items())}",
        f"## Settings\n\n{_table(('setting', 'value'), settings.items())}",
    ]
    if figures:
        sections.append(f"## Results\n\n{_results(figures, baselines or {})}")
    if (output_dir / PICTURE).exists():
        sections.append(f"![Losses and accuracies over the word pieces seen]({PICTURE})")
    sections.append(f"## Versions\n\n{', '.join(f'{package} {version}' for package, version in versions.items())}")
    ModelCard("\n\n".join(sections) + "\n").save(file)


def _table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return re.sub(r"([|*_<\\])", r"\\\1", str(value)).replace("\n", " ")  # as it stands, not as Markdown


def _results(figures: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    rows = []
    for figure, description in FIGURES.items():
        if figure in figures:
            form = FORMS[figure.partition("_")[2]]
            baseline = format(baselines[figure], form) if figure in baselines else ""
            rows.append((description, format(figures[figure], form), baseline))
    return "On the validation text, beside a model that knows how frequent words are and nothing else:\n\n" + _table(
        ("", "this model", "without context"), rows
    )
