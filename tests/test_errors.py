"""Counts in messages. The tests of the commands cover [`InputError`]."""

from snugbert.errors import format_count


def test_counts_are_singular_or_plural():
    assert [format_count(number, "row") for number in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
