"""Copies within the training examples and between sets."""

import pytest
from datasets import Dataset
from glue_examples import VOCABULARY

import snugbert
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.copies import ExampleCopies
from snugbert.tasks.multiple_choice import MultipleChoice
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.tasks.tagging import Tagging

TOKENIZER = snugbert.SnugBertTokenizer(vocab={token: i for i, token in enumerate(VOCABULARY)})
LONG = "a film with a long plot and "
TEXTS = {
    "train": [
        ("A good  film", "pos"),
        ("a good film\u200b", "pos"),
        ("a GOOD film", "neg"),
        ("das Caf\xe9", "neg"),
        ("\u4e2d\u6587", "pos"),
        (LONG + "sad", "pos"),
        ("\U0001f600", "pos"),  # unknown tokens are different texts
        ("\U0001f621", "neg"),
    ],
    "validation": [("Das CAFE ", "pos"), (LONG + "new", "neg"), ("\u4e2d \u6587", "pos"), ("bad", "neg")],
    "test": [("bad", "neg"), ("a good film", "pos")],
}


def question(text: str, context: str, start: int) -> dict:
    answers = {"text": [context[start : start + 3]], "answer_start": [start]}
    return {"id": f"{text}{context}{start}", "question": text, "context": context, "answers": answers}


@pytest.mark.parametrize(
    ("task", "rows", "expected"),
    [
        (
            TextClassification(max_seq_length=8),
            {name: [{"text": text, "label": label} for text, label in rows] for name, rows in TEXTS.items()},
            [
                "Training examples that are copies of earlier ones: 2 of 8.",
                "Training examples with a copy that has another label: 3.",
                "Validation examples that are copies of training examples: 2 of 4.",
                "Test examples that are copies of training examples: 1 of 2.",
                "Test examples that are copies of validation examples: 1 of 2.",
            ],
        ),
        (
            TextClassification(max_train_samples=1),
            {
                "train": [
                    {"text": "a", "text_pair": "b", "label": 0.5},
                    {"text": "b", "text_pair": "a", "label": 1.5},
                ],
                "validation": [{"text": "b", "text_pair": "a", "label": 0.5}],
            },
            [],
        ),
        (
            Tagging(),
            {
                "train": [
                    {"tokens": ["Anna", "in", "Rome"], "ner_tags": ["B-PER", "O", "O"]},
                    {"tokens": ["anna", "in", "rome"], "ner_tags": ["B-PER", "O", "B-LOC"]},
                ],
                "validation": [{"tokens": ["Anna", "in", "Rome"], "ner_tags": ["B-PER", "O", "O"]}],
            },
            [
                "Training sentences that are copies of earlier ones: 1 of 2.",
                "Training sentences with a copy that has another label: 2.",
                "Validation sentences that are copies of training sentences: 1 of 1.",
            ],
        ),
        (
            QuestionAnswering(),
            {
                "train": [
                    question("who?", "Ann and Eve", 0),
                    question("Who?", "Ann and Eve", 8),
                    question("who?", "Eve", 0),
                ],
                "validation": [question("who?", "eve", 0), question("where?", "Eve", 0)],
            },
            [
                "Training questions that are copies of earlier ones: 1 of 3.",
                "Training questions with a copy that has another label: 2.",
                "Validation questions that are copies of training questions: 1 of 2.",
            ],
        ),
        (
            MultipleChoice(),
            {
                "train": [{"text": "a", "choices": ["b", "c"], "label": i} for i in (0, 0)],
                "validation": [
                    {"text": "A", "choices": ["b", "C"], "label": 1},
                    {"text": "a", "choices": ["c", "b"], "label": 1},
                ],
                "test": [{"text": "a", "choices": ["b", "c", "d"], "label": 1}],
            },
            [
                "Training examples that are copies of earlier ones: 1 of 2.",
                "Validation examples that are copies of training examples: 1 of 2.",
            ],
        ),
    ],
    ids=["classification", "regression", "tagging", "question answering", "multiple choice"],
)
def test_copies_of_every_task(task, rows, expected, caplog):
    splits = task.read_splits({name: [Dataset.from_list(values)] for name, values in rows.items()})
    task.choose_labels(splits, snugbert.SnugBertConfig())
    task.use_tokenizer(TOKENIZER, 16)
    caplog.clear()
    caplog.set_level("INFO")
    copies = ExampleCopies()
    copies.count(task, splits)
    assert copies.sentences == expected
    logged = {record.getMessage(): record.levelname for record in caplog.records}
    assert [text.partition(". ")[0].rstrip(".") + "." for text in logged] == expected
    # Python shows warnings only.
    assert all((level == "INFO") == ("earlier" in text) for text, level in logged.items())
    assert all("Remove" in text or "remove" in text for text, level in logged.items() if level == "WARNING")


def test_unlabeled_examples_are_training_examples():
    task = TextClassification()
    rows = {"train": [("a", "x"), ("b", "y")], "unlabeled": [("c", "x"), ("a", "x")], "validation": [("c", "y")]}
    data = {name: Dataset.from_list([{"text": t, "label": label} for t, label in rows[name]]) for name in rows}
    splits = task.read_splits({name: [dataset] for name, dataset in data.items()})
    task.choose_labels(splits, snugbert.SnugBertConfig())
    task.use_tokenizer(TOKENIZER, 16)
    copies = ExampleCopies()
    copies.count(task, splits)
    assert copies.sentences == ["Validation examples that are copies of training examples: 1 of 1."]
