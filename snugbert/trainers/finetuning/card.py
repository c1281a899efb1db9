"""The model card of a fine-tuning run."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from snugbert.card_snugbert import FAULTS, HEADS, REGRESSION, TAGS, code_span, escape, find_base_model, how_to_load
from snugbert.trainers.card import eval_result, save_model_card, table
from snugbert.trainers.finetuning.plots import PICTURES, find_plots
from snugbert.trainers.finetuning.tables import Baselines, results_table, split_name

# Our figures by the names of https://huggingface.co/metrics, and for people.
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
# The head of each of the Hub's tasks.
HEADS_BY_TASK = {head.task: head for head in HEADS.values()}


def write_finetuning_card(
    output_dir: Path,
    *,
    name: str,
    task: str,
    pipeline_tag: str,
    dataset: tuple[str, str | None, str | None],
    language: str | None,
    base_model: str | None,
    labels: list[str] | None,
    examples: Mapping[str, int],
    settings: Mapping[str, Any],
    figures: Mapping[str, Mapping[str, float | None]],
    baselines: Baselines,
    sweep: str | None = None,
) -> None:
    """Writes `README.md` into the folder of the model, unless somebody's own words are there, see [`save_model_card`].

    Pictures that the folder has, see above, are shown. The Hub reads the figures that it knows, see [`HUB_METRICS`].

    Args:
        output_dir: the folder that holds model and tokenizer.
        name: what the model is called, on the Hub if it goes there.
        task: what it learned, as people write it: "SST-2".
        pipeline_tag: of the Hub: "text-classification", "token-classification" or "question-answering".
        dataset: name of the data; their id on the Hub and the name of their configuration there, if they have one.
        language: ISO 639-1 code, or None.
        base_model: the checkpoint that training began from, a folder or a name on the Hub; None: random weights.
        labels: in the order of their ids; None: no classes.
        examples: how many there are in each set.
        settings: of data and training, by their names; those that are None or False, files and folders are left out.
        figures: of each evaluation set, by the names of [`results_table`].
        baselines: likewise.
        sweep: the tables of the sweep in which the model was the best.
    """
    head = HEADS_BY_TASK[pipeline_tag]
    if pipeline_tag == "text-classification" and labels is None:
        head = REGRESSION
    base_id, start = find_base_model(base_model)
    # A reader has other files and folders; of the data there is the name.
    used = {
        name: value
        for name, value in settings.items()
        if value is not None and value is not False and not name.endswith(("_file", "_dir", "_name", "_workers"))
    }
    results = _eval_results(task, pipeline_tag, dataset, figures, used)
    header = ModelCardData(
        language=language,
        library_name="transformers",
        pipeline_tag=pipeline_tag,
        base_model=base_id,
        datasets=None if dataset[1] is None else [dataset[1]],
        metrics=sorted({result.metric_type for result in results}) or None,
        tags=TAGS,
        model_name=name,
        eval_results=results or None,
    )
    rows = [(name.replace("_", " "), value) for name, value in used.items()]
    sections = [
        f"# {escape(name)}",
        f"A BERT encoder that {head.ability}. It was fine-tuned from {escape(start)} on {escape(dataset[0])} with "
        "SnugBERT.",
        how_to_load(name, head),
    ]
    if labels is not None:
        sections.append(f"The labels: {', '.join(map(code_span, labels))}.")
    if any(figures.values()):
        sections.append(f"## Results\n\n{results_table(figures, baselines, examples)}")
    if sweep is not None:
        sections.append(f"## All runs\n\n{sweep}")
    for picture, text in PICTURES.items():
        for file in find_plots(output_dir, picture):
            of_set = file.name.removesuffix(picture).removesuffix("_")
            of_examples = f", {split_name(of_set).replace('_', ' ')} examples" if of_set else ""
            sections.append(f"![{text}{of_examples}]({file.name})")
    sections += [
        f"## Training\n\n{table(('setting', 'value'), rows)}",
        f"## Limits\n\n{head.limits} The scores were measured on {escape(dataset[0])}. They may be lower on other "
        f"text. {FAULTS}",
    ]
    save_model_card(output_dir, header, sections)


def _eval_results(
    task: str,
    pipeline_tag: str,
    dataset: tuple[str, str | None, str | None],
    figures: Mapping[str, Mapping[str, float | None]],
    settings: Mapping[str, Any],
) -> list[EvalResult]:
    """The figures that the Hub has names for."""
    dataset_name, dataset_id, config_name = dataset
    # A score on the first examples is not one on all of them.
    limits = {kind: settings.get(f"max_{kind}_samples") for kind in ("eval", "predict")}
    return [
        eval_result(
            value,
            task_type=pipeline_tag,
            task_name=task,
            dataset_name=dataset_name,
            dataset_id=dataset_id,
            dataset_config=config_name,
            dataset_split=split_name(set_name),
            dataset_args={"first": limit} if (limit := limits[set_name.partition("_")[0]]) else None,
            metric_type=HUB_METRICS[figure][0],
            metric_name=HUB_METRICS[figure][1],
        )
        for set_name, of_set in figures.items()
        for figure, value in of_set.items()
        if figure in HUB_METRICS and value is not None and math.isfinite(value)
    ]
