"""Tables of metrics: one run, means over seeds, the GLUE suite."""

import pytest
from markdown_tables import cells

from snugbert.trainers.finetuning.tables import means_table, results_table, suite_table, sweep_tables


def test_results_table():
    metrics = {
        "eval": {"accuracy": 0.91234, "matthews_correlation": -0.5, "pearson": float("nan"), "f1": None},
        "eval_mm": {"accuracy": 1.0},
        "predict": {"exact_match": 81.256, "total": 10570},
        "predict_ax": {},
    }
    examples = {"eval": 1500, "eval_mm": 2, "predict": 10570, "predict_ax": 3}
    baselines = {"eval": {"answer": "always 'yes'", "accuracy": 0.5}}
    assert cells(results_table(metrics, baselines, examples)) == [
        ["examples", "metric", "this model", "baseline"],
        ["validation (1,500)", "accuracy", "0.9123", "0.5000 (always 'yes')"],
        ["validation (1,500)", "matthews correlation", "-0.5000", ""],
        ["validation (1,500)", "pearson", "-", ""],
        ["validation (1,500)", "f1", "-", ""],
        ["validation mismatched (2)", "accuracy", "1.0000", ""],
        ["test (10,570)", "exact match", "81.26", ""],
        ["test (10,570)", "total", "10,570", ""],
    ]
    entities = {"f1": 0.5, "LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 1248}
    assert cells(results_table({"eval": entities}, {}, {"eval": 7})) == [
        ["examples", "metric", "this model", "baseline"],
        ["validation (7)", "f1", "0.5000", ""],
        ["examples", "type", "entities", "precision", "recall", "f1"],
        ["validation (7)", "LOC", "1,248", "1.0000", "0.2500", "0.4000"],
    ]


def test_means_table():
    nan = float("nan")
    rows = [
        {"batch_size": 16, "learning_rate": 5e-5, "mean": 0.91, "std": 0.01, "scores": [0.90, 0.91, 0.92]},
        {"batch_size": 32, "learning_rate": 2e-5, "mean": 89.0, "std": 1.41421},
        {"batch_size": 32, "learning_rate": 3e-5, "mean": 0.5, "std": nan},
        {"batch_size": 32, "learning_rate": 4e-5, "mean": nan, "std": nan},
    ]
    assert cells(means_table(["batch_size", "learning_rate"], rows)) == [
        ["batch size", "learning rate", "mean ± standard deviation"],
        ["16", "5e-05", "0.9100 ± 0.0100"],
        ["32", "2e-05", "89.00 ± 1.41"],
        ["32", "3e-05", "0.5000"],
        ["32", "4e-05", "-"],
    ]


# Devlin et al. (2018), table 1: MNLI matched and mismatched, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE, average.
PUBLISHED = {
    "OpenAI GPT": (82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0, 75.1),
    "BERT-base": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6),
    "BERT-large": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1),
}


@pytest.mark.parametrize("model", PUBLISHED)
def test_suite_average_equals_the_published_one(model):
    matched, mismatched, qqp, qnli, sst2, cola, stsb, mrpc, rte, _ = PUBLISHED[model]
    metrics = {
        "cola": {"eval": {"matthews_correlation": cola / 100}},
        "mnli": {"eval": {"accuracy": matched / 100}, "eval_mm": {"accuracy": mismatched / 100}, "predict_ax": {}},
        "mrpc": {"eval": {"accuracy": 0.1, "f1": mrpc / 100, "combined_score": 0.1}},
        "qnli": {"eval": {"accuracy": qnli / 100}},
        "qqp": {"eval": {"accuracy": 0.1, "f1": qqp / 100}},
        "rte": {"eval": {"accuracy": rte / 100}},
        "sst2": {"eval": {"accuracy": sst2 / 100}, "predict": {"accuracy": 0.1}},
        "stsb": {"eval": {"pearson": 0.1, "spearmanr": stsb / 100}},
        "wnli": {"eval": {"accuracy": 0.563}},
    }
    table = suite_table(metrics)
    header, row = cells(table)
    assert header == "MNLI-m MNLI-mm QQP QNLI SST-2 CoLA STS-B MRPC RTE average WNLI".split()
    assert row == [*map(str, PUBLISHED[model]), "56.3"] and "Missing" not in table

    some = suite_table({"mnli": {"eval": metrics["mnli"]["eval"]}, "rte": metrics["rte"]})
    header, row = cells(some)
    assert row == [str(matched), "-", "-", "-", "-", "-", "-", "-", str(rte), f"{(matched + rte) / 2:.1f}"]
    assert "Missing here: MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC." in some


def test_tables_of_a_sweep_show_only_f1_of_entity_types():
    setting = {"batch_size": 32, "learning_rate": 3e-5, "epochs": 3.0}
    of_types = {"LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 9}
    metrics = {name: {"mean": value, "std": 0.125} for name, value in {"f1": 0.5, **of_types}.items()}
    row = {**setting, "seeds": 2, "scores": [0.5, 0.5], "mean": 0.5, "std": 0.0}
    summary = {"chosen_by": "eval_f1", "settings": [row], "best_setting": row, "failures": ["seed-7: *nan*"]}
    text = sweep_tables({**summary, "metrics": {"eval": metrics}}, tuple(setting))
    lines = [line for line in text.splitlines() if line.startswith("| validation")]
    assert lines == ["| validation | f1 | 0.5000 ± 0.1250 |", "| validation | LOC f1 | 0.4000 ± 0.1250 |"]
    assert r"Failed: seed-7: \*nan\*" in text
    assert "Best setting: batch size 32, learning rate 3e-05, epochs 3. Its metrics" in text
