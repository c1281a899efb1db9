"""The model card of pretraining: what the model does, its text, settings, metrics and limits."""

import json
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from snugbert.card_snugbert import TAGS, find_base_model
from snugbert.reports.cards import Head, eval_result, save_model_card, show_use, table
from snugbert.reports.pretraining_plots import TRAINING_PLOT

# Metrics in the table of results.
PRETRAINING_METRICS = {
    "mlm_loss": "masked token loss, nats",
    "mlm_accuracy": "masked token accuracy",
    "bits_per_character": "bits per character",
    "nsp_loss": "sentence pair loss, nats",
    "nsp_accuracy": "sentence pair accuracy",
    "disc_loss": "replaced token loss, nats",
    "disc_accuracy": "replaced token accuracy",
}
# Metrics in the header, for the Hub: task type, task name, metric type, metric name.
PRETRAINING_HUB_METRICS = {
    "mlm_accuracy": ("fill-mask", "Masked tokens", "accuracy", "Masked token accuracy"),
    "mlm_loss": ("fill-mask", "Masked tokens", "loss", "Masked token loss (nats)"),
    "bits_per_character": ("fill-mask", "Masked tokens", "bits_per_character", "Bits per character (estimate)"),
    "nsp_accuracy": ("text-classification", "Sentence pairs", "accuracy", "Sentence pair accuracy"),
    "disc_accuracy": ("token-classification", "Replaced tokens", "accuracy", "Replaced token accuracy"),
}


def write_pretraining_card(
    output_dir: Path,
    *,
    name: str,
    language: str | None,
    data: Mapping[str, str | float],
    settings: Mapping[str, str | float],
    metrics: Mapping[str, float] | None = None,
    baselines: Mapping[str, float] | None = None,
    validation_name: str = "validation text",
    dataset_name: str | None = None,
    base_model: str | None = None,
    start_is_known: bool = True,
    head_name: str = "ForPreTraining",
    generator_folder: str | None = None,
) -> None:
    """Writes `README.md` into the folder of the model. A card that a user wrote is kept, see [`save_model_card`].

    The card shows the plot if the folder has one, see [`draw_training`].
    """
    head = Head(head_name)
    base_id, start = find_base_model(base_model)
    hub_results = metric_eval_results(metrics or {}, validation_name)
    header = ModelCardData(
        language=language,
        library_name="transformers",
        pipeline_tag=head.task,
        tags=[*TAGS, "masked-lm" if head.task == "fill-mask" else "electra", "pretraining"],
        base_model=base_id,
        datasets=None if dataset_name is None else [dataset_name],
        metrics=sorted({result.metric_type for result in hub_results}) or None,
        model_name=name,
        eval_results=hub_results or None,
    )
    save_model_card(
        output_dir,
        "pretrained.md",
        header,
        head,
        name=name,
        quoted_name=json.dumps(name),
        start=start if start_is_known else "",
        how_to_load=show_use(name, head),
        generator_folder=generator_folder,
        data=data,
        settings=settings,
        results=format_results(metrics, baselines or {}) if metrics else "",
        plot=TRAINING_PLOT if (output_dir / TRAINING_PLOT).exists() else "",
    )


def metric_eval_results(metrics: Mapping[str, float], validation_name: str) -> list[EvalResult]:
    """Returns metrics on the validation text in the Hub's format. For ELECTRA, returns the discriminator's metrics."""
    is_electra = "disc_accuracy" in metrics
    return [
        eval_result(
            metrics[name],
            task_type=task_type,
            task_name=task_name,
            dataset_name=validation_name,
            dataset_split="validation",
            metric_type=metric_type,
            metric_name=metric_name,
        )
        for name, (task_type, task_name, metric_type, metric_name) in PRETRAINING_HUB_METRICS.items()
        if name in metrics and not (is_electra and name != "disc_accuracy")
    ]


def format_results(
    metrics: Mapping[str, float], baselines: Mapping[str, float], token_frequencies: str = "training text"
) -> str:
    """Returns a Markdown table of the metrics on the validation text next to the baselines, with an explanation."""
    by = " (generator)" if "disc_accuracy" in metrics else ""
    rows = [
        (description + by * name.startswith("mlm"), *(_format_metric(values, name) for values in (metrics, baselines)))
        for name, description in PRETRAINING_METRICS.items()
        if name in metrics
    ]
    if not baselines:  # in a card that is pushed during training
        return f"Metrics on the validation text.\n\n{table(('', 'this model'), [row[:2] for row in rows])}"
    same = " For replaced tokens, the baseline gives all tokens the same probability."
    tokens = same if "disc_accuracy" in baselines else ""
    pairs = ", and the more frequent label for all sentence pairs" if "nsp_accuracy" in baselines else ""
    return (
        "Metrics on the validation text. The baseline ignores its input. It predicts tokens by their frequency in the "
        f"{token_frequencies}{pairs}.{tokens}\n\n{table(('', 'this model', 'baseline'), rows)}"
    )


def _format_metric(metrics: Mapping[str, float], name: str) -> str:
    """Formats a metric: a percentage or three decimals. Empty if it is missing."""
    return format(metrics[name], ".1%" if name.endswith("accuracy") else ".3f") if name in metrics else ""
