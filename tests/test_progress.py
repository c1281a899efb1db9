"""Progress: lines in a log file, and durations."""

import pytest

from snugbert.progress import Progress, format_duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that changes only when it is set."""
    seconds = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: seconds[0])
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread
    return seconds


def test_durations():
    expected = {0.4: "0 s", 59.6: "1 min 0 s", 3599: "59 min 59 s", 3601: "1 h 0 min", 90000: "25 h 0 min"}
    assert {seconds: format_duration(seconds) for seconds in expected} == expected


def test_a_log_file_gets_a_line_per_minute_at_any_speed(clock, capsys):
    shown = Progress("preparing", 10_000, "bytes", done=1000)
    shown.skip_to(2000)
    for step in range(1, 8):
        clock[0] += 30
        shown.counts["documents"] += 5
        shown.move_to(2000 + 1000 * step)
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("preparing:  40%|") and "4.00k/10.0k" in lines[0] and "documents=10" in lines[0]
    assert "<03:00" in lines[0]  # 2,000 bytes a minute: earlier work does not count for the speed
    for seconds, show, number in (([0.5] * 240 + [30] * 8, True, 6), ([0], True, 0), ([300], False, 0)):
        with Progress("preparing", 10_000, "rows", show=show) as shown:
            for step, each in enumerate(seconds, start=1):
                clock[0] += each
                shown.move_to(step)
        assert len(capsys.readouterr().err.splitlines()) == number
