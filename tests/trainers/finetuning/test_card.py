"""The model card of a fine-tuning run: its metadata for the Hub, its text, and its code, which must run."""

import re

import pytest
import torch
from finetuning_examples import write_card
from huggingface_hub import EvalResult, ModelCard
from markdown_tables import cells

import snugbert

pytestmark = pytest.mark.usefixtures("one_thread")

CARD = {
    "name": "me/mnli",
    "task": "MNLI",
    "pipeline_tag": "text-classification",
    "dataset": ("GLUE (MNLI)", "nyu-mll/glue", "mnli"),
    "base_model": "google-bert/bert-base-uncased",
    "labels": ["entailment", "neutral", "contradiction"],
    "examples": {"eval": 90, "eval_mm": 90, "predict": 70, "predict_ax": 11},
    "settings": {
        **{"learning_rate": 3e-5, "seed": 0, "weight_decay": 0.0, "bf16": False, "class_weights": None},
        **{"train_file": "/home/ada/train.csv", "max_eval_samples": 90},
    },
    "metrics": {
        "eval": {"accuracy": 0.8412345678, "combined_score": 0.7, "pearson": float("nan")},
        "eval_mm": {"accuracy": 0.83},
        "predict": {"exact_match": 80.5, "pearson": 0.9, "f1": None},
        "predict_ax": {},
    },
    "baselines": {"eval": {"answer": "always 'entailment'", "accuracy": 0.3545}},
}


def test_metadata_and_text_of_a_card(tmp_path):
    for name in ("learning_curve.png", "eval_mm_confusion_matrix.png", "confusion_matrix.png", "another.png"):
        (tmp_path / name).touch()
    write_card(tmp_path, **CARD)
    card = ModelCard.load(tmp_path / "README.md")

    def result(split, metric, name, value):
        return EvalResult(
            task_type="text-classification",
            task_name="MNLI",
            dataset_type="nyu-mll/glue",
            dataset_name="GLUE (MNLI)",
            dataset_config="mnli",
            dataset_args={"first": 90} if split.startswith("validation") else None,
            dataset_split=split,
            metric_type=metric,
            metric_name=name,
            metric_value=value,
        )

    assert card.data.eval_results == [
        result("validation", "accuracy", "Accuracy", 0.841235),
        result("validation_mismatched", "accuracy", "Accuracy", 0.83),
        result("test", "exact_match", "Exact match", 80.5),
        result("test", "pearsonr", "Pearson correlation", 0.9),
    ]
    assert card.data.model_name == "me/mnli" and card.data.metrics == ["accuracy", "exact_match", "pearsonr"]
    assert card.data.base_model == "google-bert/bert-base-uncased" and card.data.pipeline_tag == "text-classification"
    assert card.data.datasets == ["nyu-mll/glue"]
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()
    assert ["validation (90)", "accuracy", "0.8412", "0.3545 (always 'entailment')"] in cells(card.text)
    assert cells(card.text)[-5:] == [
        ["setting", "value"],
        ["learning rate", "3e-05"],
        ["seed", "0"],
        ["weight decay", "0"],
        ["max eval samples", "90"],
    ]
    assert re.findall(r"!\[(.+)\]\((.+)\)", card.text) == [
        ("Loss and score over the steps of training", "learning_curve.png"),
        ("Confusion matrix: one row per true label, one column per predicted label", "confusion_matrix.png"),
        (
            "Confusion matrix: one row per true label, one column per predicted label, validation mismatched examples",
            "eval_mm_confusion_matrix.png",
        ),
    ]


def test_a_card_contains_no_local_paths(tmp_path):
    checkpoint = tmp_path / "secret" / "pretrained"
    checkpoint.mkdir(parents=True)
    own = {"dataset": ("my reviews, 2024", None, None), "base_model": str(checkpoint), "metrics": {"predict": {}}}
    write_card(tmp_path, **CARD | own, sweep_tables="| batch size |")
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.base_model is None and card.data.datasets is None and card.data.eval_results is None
    assert (
        "fine-tuned on my reviews, 2024 with SnugBERT, starting from pretrained." in card.text
        and "secret" not in card.content
    )
    assert "## All runs\n\n| batch size |" in card.text and "## Results" not in card.text
    write_card(tmp_path, **CARD | own | {"metrics": CARD["metrics"]})
    assert ModelCard.load(tmp_path / "README.md").data.eval_results[0].dataset_type == "my-reviews-2024"


@pytest.mark.parametrize(
    "pipeline_tag, head, labels",
    [
        ("text-classification", "SequenceClassification", ["bad", "good"]),
        ("text-classification", "SequenceClassification", None),
        ("token-classification", "TokenClassification", ["O", "B-PER", "I-PER"]),
        ("question-answering", "QuestionAnswering", None),
    ],
)
def test_the_code_in_a_card_runs(tmp_path, capsys, pipeline_tag, head, labels):
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] ada lovelace was born in london where ? a the first second".split()
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    snugbert.SnugBertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    number = len(labels) if labels else 2 if pipeline_tag == "question-answering" else 1
    config = snugbert.SnugBertConfig.from_size("tiny", vocab_size=len(vocabulary), num_labels=number)
    torch.manual_seed(0)
    getattr(snugbert, f"SnugBertFor{head}")(config).save_pretrained(tmp_path)

    facts = {"name": str(tmp_path), "pipeline_tag": pipeline_tag, "labels": labels}
    write_card(tmp_path, **CARD | facts)
    text = ModelCard.load(tmp_path / "README.md").text
    assert ("predicts a number for a text or a pair of texts" in text) == (
        labels is None and head == "SequenceClassification"
    )
    for snippet in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(snippet, names := {})
        printed = capsys.readouterr().out
        assert isinstance(names["model"], torch.nn.Module)
        match pipeline_tag:
            case "text-classification":
                assert printed.count("'score'") == 2 * number
            case "token-classification":
                assert printed.startswith("[")
            case "question-answering":
                assert ("'answer'" in printed) == ("import snugbert" in snippet)
