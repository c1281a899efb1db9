"""Writes the model card of a fine-tuning run."""

import math
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from snugbert.card_snugbert import TAGS, code_span, escape, find_base_model
from snugbert.errors import format_count
from snugbert.reports.cards import eval_result, save_model_card, show_use
from snugbert.reports.plots import describe_plot, list_plots
from snugbert.reports.results import RunResults, TaskFacts, list_tables

# Metric -> id in https://huggingface.co/metrics, display name.
HUB_METRICS = {
    "accuracy": ("accuracy", "Accuracy"),
    "f1": ("f1", "F1"),
    "precision": ("precision", "Precision"),
    "recall": ("recall", "Recall"),
    "matthews_correlation": ("matthews_correlation", "Matthews correlation"),
    "pearson": ("pearsonr", "Pearson correlation"),
    "spearmanr": ("spearmanr", "Spearman correlation"),
    "mse": ("mse", "Mean squared error"),
    "exact_match": ("exact_match", "Exact match"),
    "exact": ("exact_match", "Exact match"),
    "micro_f1": ("f1", "F1, micro average"),
    "macro_f1": ("f1", "F1, macro average"),
}


def write_finetuning_card(
    output_dir: Path,
    task: TaskFacts,
    results: RunResults,
    name: str | None = None,
    sweep_tables: str | None = None,
) -> None:
    """Writes `README.md` into the folder of the model, unless the user wrote one, see [`save_model_card`].

    The card shows the plots in the folder. Its header lists the training data as `training_data`, the training data
    on the Hub as `datasets`, and the metrics that the Hub has an id for, see `HUB_METRICS`. Each metric names its
    data.
    """
    name = name or output_dir.resolve().name
    base_id, base_name = find_base_model(task.base_model)
    # File names, folders and numbers of workers are of no use to other users.
    settings = {
        key: value
        for key, value in results["settings"].items()
        if value is not None and value is not False and not key.endswith(("_file", "_dir", "_name", "_workers"))
    }
    eval_results = _eval_results(task, results, settings)
    training_data = results["data"]["train"]
    scored = {name: sources for name, sources in results["data"].items() if results["metrics"].get(name)}
    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=task.head.task,
        base_model=base_id,
        datasets=sorted({source["hub_id"] for source in training_data} - {None}) or None,
        training_data=[{key: value for key, value in source.items() if value is not None} for source in training_data],
        metrics=sorted({result.metric_type for result in eval_results}) or None,
        tags=TAGS,
        model_name=name,
        eval_results=eval_results or None,
    )
    trained_on = [
        f"{escape(source['name'])} ({format_count(source['num_examples'], 'example')}"
        f"{' without labels' if source['split'] == 'unlabeled' else ''})"
        for source in training_data
    ]
    save_model_card(
        output_dir,
        "finetuned.md",
        header,
        task.head,
        name=name,
        base_name=base_name,
        settings=results["settings"],
        trained_on=" and ".join(trained_on),
        scored_on=" and ".join(dict.fromkeys(escape(source["name"]) for (source,) in scored.values())),
        labels=None if task.labels is None else [code_span(label) for label in task.labels],
        how_to_load=show_use(name, task.head),
        **list_tables(results | {"data": {"train": training_data} | scored}),
        sweep_tables=sweep_tables,
        plots=[{"caption": describe_plot(plot), "file": plot.name} for plot in list_plots(output_dir)],
        rows=[(key.replace("_", " "), value) for key, value in settings.items()],
    )


def _eval_results(task: TaskFacts, results: RunResults, settings: dict[str, Any]) -> list[EvalResult]:
    """Returns the metrics that the Hub has an id for."""
    # The header must show whether only the first examples were scored.
    limits = {kind: settings.get(f"max_{kind}_samples") for kind in ("eval", "predict")}
    eval_results = []
    for set_name, metrics in results["metrics"].items():
        (source,) = results["data"][set_name]
        limit = limits[set_name.partition("_")[0]]
        eval_results += [
            eval_result(
                value,
                task_type=str(task.head.task),
                task_name=task.name,
                dataset_name=source["name"],
                dataset_id=source["hub_id"],
                dataset_config=source["config_name"],
                dataset_split=source["split"],
                dataset_args={"num_examples": source["num_examples"], **({"first": limit} if limit else {})},
                metric_type=HUB_METRICS[metric][0],
                metric_name=HUB_METRICS[metric][1],
            )
            for metric, value in metrics.items()
            if metric in HUB_METRICS and value is not None and math.isfinite(value)
        ]
    return eval_results
