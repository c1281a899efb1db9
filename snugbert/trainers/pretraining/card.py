"""What a pretraining run leaves beside its model: `training.png`, the curves of its log, and a model card.

The log is `metrics.jsonl`, a JSON object a line. A line of training has `step`, `tokens` (word pieces seen so far),
`learning_rate`, `mlm_loss` and `mlm_accuracy`, with next sentences `nsp_loss` and `nsp_accuracy`; a line of an
evaluation has `step` and the same figures as `eval_mlm_loss` and so on. Losses are in nats, accuracies from 0 to 1.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from snugbert.card_snugbert import BIAS_WARNING, HEADS, TAGS, escape, find_base_model, how_to_load
from snugbert.trainers.card import eval_result, save_model_card, table
from snugbert.trainers.pretraining.plot import FORMS, PICTURE

FIGURES = {
    "mlm_loss": "masked token loss, nats",
    "mlm_accuracy": "masked token accuracy",
    "nsp_loss": "next sentence loss, nats",
    "nsp_accuracy": "next sentence accuracy",
}
# Figures that the Hub has names for: its name, and what it is called there.
HUB_METRICS = {
    "mlm_accuracy": ("fill-mask", "Masked tokens", "accuracy", "Masked token accuracy"),
    "mlm_loss": ("fill-mask", "Masked tokens", "loss", "Masked token loss (nats)"),
    "nsp_accuracy": ("text-classification", "Next sentences", "accuracy", "Next sentence accuracy"),
}


# --- the picture ------------------------------------------------------------------------------------------------


# --- the model card ---------------------------------------------------------------------------------------------


def write_pretraining_card(
    output_dir: Path,
    *,
    name: str,
    language: str | None,
    data: Mapping[str, Any],
    settings: Mapping[str, Any],
    figures: Mapping[str, float] | None = None,
    baselines: Mapping[str, float] | None = None,
    validation_name: str = "validation text",
    dataset_name: str | None = None,
    base_model: str | None = None,
    next_sentences: bool = True,
) -> None:
    """Writes `README.md` into the folder of the model, unless somebody's own words are there, see [`save_model_card`].

    The curves are shown if the folder has them, see [`draw_training`]. The Hub reads the figures of [`HUB_METRICS`].

    Args:
        output_dir: the folder that holds model and tokenizer.
        name: what the model is called, on the Hub if it goes there.
        language: ISO 639-1 code, or None.
        data: what the model was trained and evaluated on: rows of a table, from what to how much.
        settings: how it was trained, likewise.
        figures: figures on the validation text, those of [`FIGURES`] that there are.
        baselines: the same of a model that knows only frequencies.
        validation_name: what the validation text is called.
        dataset_name: a dataset on the Hub, for the card's header.
        base_model: the checkpoint that training began from, a folder or a name on the Hub; None: random weights.
        next_sentences: whether the model has the head for them, too.
    """
    head = HEADS["ForPreTraining" if next_sentences else "ForMaskedLM"]
    base_id, start = find_base_model(base_model)
    results = _eval_results(figures or {}, validation_name)
    header = ModelCardData(
        language=language,
        library_name="transformers",
        pipeline_tag=head.task,
        tags=[*TAGS, "masked-lm", "pretraining"],
        base_model=base_id,
        datasets=None if dataset_name is None else [dataset_name],
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=name,
        eval_results=results or None,
    )
    sections = [
        f"# {escape(name)}",
        f"A BERT encoder that {head.ability}. It was pretrained on text with SnugBERT, from {escape(start)}.",
        how_to_load(name, head),
        f"## Text\n\n{table(('what', 'value'), data.items())}",
        f"## Settings\n\n{table(('setting', 'value'), settings.items())}",
    ]
    if figures:
        sections.append(f"## Results\n\n{_results(figures, baselines or {})}")
    if (output_dir / PICTURE).exists():
        sections.append(f"![Losses and accuracies over the word pieces seen]({PICTURE})")
    sections.append(f"## Limitations\n\n{head.limits} It knows nothing but the text above. {BIAS_WARNING}")
    save_model_card(output_dir, header, sections)


def _eval_results(figures: Mapping[str, float], validation_name: str) -> list[EvalResult]:
    return [
        eval_result(
            figures[figure],
            task_type=task_type,
            task_name=task_name,
            dataset_name=validation_name,
            dataset_split="validation",
            metric_type=metric_type,
            metric_name=metric_name,
        )
        for figure, (task_type, task_name, metric_type, metric_name) in HUB_METRICS.items()
        if figure in figures
    ]


def _results(figures: Mapping[str, float], baselines: Mapping[str, float]) -> str:
    rows = []
    for figure, description in FIGURES.items():
        if figure in figures:
            form = FORMS[figure.partition("_")[2]]
            baseline = format(baselines[figure], form) if figure in baselines else ""
            rows.append((description, format(figures[figure], form), baseline))
    return "On the validation text, beside a model that knows how frequent words are and nothing else:\n\n" + table(
        ("", "this model", "without context"), rows
    )
