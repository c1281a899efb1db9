"""Hostile JSON and very long numbers, wherever a command reads them."""

import pytest
from datasets import Dataset

from snugbert.data.squad import check_answers, read_questions
from snugbert.data.tables import read_rows
from snugbert.errors import InputError
from snugbert.json_files import parse_json
from snugbert.tasks.labeled_texts import TextSplit
from snugbert.tasks.labels import choose_labels, encode_labels
from snugbert.tasks.layout import Layout

HOSTILE_JSON = {
    "[" * 100_000 + "]" * 100_000: "nested too deeply",
    '{"a": ' * 100_000 + "1" + "}" * 100_000: "nested too deeply",
    "9" * 5000: "a number has too many digits",
}


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=["lists", "objects", "digits"])
def test_hostile_json_gives_an_error_of_one_sentence(text, tmp_path):
    message = HOSTILE_JSON[text]
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_json(text)
    for name, content in (("rows.jsonl", '{"a": 1}\n{"a": ' + text + "}"), ("list.json", '[{"a": ' + text + "}]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=f"{name}.*: not JSON \\({message}\\)"):
            list(read_rows(tmp_path / name))
    with pytest.raises(InputError, match=f"list.json: not JSON \\({message}\\)"):
        read_questions(tmp_path / "list.json", "list.json")


def test_long_numbers_are_read_or_give_an_error_of_one_sentence(tmp_path):
    """Numbers in JSON may have up to 4,300 digits, and numbers in tables any number of digits."""
    number, layout = "9" * 4000, Layout(("text",))
    integers = TextSplit("train", "train.csv", Dataset.from_dict({"label": ["1", "9" * 5000, "20"]}), layout)
    assert choose_labels(None, {"train": integers}, []) == ["1", "20", "9" * 5000]
    floats = TextSplit("train", "train.csv", Dataset.from_dict({"label": ["1.5", "9" * 5000], "row": [2, 3]}), layout)
    with pytest.raises(InputError, match=r"train\.csv, row 3: '9{50}' is not a finite number"):
        encode_labels(floats, None)
    row = f'{{"id": 1, "context": "a b", "question": "q", "answers": {{"text": ["a"], "answer_start": [{number}]}}}}'
    (tmp_path / "train.json").write_text(row)
    questions = read_questions(tmp_path / "train.json", "train.json")
    with pytest.raises(InputError, match="Answers that are not at their position in the context: 1"):
        check_answers(questions, "train.json", training=True, version_2=False, skip=False)
