"""The files results.json and results.md."""

import json

import pytest

from snugbert.trainers.finetuning.results import write_results


def test_results_files(tmp_path):
    results = {
        "task": "CoLA",
        "metrics": {"eval": {"matthews_correlation": 0.52}},
        "examples": {"eval": 1043},
        "baselines": {"eval": {"answer": "always 'acceptable'", "matthews_correlation": 0.0}},
        "sweep": {"std": float("nan"), "name": "Zürich"},
    }
    write_results(tmp_path, results, "| batch size |")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert text.startswith("# CoLA\n") and "| 0.5200 | 0.0000 (always 'acceptable') |" in text
    assert text.endswith("\n| batch size |\n")
    written = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(written) == results | {"sweep": {"std": None, "name": "Zürich"}}
    with pytest.raises(TypeError):
        write_results(tmp_path, results | {"settings": object()})
    assert (tmp_path / "results.json").read_text(encoding="utf-8") == written
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.json", "results.md"]
