"""The files results.json and results.md."""

import json

import pytest

from snugbert.errors import InputError
from snugbert.reports.results import read_results, write_results


def test_results_files(tmp_path):
    results = {
        "task": "CoLA",
        "metrics": {"eval": {"matthews_correlation": 0.52}},
        "intervals": {"eval": {"matthews_correlation": [0.471, 0.5649]}},
        "perfect_score": 1,
        "data": {"eval": [{"name": "dev.tsv", "split": "validation", "num_examples": 1043}]},
        "baselines": {"eval": {"answer": "always 'acceptable'", "matthews_correlation": 0.0}},
        "sweep": {"std": float("nan"), "name": "Zürich"},
    }
    write_results(tmp_path, results, "| batch size |")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| validation | dev.tsv | 1,043 |" in text
    assert text.endswith("| 52.00 (47.1 to 56.5) | 0.00 (always 'acceptable') |\n\n| batch size |\n")
    written = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(written) == results | {"sweep": {"std": None, "name": "Zürich"}}
    with pytest.raises(TypeError):
        write_results(tmp_path, results | {"settings": object()})
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == written
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InputError, match=r"results\.json is damaged"):
        read_results(tmp_path / "results.json")
