"""Rows of files and datasets are the same."""

import gzip
import json
import re

import pyarrow
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from snugbert.data.tables import read_rows
from snugbert.errors import InputError

ROWS = [{"text": "a, b", "label": "yes"}, {"text": 'c "d"', "label": "no"}]


@pytest.mark.parametrize(
    ("name", "content", "first_row"),
    [
        ("a.tsv", 'text\tlabel\na, b\tyes\n\nc "d"\tno\n', 2),
        ("a.csv", 'text,label\n"a, b",yes\n\n"c ""d""",no\n', 2),
        ("semicolons.csv", '\ufeff"text";label\r\na, b;yes\r\n\r\n"c ""d""";no\r\n', 2),
        ("tabs.csv", 'text\tlabel\na, b\tyes\n\n"c ""d"""\tno\n', 2),
        ("a.jsonl", "\n".join(map(json.dumps, ROWS)), 1),
        ("a.json", json.dumps(ROWS, indent=1), 1),
    ],
)
@pytest.mark.parametrize("line_end", ["as written", "\r"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_every_format_gives_the_same_rows(tmp_path, name, content, first_row, suffix, line_end):
    if line_end == "\r":
        content = content.replace("\r", "").replace("\n", "\r")
    plain = content.encode()
    compressed = {"": plain, ".gz": gzip.compress(plain), ".zst": pyarrow.compress(plain, "zstd", asbytes=True)}
    file = tmp_path / (name + suffix)
    file.write_bytes(compressed[suffix])
    numbers, rows = zip(*read_rows(file), strict=True)
    assert list(rows) == ROWS
    assert numbers == (first_row, first_row + 1 + name.endswith("sv"))  # an empty line counts


def test_a_comma_in_the_header_separates_unless_it_is_quoted(tmp_path):
    for content, row in (
        ('"a, b";c\n1,5;2\n', {"a, b": "1,5", "c": "2"}),
        ('"a, b",c\n"1,5",2\n', {"a, b": "1,5", "c": "2"}),
        ('"a, b"\tc\n"1,5"\t2\n', {"a, b": "1,5", "c": "2"}),
        ("a;b,c;d\n1;2,3;4\n", {"a;b": "1;2", "c;d": "3;4"}),
        ('"a\nb",c\n1,2\n', {"a\nb": "1", "c": "2"}),  # the first row has two lines
    ):
        (tmp_path / "a.csv").write_text(content)
        assert list(read_rows(tmp_path / "a.csv")) == [(2, row)]


@pytest.mark.parametrize("header", ["a", '"a"', '"a, b"', "\na"])
def test_a_header_without_separator_is_one_column(tmp_path, header):
    (tmp_path / "a.csv").write_text(header + '\nGood, nice; "x"\n\n"Two\nlines, ""y"""\n')
    cells = ['Good, nice; "x"', 'Two\nlines, "y"']
    first = 2 + header.count("\n")
    expected = [(first, cells[0]), (first + 2, cells[1])]
    assert [(row, *values.values()) for row, values in read_rows(tmp_path / "a.csv")] == expected


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", 'a\n"b" c\n', "row 2: not CSV (line end expected after '\"'). Close each quote, and"),
        ("a.csv", 'a\nb\n"c\nd\n', "row 3: not CSV (unexpected end of data)"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "row 3: expected 2 columns, found 3"),
        ("a.csv", "a (b, c);d\n1;2\n", "row 2: expected 2 columns, found 1. The separator is a comma. In .csv files,"),
        ("a.csv", "text,text,label\n", "a.csv: columns 1 and 2 are both called 'text'. Rename or remove one."),
        ("a.json", '[["a, b", "yes"]]', 'In pandas: to_json(file, orient="records", lines=T'),
    ],
)
def test_bad_tables(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(words)):
        list(read_rows(tmp_path / name))


def test_values_keep_their_text(tmp_path):
    """The readers of the datasets library guess types."""
    cells = ["NA", "nan", "None", "007", "1.0", "2020-01-01", "", "a\0b", " x "]
    (tmp_path / "a.csv").write_text("".join(f"{cell},1\n" for cell in ["a", *cells]))
    assert [values["a"] for _, values in read_rows(tmp_path / "a.csv")] == cells
    rows = [{"text": cell, "label": label} for cell, label in zip(cells, [1, "1", 1.5, True] * 3, strict=False)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = [values for _, values in read_rows(tmp_path / "a.jsonl")]
    assert read == rows and [type(row["label"]) for row in read] == [type(row["label"]) for row in rows]


def test_class_labels_of_a_dataset_become_names():
    label = ClassLabel(names=["no", "yes"])
    features = Features({"text": Value("string"), "label": label, "tags": List(label)})
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1, -1]]}
    rows = read_rows(Dataset.from_dict(columns, features=features))
    expected = [(1, "yes", ["no", "yes"]), (2, "no", []), (3, None, None)]
    assert [(row, values["label"], values["tags"]) for row, values in rows] == expected


def test_a_header_is_recognized_by_its_last_column(tmp_path):
    columns = ("id", "text")
    for name, content in (("with.tsv", "id\ttext\n1\ta\n"), ("without.tsv", "1\ta\n")):
        (tmp_path / name).write_text(content)
        assert [values for _, values in read_rows(tmp_path / name, columns)] == [{"id": "1", "text": "a"}]
