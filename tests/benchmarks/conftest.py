"""Fixtures for the tests of the benchmarks, which `make test-benchmarks` runs."""

import pytest
from benchmark_files import BENCHMARKS


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setattr("side_by_side.RATE_SECONDS", 0.001)  # a run of ten that measure the rate of products
