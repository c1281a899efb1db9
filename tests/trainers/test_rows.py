"""Rows of files and datasets are the same."""

import gzip
import json

import pyarrow
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from snugbert.trainers.rows import read_rows

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
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_every_format_gives_the_same_rows(tmp_path, name, content, first_row, suffix):
    plain = content.encode()
    compressed = {"": plain, ".gz": gzip.compress(plain), ".zst": pyarrow.compress(plain, "zstd", asbytes=True)}
    file = tmp_path / (name + suffix)
    file.write_bytes(compressed[suffix])
    numbers, rows = zip(*read_rows(file), strict=True)
    assert list(rows) == ROWS
    assert numbers == (first_row, first_row + 1 + name.endswith("sv"))  # an empty line counts


def test_a_comma_in_the_header_separates_unless_it_is_quoted(tmp_path):
    for content in ('"a, b";c\n1,5;2\n', '"a, b",c\n"1,5",2\n', '"a, b"\tc\n"1,5"\t2\n'):
        (tmp_path / "a.csv").write_text(content)
        assert list(read_rows(tmp_path / "a.csv")) == [(2, {"a, b": "1,5", "c": "2"})]
    (tmp_path / "a.csv").write_text("a;b,c;d\n1;2,3;4\n")
    assert list(read_rows(tmp_path / "a.csv")) == [(2, {"a;b": "1;2", "c;d": "3;4"})]


def test_class_labels_of_a_dataset_become_names():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    dataset = Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    assert [(row, values["label"]) for row, values in read_rows(dataset)] == [(1, "yes"), (2, "no"), (3, None)]


def test_a_header_is_recognized_by_its_last_column(tmp_path):
    columns = ("id", "text")
    for name, content in (("with.tsv", "id\ttext\n1\ta\n"), ("without.tsv", "1\ta\n")):
        (tmp_path / name).write_text(content)
        assert [values for _, values in read_rows(tmp_path / name, columns)] == [{"id": "1", "text": "a"}]
