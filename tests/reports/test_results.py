"""The files results.json and results.md."""

import json

import pytest

from snugbert.errors import InputError
from snugbert.reports.cards import Head
from snugbert.reports.results import TaskFacts, format_summary, read_results, write_results


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


FACTS = TaskFacts("counting", Head("ForSequenceClassification"), None, ("predictions.txt",))
RESULTS = {
    "perfect_score": 1,
    "baselines": {"eval": {"answer": "always 'few'", "accuracy": 0.25}},
    "data": {"eval": [{"name": "dev.csv", "split": "validation", "num_examples": 30}]},
}


def test_summary(tmp_path):
    (tmp_path / "README.md").touch()
    (tmp_path / "confusion_matrix.png").touch()
    training = {"train_runtime": 61.2, "train_steps": 1, "epoch": 1.0}
    metrics = {"eval": {"accuracy": 0.5, "mse": None, "pearson": float("nan"), "total": 30}, "predict_mm": {}}
    summary = format_summary(FACTS, RESULTS | {"training": training, "metrics": metrics}, tmp_path, "| batch size |")
    assert summary.startswith("counting: trained 1 epoch (1 step) in 1 min 1 s\n\n")
    assert "| validation | accuracy | 50.00 | 25.00 (always 'few') |\n| validation | pearson | - |  |\n" in summary
    assert "Predicted, not scored, because labels are missing: test mismatched.\n" in summary
    assert summary.endswith(f"\nfolder       {tmp_path}\nplots        confusion_matrix.png\nmodel card   README.md")
    # In the folder of a trained model, a run that only scores lists only its predictions.
    for name in ("config.json", "model.safetensors", "predictions.txt", "results.md"):
        (tmp_path / name).touch()
    summary = format_summary(FACTS, RESULTS | {"training": {}, "metrics": {"eval": {"accuracy": 0.5}}}, tmp_path)
    assert summary.startswith("counting: scored\n")
    assert summary.endswith(f"\nfolder       {tmp_path}\npredictions  predictions.txt")
