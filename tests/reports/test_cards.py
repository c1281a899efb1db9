"""Model cards: the file, tables, the card of pretraining, and the card of a fine-tuning run with its metadata."""

import re

import pytest
import torch
from finetuning_examples import write_card
from huggingface_hub import ModelCard, ModelCardData
from markdown_tables import cells

from snugbert.card_snugbert import OWN_CARD, TRAINERS_CARD
from snugbert.data.sources import DataSource
from snugbert.reports.cards import Head, save_model_card, table


@pytest.mark.parametrize(
    ("text", "replaced"),
    [("# My own words\n", False), (f"{OWN_CARD}\n\n# old\n", True), (f"{TRAINERS_CARD} -->\n\n# old\n", True)],
)
def test_only_generated_cards_are_replaced(text, replaced, tmp_path):
    (tmp_path / "README.md").write_text(text)
    texts = {"name": "new", "base_name": "", "settings": {}, "rows": []}
    save_model_card(tmp_path, "finetuned.md", ModelCardData(license="mit"), Head("ForMaskedLM"), **texts)
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.text.strip() == text.strip()) != replaced
    if replaced:
        assert card.data.license == "mit"
        assert card.text.strip().startswith(f"{OWN_CARD}\n\n# new\n\n")
        assert f"torch {torch.__version__}" in card.text.rpartition("## Versions")[2]


def test_table():
    cells = [("name", "value"), ("---", "---"), ("steps", "1,234,567"), ("rate", "3e-05"), ("bf16", "True")]
    expected = "\n".join(f"| {left} | {right} |" for left, right in [*cells, (r"a\|b", r"\*c\*")])
    rows = [("steps", 1_234_567), ("rate", 3e-5), ("bf16", True), ("a|b", "*c*")]
    assert table(("name", "value"), rows) == expected


def source(*fields) -> dict[str, object]:
    return DataSource(*fields)._asdict()


CARD = {
    "name": "me/mnli",
    "task": "MNLI",
    "pipeline_tag": "text-classification",
    "base_model": "google-bert/bert-base-uncased",
    "labels": ["entailment", "neutral", "contradiction"],
    "data": {
        "train": [source("GLUE MNLI", "train", 800, "nyu-mll/glue", "mnli"), source("more.csv", "train", 1)],
        "eval": [source("GLUE MNLI", "validation_matched", 90, "nyu-mll/glue", "mnli")],
        "eval_mm": [source("GLUE MNLI", "validation_mismatched", 90, "nyu-mll/glue", "mnli")],
        "predict": [source("my reviews, 2024", "test", 70)],
        "predict_ax": [source("unlabeled.csv", "test", 11)],
    },
    "perfect_score": 1,
    "settings": {"learning_rate": 3e-5, "class_weights": None, "train_file": "/ada/train.csv", "max_eval_samples": 90},
    "metrics": {
        "eval": {"accuracy": 0.8412345678, "combined_score": 0.7, "pearson": float("nan")},
        "eval_mm": {"accuracy": 0.83},
        "predict": {"exact_match": 0.805, "pearson": 0.9, "f1": None},
        "predict_ax": {},
    },
    "baselines": {"eval": {"answer": "always 'entailment'", "accuracy": 0.3545}},
}


def test_metadata_and_text_of_a_card(tmp_path):
    plots = ["learning_curve.png", "confusion_matrix.png", "eval_mm_confusion_matrix.png"]
    for name in (*plots, "another.png"):
        (tmp_path / name).touch()
    write_card(tmp_path, **CARD)
    card = ModelCard.load(tmp_path / "README.md")

    mnli, num_examples = ("nyu-mll/glue", "GLUE MNLI", "mnli"), {"num_examples": 90, "first": 90}
    own = ("my-reviews-2024", "my reviews, 2024", None)
    results = card.data.eval_results
    assert {(result.task_type, result.task_name) for result in results} == {("text-classification", "MNLI")}
    assert [(each.dataset_split, each.metric_type, each.metric_value, each.dataset_args) for each in results] == [
        ("validation_matched", "accuracy", 0.841235, num_examples),
        ("validation_mismatched", "accuracy", 0.83, num_examples),
        ("test", "exact_match", 0.805, {"num_examples": 70}),
        ("test", "pearsonr", 0.9, {"num_examples": 70}),
    ]
    data = [(each.dataset_type, each.dataset_name, each.dataset_config) for each in results]
    assert data == [mnli, mnli, own, own]
    assert card.data.model_name == "me/mnli" and card.data.metrics == ["accuracy", "exact_match", "pearsonr"]
    assert card.data.base_model == "google-bert/bert-base-uncased" and card.data.pipeline_tag == "text-classification"
    assert card.data.datasets == ["nyu-mll/glue"]
    hub = {"hub_id": "nyu-mll/glue", "config_name": "mnli"}
    assert card.data.training_data == [
        {"name": "GLUE MNLI", "split": "train", "num_examples": 800, **hub},
        {"name": "more.csv", "split": "train", "num_examples": 1},
    ]
    rows = cells(card.text)
    assert ["training", "more.csv", "1"] in rows and ["test", "my reviews, 2024", "70"] in rows
    assert ["validation", "accuracy", "84.12", "35.45 (always 'entailment')"] in rows
    assert rows[-3:] == [["setting", "value"], ["learning rate", "3e-05"], ["max eval samples", "90"]]
    assert re.findall(r"!\[.+\]\((.+)\)", card.text) == plots
