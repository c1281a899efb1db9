"""Every format of text gives the same documents, and files are found by pattern."""

import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from snugbert.trainers.documents import find_files, read_documents, read_lines

DOCUMENTS = [["A line. And more of it.", "Another line."], ["Zwei Zeilen, ja."], ["ein Café", "€ 5"]]


def write_documents(folder: Path, suffix: str) -> Path:
    file = folder / f"text{suffix}"
    if suffix == ".parquet":
        datasets.Dataset.from_dict({"text": ["\n".join(lines) for lines in DOCUMENTS]}).to_parquet(file)
        return file
    if ".jsonl" in suffix:
        plain = "".join(json.dumps({"text": "\n".join(lines)}) + "\n" for lines in DOCUMENTS).encode()
    else:
        plain = "\ufeff".encode() + "\n\n".join("\n".join(lines) for lines in DOCUMENTS).encode()
    if suffix.endswith(".gz"):
        plain = gzip.compress(plain)
    elif suffix.endswith(".zst"):  # in two frames, as parallel compressors write
        plain = b"".join(pa.compress(half, "zstd", asbytes=True) for half in (plain[:20], plain[20:]))
    file.write_bytes(plain)
    return file


SUFFIXES = [".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_documents(tmp_path, suffix):
    file = write_documents(tmp_path, suffix)
    assert list(read_documents([file])) == DOCUMENTS
    assert list(read_lines([file])) == [line for document in DOCUMENTS for line in document]


def test_each_file_is_found_once(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        (tmp_path / name).write_text("x")
    found = find_files([str(tmp_path / "*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "c.jsonl")])
    assert [file.name for file in found] == ["a.txt", "b.txt", "c.jsonl"]
