"""Shared by all model cards: the file, tables, results for the Hub."""

import pytest
from huggingface_hub import ModelCard, ModelCardData

from snugbert.card_snugbert import OWN_CARD, TRAINERS_CARD
from snugbert.reports.cards import Head, eval_result, package_versions, save_model_card, table


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
