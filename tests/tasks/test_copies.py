"""Copies within the training examples and between sets."""

import pytest
from datasets import Dataset
from glue_examples import TOKENIZER

import snugbert
from snugbert.tasks.base import Task
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.copies import ExampleCopies
from snugbert.tasks.multiple_choice import MultipleChoice
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.tasks.tagging import Tagging

LONG = "a film with a long plot and "
TEXTS = {
    "train": [
        *(("A good  film", "pos"), ("a good film\u200b", "pos"), ("a GOOD film", "neg")),
        *(("das Caf\xe9", "neg"), ("\u4e2d\u6587", "pos"), (LONG + "sad", "pos")),
        *(("\U0001f600", "pos"), ("\U0001f621", "neg")),  # unknown tokens are different texts
    ],
    "validation": [("Das CAFE ", "pos"), (LONG + "new", "neg"), ("\u4e2d \u6587", "pos"), ("bad", "neg")],
    "test": [("bad", "neg"), ("a good film", "pos")],
}


def sentence(text: str, tags: str) -> dict:
    return {"tokens": text.split(), "ner_tags": tags.split()}


def question(text: str, context: str, start: int) -> dict:
    answers = {"text": [context[start : start + 3]], "answer_start": [start]}
    return {"id": f"{text}{context}{start}", "question": text, "context": context, "answers": answers}


@pytest.mark.parametrize(
    ("task", "train", "validation", "expected"),
    [
        (
            TextClassification(),
            [{"text": "a", "text_pair": "b", "label": 0.5}, {"text": "c", "text_pair": "a", "label": 1.5}],
            [{"text": "b", "text_pair": "a", "label": 0.5}],
            [],
        ),
        (
            Tagging(),
            [sentence("Anna in Rome", "B-PER O O"), sentence("anna in rome", "B-PER O B-LOC")],
            [sentence("Anna in Rome", "B-PER O O")],
            ["1 of 2.", "2.", "1 of 1."],
        ),
        (
            QuestionAnswering(),
            [question("who?", "Ann and Eve", 0), question("Who?", "Ann and Eve", 8), question("who?", "Eve", 0)],
            [question("who?", "eve", 0), question("where?", "Eve", 0)],
            ["1 of 3.", "2.", "1 of 2."],
        ),
        (
            MultipleChoice(),
            [{"text": "a", "choices": ["b", "c"], "label": 0}] * 2,
            [{"text": "A", "choices": choices, "label": 1} for choices in (["b", "C"], ["c", "b"])],
            ["1 of 2.", "1 of 2."],
        ),
    ],
    ids=["regression", "tagging", "question answering", "multiple choice"],
)
def test_copies_of_every_task(task, train, validation, expected):
    """Copies in the training examples, copies with another label, and copies in the validation examples."""
    found = count_copies(task, {"train": train, "validation": validation})
    assert [sentence.rpartition(": ")[2] for sentence in found] == expected


def count_copies(task: Task, rows: dict[str, list]) -> list[str]:
    """Counts copies among rows, or among pairs of a text and its label."""
    data = {
        name: [row if isinstance(row, dict) else {"text": row[0], "label": row[1]} for row in each]
        for name, each in rows.items()
    }
    splits = task.read_splits({name: [Dataset.from_list(values)] for name, values in data.items()})
    task.choose_labels(splits, snugbert.SnugBertConfig())
    task.use_tokenizer(TOKENIZER, 16)
    copies = ExampleCopies()
    copies.count(task, splits)
    return copies.sentences


def test_whole_texts_are_compared_after_normalization(caplog):
    caplog.set_level("INFO", "snugbert.tasks.copies")
    expected = [
        "Training examples that are copies of earlier ones: 2 of 8.",
        "Training examples with a copy that has another label: 3.",
        "Validation examples that are copies of training examples: 2 of 4.",
        "Test examples that are copies of training examples: 1 of 2.",
        "Test examples that are copies of validation examples: 1 of 2.",
    ]
    assert count_copies(TextClassification(max_seq_length=8), TEXTS) == expected
    # Python shows warnings only.
    levels = [record.levelname for record in caplog.records if "cop" in record.getMessage()]
    assert levels == ["INFO", *["WARNING"] * 4]


def test_unlabeled_examples_are_training_examples():
    rows = {"train": [("a", "x"), ("b", "y")], "unlabeled": [("c", "x"), ("a", "x")], "validation": [("c", "y")]}
    expected = ["Validation examples that are copies of training examples: 1 of 1."]
    assert count_copies(TextClassification(), rows) == expected
