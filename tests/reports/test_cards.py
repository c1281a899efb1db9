"""Shared by all model cards: the file, tables, results for the Hub. The card of pretraining."""

import re

import pytest
from huggingface_hub import ModelCard, ModelCardData

from snugbert.card_snugbert import OWN_CARD, TRAINERS_CARD
from snugbert.reports.cards import Head, eval_result, package_versions, save_model_card, table
from snugbert.reports.pretrained_card import write_pretraining_card


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
        versions = [f"{package} {version}" for package, version in package_versions().items()]
        assert card.data.license == "mit"
        assert card.text.strip().startswith(f"{OWN_CARD}\n\n# new\n\n")
        assert all(version in card.text.rpartition("## Versions")[2] for version in versions)


def test_table():
    cells = [("name", "value"), ("---", "---"), ("steps", "1,234,567"), ("rate", "3e-05"), ("bf16", "True")]
    expected = "\n".join(f"| {left} | {right} |" for left, right in [*cells, (r"a\|b", r"\*c\*")])
    rows = [("steps", 1_234_567), ("rate", 3e-5), ("bf16", True), ("a|b", "*c*")]
    assert table(("name", "value"), rows) == expected


def test_results_have_six_digits_and_an_id():
    fields = {"task_type": "fill-mask", "metric_type": "loss"}
    result = eval_result(2.123456789, dataset_name="My Books, 2024", **fields)
    assert (result.metric_value, result.dataset_type) == (2.12346, "my-books-2024")
    result = eval_result(1.0, dataset_name="SQuAD", dataset_id="rajpurkar/squad", **fields)
    assert result.dataset_type == "rajpurkar/squad"


def test_model_card(tmp_path):
    (tmp_path / "training.png").touch()
    write_pretraining_card(
        tmp_path,
        name="me/mini",
        language="en",
        data={"files": "books/train-*.txt.gz | more_*", "tokens": 12_041_234},
        settings={"parameters": 5_515_010, "learning rate": 1e-3, "phases": "128:90%,512:10%"},
        metrics={"mlm_loss": 5.9194, "mlm_accuracy": 0.1461, "eval_runtime": 3.0},
        baselines={"mlm_loss": 6.5421},
        dataset_name="me/books",
    )
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag == "fill-mask"
    assert card.data.language == "en" and card.data.datasets == ["me/books"] and card.data.license is None
    assert card.text.count("# me/mini\n") == 1 and "](training.png)" in card.text
    rows = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in card.text.splitlines() if line.startswith("| ")]
    assert ["files", r"books/train-\*.txt.gz \| more\_\*"] in rows and ["tokens", "12,041,234"] in rows
    assert ["learning rate", "0.001"] in rows and ["phases", "128:90%,512:10%"] in rows
    assert ["masked token loss, nats", "5.919", "6.542"] in rows and ["masked token accuracy", "14.6%", ""] in rows
    assert '"me/mini", trust_remote_code=True' in card.text
