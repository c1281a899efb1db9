"""Reading questions in every form, and files that cannot be read."""

import gzip
import json
import re

import pytest
from datasets import Dataset
from squad_forms import flat, load_questions, nested

from snugbert.data.squad import Question, find_answer
from snugbert.errors import InputError
from snugbert.tasks.task_arguments import SquadDataArguments


def test_squad_2_as_published(data_dir):
    """The nested and the flat file, which has no `is_impossible`."""
    loaded = []
    for form in ("json", "jsonl"):
        file = str(data_dir / f"squad/dev-v2.0-half.{form}.gz")
        (questions,) = load_questions(SquadDataArguments(validation_file=file, version_2_with_negative=True)).values()
        loaded.append([question._replace(source="", row="", is_impossible=False) for question in questions])
    nested, flat = loaded
    assert sorted(nested) == sorted(flat)
    columns = [{getattr(question, name) for question in nested} for name in ("id", "context")]
    assert (*map(len, columns), sum(not question.answers for question in nested)) == (6078, 646, 3168)
    for question in nested:
        for text, start in zip(question.answers, question.answer_starts, strict=True):
            assert question.context[start : start + len(text)] == text


ROWS = [
    {"id": "a", "title": "T", "context": "Ann met  Ben.\n", "question": "Who?", "answers": [("Ann", 0), ("Ben", 9)]},
    {"id": "b", "title": "T", "context": "Ann met  Ben.\n", "question": "Why?", "answers": []},
    {"id": "c", "title": "U", "context": "Émile \u2028 slept.", "question": "Who?", "answers": [("Émile", 0)]},
]


def test_every_format_gives_the_same_questions(tmp_path):
    rows = [flat(row) for row in ROWS]
    lines = "\n".join(json.dumps(row) for row in rows)
    contents = {
        "lines.jsonl": "\ufeff" + lines,
        "lines.json": lines.replace("\n", "\r\n\r\n"),
        "list.json": json.dumps(rows, indent=1, ensure_ascii=False),
        "data.json": json.dumps({"data": rows}, indent=1),  # as run_qa.py reads it
        "nested.json": json.dumps(nested(ROWS)),
        "indented.json": json.dumps(nested(ROWS), indent=2, ensure_ascii=False),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    (tmp_path / "folder").mkdir()
    Dataset.from_list(rows).to_parquet(tmp_path / "folder" / "validation.parquet")
    sources = [{"validation_file": str(file)} for file in sorted(tmp_path.iterdir()) if file.is_file()]
    assert len(sources) == 12
    (tmp_path / "one.json").write_text(lines.splitlines()[0])
    (one,) = load_questions(SquadDataArguments(train_file=[str(tmp_path / "one.json")]), None)["train"]
    assert (one.id, one.row) == ("a", f"{tmp_path / 'one.json'}, row 1")
    for source in [*sources, {"dataset_name": str(tmp_path / "folder")}]:
        arguments = SquadDataArguments(**source, version_2_with_negative=True)
        splits = load_questions(arguments, None, cache_dir=str(tmp_path / "cache"))
        assert [question._replace(source="", row="", is_impossible=False) for question in splits["validation"]] == [
            Question("a", "Who?", "Ann met  Ben.\n", ("Ann", "Ben"), (0, 9)),
            Question("b", "Why?", "Ann met  Ben.\n", (), ()),
            Question("c", "Who?", "\u00c9mile \u2028 slept.", ("\u00c9mile",), (0,)),
        ]


def test_several_files_and_limits(tmp_path):
    for name, rows in (("1.json", ROWS[:2]), ("2.json", ROWS[2:])):
        (tmp_path / name).write_text(json.dumps(nested(rows)))
    files = [str(tmp_path / "1.json"), str(tmp_path / "2.json")]
    questions = load_questions(SquadDataArguments(train_file=files, version_2_with_negative=True), ("train",))["train"]
    assert [question.id for question in questions] == ["a", "b", "c"]
    assert questions[1].row == f"{files[0]}, data[1].paragraphs[0].qas[0]"
    # Only questions within the limit are checked: the question without an answer is beyond it.
    questions = load_questions(SquadDataArguments(train_file=files, max_train_samples=1), ("train",))["train"]
    assert [question.id for question in questions] == ["a"]
    (tmp_path / "1.json").write_text(json.dumps(nested(ROWS[1:2])))
    for version_2 in (False, True):
        arguments = SquadDataArguments(train_file=files[0], version_2_with_negative=version_2)
        with pytest.raises(InputError, match=r"1\.json: no question has an answer\. Training needs 'answers'"):
            load_questions(arguments, ("train",))


def test_find_answer_ignores_white_space():
    context = "In  1066\n William came "
    for text, start, found in (
        ("1066", 4, (4, 8)),
        (" 1066 ", 3, (4, 8)),  # the position includes the spaces
        (" 1066", 4, (4, 8)),  # or only some of them
        ("1066 William", 4, (4, 17)),  # the answer has a space for the line break
        *(("1067", 4, None), ("1066", 5, None), ("In", -1, None), ("In", 99, None)),
    ):
        assert find_answer(context, text, start) == found


QA = {"id": "1", "question": "who", "context": "then anna ran", "answers": {"text": ["anna"], "answer_start": [5]}}


def in_paragraphs(paragraphs):
    return {"data": [{"paragraphs": paragraphs}]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,question\n", "dev.json: not JSON"),
        (f"{json.dumps(QA)}\n{{", "dev.json, row 2: not JSON"),
        (f"{json.dumps(QA)}\n3", "dev.json, row 2: expected a JSON object, found a int"),
        (QA | {"context": None}, "row 1: 'context' must be text. Expected id, question, context, answers. Found: "),
        (QA | {"answers": "anna"}, "row 1: cannot read 'answers': anna. Expected"),
        (QA | {"is_impossible": True}, "'is_impossible' is True. Expected true or false, and false if there are answ"),
        (QA | {"is_impossible": "False"}, "row 1: 'is_impossible' is 'False'. Expected true or false"),
        ([QA, QA], "row 1: another question has the same id, 1"),
        ([QA, QA | {"id": "2", "answers": None}], "Set --version_2_with_negative"),
        ([QA, QA | {"id": "2", "answers": [{"text": " ", "answer_start": 0}]}], "row 2: question 2 has no answer"),
        (in_paragraphs({}), "dev.json, data[0].paragraphs: expected a list of objects"),
        (in_paragraphs([{"questions": []}]), "data[0].paragraphs[0].qas: "),
        (in_paragraphs([{"qas": ["who"]}]), "paragraphs[0].qas: "),
    ],
)
def test_bad_files(content, words, tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=re.escape(words)):
        load_questions(SquadDataArguments(validation_file=str(file)), None)
