"""Reads the metadata of a model card as the Hub does."""

from pathlib import Path

from huggingface_hub import ModelCard

Scores = dict[tuple[str, str, int], dict[str, float]]


def read_metadata(folder: Path) -> tuple[list[tuple[str, str, int]], Scores]:
    """Returns the data in the header of a card, as name, split and number of examples.

    Returns:
        The training data, and the metrics of each evaluated set: id on the Hub -> value.
    """
    data = ModelCard.load(folder / "README.md").data
    scores: Scores = {}
    for result in data.eval_results or []:
        key = (result.dataset_name, result.dataset_split, result.dataset_args["num_examples"])
        scores.setdefault(key, {})[result.metric_type] = result.metric_value
    return [(source["name"], source["split"], source["num_examples"]) for source in data.training_data], scores
