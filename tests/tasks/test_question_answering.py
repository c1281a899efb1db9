"""The task of `snugbert squad`: the default stride, the baselines, and the answers to rows."""

import pytest

from snugbert import SnugBertTokenizer
from snugbert.data.squad import Question
from snugbert.tasks.question_answering import QuestionAnswering, QuestionSplit
from snugbert.tasks.spans import Answer, Candidate

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
