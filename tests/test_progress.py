"""Progress: lines in a log file, and the remaining time."""

import pytest

from snugbert import progress
from snugbert.progress import Progress, format_duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when it is set."""
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_durations():
    assert [format_duration(seconds) for seconds in (0.4, 59.6, 3599, 3601, 90000)] == [
        *("0 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "25 h 0 min")
    ]


def test_lines_every_ten_percent_and_at_most_one_a_minute(clock, capsys):
    shown = Progress("preparing", 10_000, "bytes")
    for percentage in range(1, 101):
        clock[0] += 10
        shown.counts["documents"] += 5
        shown.move_to(percentage * 100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[3] == "preparing: 40 % of 10.0kB, 200 documents, 10 min 0 s left"
    clock[0] += 10_000  # a long document
    shown.counts["documents"] += 1
    shown.move_to(10_000)
    assert capsys.readouterr().err == "preparing: 100 % of 10.0kB, 501 documents, 0 s left\n"


def test_earlier_work_counts_for_the_percentage_but_not_for_the_speed(clock, capsys):
    shown = Progress("predicting", 1000, "rows", done=500)
    shown.skip_to(700)
    clock[0] = 100
    shown.move_to(800)
    assert capsys.readouterr().err == "predicting: 80 % of 1,000 rows, 3 min 20 s left\n"
    few = Progress("predicting", 20, "rows", done=5)
    for done in (14, 15):  # no estimate before 10 rows
        clock[0] += 700
        few.move_to(done)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["predicting: 70 % of 20 rows", "predicting: 75 % of 20 rows, 11 min 40 s left"]


def test_work_of_unknown_size_is_counted(clock, capsys):
    with Progress("counting words", None, "lines") as shown:
        for _ in shown.follow(range(2500)):  # counted by the thousand
            clock[0] += 0.3
    assert capsys.readouterr().err == "counting words: 2,000 lines\n"


def test_a_quiet_command_shows_nothing(clock, capsys):
    with Progress("counting words", 1, "lines", show=False) as shown:
        clock[0] += 1000
        shown.move_to(1)
    assert capsys.readouterr().err == ""
