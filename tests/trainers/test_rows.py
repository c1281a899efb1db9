"""Rows of files and datasets are the same, and huge lines are refused."""

import gzip
import json
import resource

import forked
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from snugbert.trainers.rows import LONGEST_LINE, read_rows, read_text_lines

ROWS = [{"text": "a, b", "label": "yes"}, {"text": 'c "d"', "label": "no"}]


@pytest.mark.parametrize(
    ("name", "content", "first_row"),
    [
        ("a.tsv", 'text\tlabel\na, b\tyes\n\nc "d"\tno\n', 2),
        ("a.csv", 'text,label\n"a, b",yes\n\n"c ""d""",no\n', 2),
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


def test_class_labels_of_a_dataset_become_names():
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    dataset = Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    assert [(row, values["label"]) for row, values in read_rows(dataset)] == [(1, "yes"), (2, "no"), (3, None)]


def test_a_header_is_recognized_by_its_last_column(tmp_path):
    columns = ("id", "text")
    for name, content in (("with.tsv", "id\ttext\n1\ta\n"), ("without.tsv", "1\ta\n")):
        (tmp_path / name).write_text(content)
        assert [values for _, values in read_rows(tmp_path / name, columns)] == [{"id": "1", "text": "a"}]


def read_and_print_peak(files):
    """Prints the error of each file, then the growth of the peak memory in megabytes."""

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    before = peak()
    for file in files:
        try:
            list(read_text_lines(file))
        except ValueError as error:
            print(error)
    print(peak() - before)


def test_a_huge_line_in_a_small_file_takes_no_gigabytes(tmp_path):
    """600 MB of text in 600 KB of gzip are refused in 100 MB of memory."""
    files = [tmp_path / name for name in ("line.txt.gz", "line.jsonl.gz", "line.csv.gz")]
    content = gzip.compress(b"a" * 10**6)  # members of a gzip file follow each other
    for file in files:
        file.write_bytes(gzip.compress(b"fine\n") + content * 600)
    assert files[0].stat().st_size < 10**6
    process = forked.run(read_and_print_peak, files)
    assert process.returncode == 0, process.stderr
    *messages, megabytes = process.stdout.splitlines()
    assert messages == [
        f"{file}, line 2: longer than 16 MiB. Split it. In JSON, write one object per line." for file in files
    ]
    assert int(megabytes) < 100


def test_a_line_may_be_as_long_as_the_limit(tmp_path):
    line = "a" * (LONGEST_LINE - 1) + "\n"
    (tmp_path / "long.txt").write_text(f"{line}b")
    assert [len(line) for line in read_text_lines(tmp_path / "long.txt")] == [LONGEST_LINE, 1]
