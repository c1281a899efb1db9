"""The task of `snugbert squad`: the baselines, and the files of answers."""

import json

import pytest

from snugbert.tasks.question_answering import collect_gold_answers, collect_null_odds, score_baseline, write_answers
from snugbert.tasks.spans import Question
from snugbert.tasks.spans import Answer

QUESTIONS = [Question("a", "Who?", "Ada Lovelace.", ("Ada",), (0,)), Question("b", "Where?", "Ada Lovelace.")]


def test_baselines():
    assert collect_gold_answers(QUESTIONS) == {"a": ("Ada",), "b": ()}
    assert score_baseline(QUESTIONS, version_2=True) == ("always no answer", {"exact": 50.0, "f1": 50.0})
    answer, metrics = score_baseline(QUESTIONS[:1], version_2=False)  # 1 of 2 words is right, and 1 of 1 is found
    assert answer == "always the whole context" and metrics == {"exact_match": 0.0, "f1": pytest.approx(200 / 3)}


def test_files_of_answers(tmp_path):
    answers = {"a": Answer("Ada", -1.5, "Ada", []), "b": Answer("", 2.0, "Lovelace", [])}
    assert collect_null_odds(answers) == {"a": -1.5, "b": 2.0}
    write_answers(answers, tmp_path, "predict_")
    contents = {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()}
    assert contents == {
        "predict_predictions.json": {"a": "Ada", "b": ""},
        "predict_nbest_predictions.json": {"a": [], "b": []},
        "predict_null_odds.json": {"a": -1.5, "b": 2.0},
    }
    write_answers({"a": Answer("Ada", None, "Ada", [])}, tmp_path, "v1_")
    assert not (tmp_path / "v1_null_odds.json").exists()
