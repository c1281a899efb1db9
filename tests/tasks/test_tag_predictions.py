"""Files of predictions have the form of their source: only the tags change."""

import gzip
import json
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.data.conll import Tags, load_splits
from snugbert.tasks.tag_predictions import predictions_file, write_predictions
from snugbert.tasks.tagging_arguments import NerDataArguments


def write(
    folder: Path, name: str, source: bytes, tags: Tags | None = None, split: str = "validation", **columns
) -> str:
    """Reads a source and writes it with its own tags, or with `tags`. Returns the new text."""
    (folder / name).write_bytes(source)
    data_args = NerDataArguments(**{f"{split}_file": str(folder / name)}, **columns)
    sentences = load_splits(data_args, (split,))[split]
    file = folder / predictions_file("predictions", folder / name)
    write_predictions(file, sentences, sentences.references if tags is None else tags, data_args)
    return file.read_bytes().decode()


@pytest.mark.parametrize("name", ["test.txt.gz", "test.jsonl.gz"])
def test_conll_2003_with_its_own_tags_is_unchanged(name, data_dir, tmp_path):
    source = (data_dir / "conll2003" / name).read_bytes()
    assert write(tmp_path, name, source).encode() == gzip.decompress(source)


# Each `B-X` is the tag of a word. Entities are one word long, and types are X, Y or Z.
SOURCES = {
    "tabs, spaces in words, CRLF, no line end at the end": "New York\tB-X\r\n\u00a0is\tO\r\n\r\n\t\r\nA B\tB-Y",
    "spaces, documents": "-DOCSTART- -X- O O\n\n  Jo   NN  B-X \n.\t.\tO\n\n-DOCSTART- -X- O O\n\na a O\n",
    "comments": "# id 1\tdomain=en\nJo _ _ B-X\n# _ _ O\n\n# id 2\tdomain=en\n\n# _ _ O\n. _ _ B-Y\n\n# end\n",
    "comments, tabs": "# id = 1\nJo\t_\t_\tB-X\n# 1\t_\t_\tO\n\n# newdoc\n# id\tx\n#\t_\t_\tO\n.\t_\t_\tB-Y\n",
    "carriage returns": "-DOCSTART-\tO\r\rNew York\tB-X\r\u2028is\tO\r\rA B\tB-Y\r",
    "byte order mark, form feed": "\ufeffJo B-X\n\fa O\n",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize("scheme", ["bio", "iobes"])
def test_columns(source, scheme, tmp_path):
    source = source.replace("B-", "S-" if scheme == "iobes" else "B-")
    assert write(tmp_path, "dev.conll", source.encode()) == source
    data_args = NerDataArguments(validation_file=str(tmp_path / "dev.conll"))
    split = load_splits(data_args, None)["validation"]
    # Other tags have other lengths.
    names = {"O": "O", "X": "S-long" if scheme == "iobes" else "B-long", "Y": "O"}
    tags = [[names[tag[2:] or tag] for tag in row] for row in split.references]
    expected = source
    for kind in "XY":
        expected = expected.replace(f"S-{kind}", names[kind]).replace(f"B-{kind}", names[kind])
    assert write(tmp_path, "dev.conll", source.encode(), tags) == expected != source


def test_chosen_columns_new_columns_and_limits(tmp_path):
    # The tags come first.
    swapped = {"text_column_name": "2", "label_column_name": "1"}
    source = b"B-X Jo 7\nO a 8\n\nO b 9\n"
    assert write(tmp_path, "a", source, [["O", "B-Y"], ["B-Y"]], **swapped) == "O Jo 7\nB-Y a 8\n\nB-Y b 9\n"
    # Without tags, they become the last column.
    source = b"-DOCSTART-\r\n\r\nJo\r\na\r\n\r\nb"
    expected = "-DOCSTART- O\r\n\r\nJo B-X\r\na O\r\n\r\nb O"
    assert write(tmp_path, "a.txt", source, [["B-X", "O"], ["O"]], "test") == expected
    new_column = {"label_column_name": "3"}
    assert write(tmp_path, "a.txt", b"Jo S\tNN\na\tNN\n", [["B-X", "O"]], "test", **new_column) == (
        "Jo S\tNN\tB-X\na\tNN\tO\n"
    )
    # Where words have tabs, a comment has none.
    source = b"# newdoc\nJo\tNN\n\n# 1\n# 1\tNN\n"
    assert write(tmp_path, "a.txt", source, [["O"], ["B-X"]], "test", **new_column) == (
        "# newdoc\nJo\tNN\tO\n\n# 1\n# 1\tNN\tB-X\n"
    )
    # A type that was learned from JSON may contain spaces.
    assert write(tmp_path, "a.txt", b"Jo O\n", [["B-a b"]]) == "Jo B-a_b\n"
    # Sentences beyond a limit are left out.
    source = b"-DOCSTART- O\n\na O\nb O\n\n\n-DOCSTART- O\n\nc O\n"
    assert write(tmp_path, "a.txt", source, [["O", "B-X"]], max_eval_samples=1) == "-DOCSTART- O\n\na O\nb B-X\n\n\n"
    rows = [b'{"tokens": ["a"], "tags": ["O"]}', b'{"tokens": ["b"], "tags": ["O"]}']
    for source, expected in (
        (b"\n".join(rows), '{"tokens": ["a"], "tags": ["B-X"]}\n'),
        (b"[\n " + b",\n ".join(rows) + b"\n]", '[\n {"tokens": ["a"], "tags": ["B-X"]}\n]'),
    ):
        assert write(tmp_path, "a.json", source, [["B-X"]], max_eval_samples=1) == expected


JSON = [
    ' {"id":1.50,"ner_tags":["B-X" , "O"], "tokens":["New York","\\u00e9"],"x":{"tags":[]}}\r\n',
    '\n{"tokens": [], "ner_tags": []}\n',
    '{"tokens": ["{\\"ner_tags\\": [\\"B-X\\"]}"], "tags": ["O"], "ner_tags": [ "\\u0042-X" ] }',
]
LIST = f"\ufeff\n[{','.join(JSON)}]\n".replace("New York", "Zürich")


@pytest.mark.parametrize("source", ["".join(JSON), LIST], ids=["lines", "list"])
def test_json(source, tmp_path):
    assert write(tmp_path, "dev.jsonl", source.encode()) == source
    expected = source.replace('["B-X" , "O"]', '["O" , "B-\\u00e9"]').replace("\\u0042-X", "B-Y")
    assert write(tmp_path, "dev.jsonl", source.encode(), [["O", "B-é"], ["B-Y"]]) == (
        expected if source.isascii() else expected.replace('"B-\\u00e9"', '"B-é"')
    )
    # Without tags they become the last value.
    source = '{"tokens": ["a"]}\n{"tokens": ["b"], "ner_tags": null, "x": 1 }\n'
    expected = '{"tokens": ["a"], "ner_tags": ["O"]}\n{"tokens": ["b"], "ner_tags": ["B-X"], "x": 1 }\n'
    assert write(tmp_path, "test.json", source.encode(), [["O"], ["B-X"]], "test") == expected


def test_a_dataset_becomes_json_lines(tmp_path):
    names = ["O", "B-X", "I-X"]
    features = Features(
        {"ner_tags": List(ClassLabel(names=names)), "tokens": List(Value("string")), "n": Value("int8")}
    )
    rows = [{"ner_tags": [1, 0], "tokens": ["Jo", "ë"], "n": 3}, {"ner_tags": [0], "tokens": ["b"], "n": None}]
    (tmp_path / "data").mkdir()
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "data" / "validation.parquet")
    data_args = NerDataArguments(dataset_name=str(tmp_path / "data"))
    split = load_splits(data_args, ("validation",), cache_dir=str(tmp_path / "cache"))["validation"]
    file = tmp_path / predictions_file("predictions", None)
    write_predictions(file, split, split.references, data_args)
    # Class ids become names, so that the file can be read without the dataset.
    expected = [{**row, "ner_tags": [names[i] for i in row["ner_tags"]]} for row in rows]
    assert file.name == "predictions.jsonl"
    assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == expected
    assert list(expected[0]) == list(json.loads(file.read_text(encoding="utf-8").splitlines()[0]))
