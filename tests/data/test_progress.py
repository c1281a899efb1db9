"""The progress of a preparation: lines in a log file, and the remaining time."""

import pytest
from prepared import prepare, text_arguments

from snugbert.data.preparation import prepare_parts
from snugbert.data.text_lines import ReadingLog
from snugbert.data.text_parts import plan_parts
from snugbert.progress import PreparationProgress, format_bytes
from snugbert.trainers import log_lines


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when it is set."""
    seconds = [0.0]
    monkeypatch.setattr(log_lines.time, "monotonic", lambda: seconds[0])
    return seconds


def test_lines_every_ten_percent_and_at_most_one_a_minute(clock, capsys):
    shown = PreparationProgress(10_000, "bytes", ReadingLog(), show=True)
    for percentage in range(1, 101):
        clock[0] += 10
        shown.update(percentage * 100, documents=5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[3] == "preparing: 40 % of 10.0kB, 200 documents, 10 min 0 s left"
    clock[0] += 10_000  # a long document
    shown.update(10_000, documents=1)
    assert capsys.readouterr().err == "preparing: 100 % of 10.0kB, 501 documents, 0 s left\n"


def test_earlier_work_counts_for_the_percentage_but_not_for_the_speed(clock, capsys):
    shown = PreparationProgress(1000, "rows", ReadingLog(), show=True)
    shown.skip_part(500)
    shown.skip_to(200)
    clock[0] = 100
    shown.update(300, documents=100)
    assert capsys.readouterr().err == "preparing: 80 % of 1,000 rows, 100 documents, 3 min 20 s left\n"


def test_a_preparation_reports_the_bytes_of_its_files(tmp_path, words_tokenizer, small, monkeypatch, capsys):
    """In two parts. The first is prepared already."""
    other = tmp_path / "other.txt"
    other.write_text(small.text.read_text())
    monkeypatch.setattr(log_lines, "SHORTEST_PAUSE", 0)
    parts = plan_parts(text_arguments(small.text, other), num_shards=2)
    options = {"language": None, "num_workers": 1}
    prepare_parts(tmp_path / "out", parts[:1], words_tokenizer, **options)
    capsys.readouterr()
    prepare_parts(tmp_path / "out", parts, words_tokenizer, **options)
    lines = capsys.readouterr().err.splitlines()
    percentages = [int(line.split()[1]) for line in lines]
    assert percentages[0] > 50 and percentages[-1] > 90 and percentages == sorted(set(percentages))
    # Text is read in blocks, ahead of the documents.
    assert lines[-1].startswith(f"preparing: 100 % of {format_bytes(2 * small.text.stat().st_size)}, ")
    prepare(tmp_path / "quiet", words_tokenizer, small.text, **options)
    assert capsys.readouterr().err == ""
