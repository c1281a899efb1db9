"""The model card of pretraining."""

import re

from huggingface_hub import ModelCard

from snugbert.reports.pretrained_card import write_pretraining_card


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
