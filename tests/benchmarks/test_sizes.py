"""The page about sizes has the tables that the measured speeds give."""

from benchmark_files import BENCHMARKS


def test_the_page_has_the_tables():
    from sizes import format_tables

    page = (BENCHMARKS.parent / "docs/how-to/sizes.md").read_text(encoding="utf-8")
    pretraining, fine_tuning = format_tables()
    assert pretraining in page and fine_tuning in page
    # One GB on two cores: 236 million tokens at 9,960 tokens/s. 500 rows, three times, at 9.6 rows/s.
    assert "| two cores | mini | 10,000 | 3.9 min | 39 min | 6.6 hours |" in pretraining
    assert "| two cores | base | 9.6 | 2.6 min |" in fine_tuning
