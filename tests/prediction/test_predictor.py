"""`Predictor` in Python: rows, columns that it finds, and scores of a dataset in memory."""

import re

import family_checkpoints
import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from snugbert import Tagging, TextClassification
from snugbert.errors import InputError
from snugbert.prediction.predictor import Predictor

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS, LABELS = family_checkpoints.WORDS, {0: "no", 1: "yes"}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    fields = {"id2label": LABELS, "label2id": {"no": 0, "yes": 1}, "text_columns": ["question", "title"]}
    family_checkpoints.write_checkpoint(folder, "bert", "ForSequenceClassification", initializer_range=0.2, **fields)
    return folder


def rows(number: int = 20) -> list[dict[str, str]]:
    words = [WORDS[index % len(WORDS)] for index in range(3 * number)]
    return [{"title": words[index], "question": " ".join(words[index : 2 * index])} for index in range(1, number)]


def test_rows_are_predicted_from_the_columns_that_the_model_was_trained_on(classifier):
    predictor = Predictor(classifier)
    predictions = predictor.predict(rows())
    assert predictor.columns == ("question", "title")
    assert {prediction["predicted_label"] for prediction in predictions} == set(LABELS.values())
    named = Predictor(classifier, columns=("question", "title"), max_batch_tokens=8).predict(rows())
    for ours, other in zip(predictions, named, strict=True):
        assert ours["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    # No row, and then a dataset. A model that is already loaded.
    again = Predictor(predictor.model, predictor.tokenizer)
    assert again.predict([]) == [] and again.tokenizer is predictor.tokenizer
    again = again.predict(Dataset.from_list(rows()))
    assert [row["predicted_label"] for row in again] == [row["predicted_label"] for row in predictions]
    with pytest.raises(InputError, match="tokenizer is missing"):
        Predictor(predictor.model)
    with pytest.raises(InputError, match=r"unexpected class SnugBertModel\. Expected a fine-tuned model"):
        Predictor(predictor.model.base_model, predictor.tokenizer)


def test_a_task_names_the_columns_and_fits_the_head(classifier):
    expected = Predictor(classifier).predict(rows())
    renamed = [{"a": row["question"], "b": row["title"], "text": "no"} for row in rows()]
    task = TextClassification(text_column_names="a, b")
    assert Predictor(classifier, task=task).predict(renamed) == expected
    with pytest.raises(InputError, match=r"no column 'a'\. Columns: 'title', 'question'"):
        Predictor(classifier, task=task).predict(rows())
    with pytest.raises(InputError, match="model: a SnugBertForSequenceClassification does not fit the task Tagging"):
        Predictor(classifier, task=Tagging())
    one = Predictor(classifier, columns="question")  # a name, not a list of letters
    assert [len(row) for row in one.predict(rows())] == [2] * len(rows())


TEXTS = [row["question"] for row in rows()]
TITLES = [{"title": text} for text in TEXTS]


@pytest.mark.parametrize(
    "given",
    [
        map(str.upper, TEXTS),
        np.array(TEXTS),
        Dataset.from_list(TITLES)["title"],
        pd.DataFrame(TITLES, index=range(7, 7 + len(TITLES))),
        Dataset.from_list(TITLES).with_format("pandas"),
        Dataset.from_list(TITLES).to_iterable_dataset(),
        [*TEXTS[:5], *TITLES[5:]],
    ],
    ids=lambda given: type(given).__name__,
)
def test_texts_and_rows_of_all_kinds_are_predicted(given, classifier):
    predictor = Predictor(classifier, columns="title")
    assert predictor.predict(given) == predictor.predict(TITLES)


def test_rows_that_cannot_be_read_are_named_with_what_is_expected(classifier, tmp_path):
    family_checkpoints.write_checkpoint(tmp_path, "bert", "ForTokenClassification", id2label={0: "O", 1: "B-PER"})
    pairs, titles, tagger = Predictor(classifier), Predictor(classifier, columns="title"), Predictor(tmp_path)
    for predictor, given, words in (
        (pairs, [{"title": None, "question": "a"}], "no text in column 'title'"),
        (pairs, "a", "row 1: expected a dict with the columns 'question' and 'title', not a str."),
        (titles, ("a", 7), "row 2: expected a text or a dict, not a int."),
        (tagger, ("Ada wrote.",), "row 1: expected a dict with the column 'tokens' or the column 'text', not a str."),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            predictor.predict(given)
    assert len(tagger.predict(iter([{"tokens": ["a", "b"]}]))[0]["predicted_tags"]) == 2
    pairs.model.config.text_columns = None  # a model of another library
    other = Predictor(pairs.model, pairs.tokenizer)
    assert other.predict(TEXTS[3]) == other.predict([TEXTS[3]]) == other.predict({"text": TEXTS[3]})


def test_a_dataset_is_scored(classifier):
    predictor = Predictor(classifier)
    answers = [prediction["predicted_label"] for prediction in predictor.predict(rows())]
    labels = ["yes"] * len(answers)
    data = Dataset.from_list([{**row, "label": label} for row, label in zip(rows(), labels, strict=True)])
    assert predictor.evaluate(data) == {"accuracy": pytest.approx(np.mean([answer == "yes" for answer in answers]))}
    for same in (data.with_format("numpy"), data.to_pandas(), list(data)):
        assert predictor.evaluate(same) == predictor.evaluate(data)
    with pytest.raises(InputError, match="unknown label 'maybe'"):
        predictor.evaluate(Dataset.from_list([{**rows()[0], "label": "maybe"}]))
