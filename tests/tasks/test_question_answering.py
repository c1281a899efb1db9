"""The task of `snugbert squad`: the default stride, baselines, answers to rows, and metrics next to the definition."""

import random

import numpy as np
import pytest
from squad_definition import definition_1, definition_2

from snugbert import SnugBertTokenizer
from snugbert.data.squad import Question
from snugbert.tasks.metrics import TaskMetric
from snugbert.tasks.question_answering import QuestionAnswering, QuestionSplit
from snugbert.tasks.spans import Answer, Candidate
from snugbert.tasks.squad_metrics import measure_answers, word_f1

QUESTIONS = [Question("a", "Who?", "Ada Lovelace.", ("Ada",), (0,)), Question("b", "Where?", "Ada Lovelace.")]


@pytest.mark.parametrize(
    ("limit", "given", "expected"), [(512, None, 128), (256, None, 128), (255, None, 85), (128, None, 42), (128, 5, 5)]
)
def test_windows_share_128_tokens_or_a_third_of_a_short_window(limit, given, expected):
    task = QuestionAnswering(doc_stride=given)
    task.use_tokenizer(SnugBertTokenizer(), limit)
    assert task.args.doc_stride == expected


def test_baselines():
    split = QuestionSplit("validation", QUESTIONS)
    task = QuestionAnswering(version_2_with_negative=True)
    assert split.golds == [("Ada",), ()]
    assert task.baseline(split, None) == ("always no answer", {"exact": 50.0, "f1": 50.0})
    # 1 of 2 words is right, and 1 of 1 is found.
    answer, metrics = QuestionAnswering().baseline(QuestionSplit("validation", QUESTIONS[:1]), None)
    assert answer == "always the whole context" and metrics == {"exact_match": 0.0, "f1": pytest.approx(200 / 3)}


def test_columns_of_the_chosen_answer():
    """A threshold can choose another candidate than the best one."""
    span, null = Candidate("Ada", 0.25, 1.0, 1.0, 0, 3), Candidate("", 0.75, 2.0, 1.0, 0, 0)
    answers = [
        Answer("Ada", 1.0, "Ada", [null, span], log_total=2.0),
        Answer("", 1.0, "Ada", [null, span], log_total=3.0),
    ]
    columns = QuestionAnswering().to_columns(QuestionSplit("test", QUESTIONS), answers)
    assert columns == [
        {"score": 1.0, "start": 0, "end": 3, "answer": "Ada"},
        {"score": 1.0, "start": 0, "end": 0, "answer": ""},
    ]


def random_answers(number: int, seed: int) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
    """Gold answers, predictions, and odds, many of them equal."""
    chance = random.Random(seed)
    words = ["the", "A", "an", "cat", "Cat", "dog.", "big", "--", "(red)", "é", "1,5", "to", "of", "\u00a0", "ox"]
    words += ["A.N.", "a\u0301", "\u00abLa", "$1,000.50", "theatre"]

    def text(least: int) -> str:
        return " ".join(chance.choices(words, k=chance.randint(least, 6)))

    golds = {f"q{i}": [text(1) for _ in range(chance.choice([0, 1, 3, 5]))] for i in range(number)}
    predictions = {name: chance.choice([text(0), *answers]) for name, answers in golds.items()}
    odds = {name: chance.choice([chance.gauss(0, 2), float(chance.randint(-2, 2))]) for name in golds}
    return golds, predictions, odds


def test_metrics_are_equal_to_the_last_digit():
    golds, predictions, odds = random_answers(701, seed=0)
    references = {q: {"id": q, "answers": {"text": a, "answer_start": [0] * len(a)}} for q, a in golds.items()}
    given = {q: {"id": q, "prediction_text": text} for q, text in predictions.items()}
    with_odds = [given[q] | {"no_answer_probability": odds[q]} for q in sorted(given)]  # in another order
    metric = TaskMetric(QuestionAnswering(version_2_with_negative=True), keep_in_memory=True)
    expected = definition_2(predictions, golds, odds, threshold=np.inf)
    assert metric.compute(predictions=with_odds, references=[*references.values()]) == expected
    assert len({expected["f1"], expected["HasAns_f1"], expected["best_f1"]}) == 3

    answered = {question: answers for question, answers in golds.items() if answers}
    metric = TaskMetric(QuestionAnswering(), keep_in_memory=True)
    for question in answered:
        metric.add(prediction=given[question], reference=references[question])
    assert metric.compute() == definition_1(predictions, answered)


def test_missing_predictions_and_bad_references(caplog):
    references = [{"id": name, "answers": {"text": [name], "answer_start": [0]}} for name in ("cat", "dog")]
    predictions = [{"id": name, "prediction_text": name} for name in ("dog", "ox")]
    metric = TaskMetric(QuestionAnswering(), keep_in_memory=True)
    assert metric.compute(predictions=predictions, references=references) == {"exact_match": 50.0, "f1": 50.0}
    assert "Questions without a prediction: 1. The first: cat. These questions score 0." in caplog.text
    with pytest.raises(ValueError, match="1 of 2 references repeat an id"):
        metric.compute(predictions=[predictions[0]] * 2, references=references[:1] * 2)
    predictions = [{**prediction, "no_answer_probability": 0.0} for prediction in predictions]
    metric = TaskMetric(QuestionAnswering(version_2_with_negative=True), keep_in_memory=True)
    with pytest.raises(ValueError, match=r"Questions without a prediction: 1\. The first: cat"):
        metric.compute(predictions=predictions, references=references)
    with pytest.raises(ValueError, match=r"A question has no reference answers\. Use the metrics of SQuAD v2\.0"):
        measure_answers([["cat"], []], ["cat", "dog"])
    assert word_f1([], []) == 0
