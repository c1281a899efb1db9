"""Tables of metrics: one run, means over seeds, the GLUE suite."""

import pytest
from markdown_tables import cells

from snugbert.reports.score_tables import (
    data_table,
    results_tables,
    select_suite,
    suite_table,
    sweep_tables,
)


def test_scores_have_one_scale_and_are_apart_from_counts():
    """The same scores as fractions and as percent give the same table. Counts are in the table of the data."""
    scores = {"exact": 0.81256, "f1": 1.0, "HasAns_exact": 0.625, "pearson": -0.5}
    others = {"total": 1500, "HasAns_total": 900, "NoAns_total": 600, "best_exact_thresh": -1.25, "mse": 2.5}
    undefined = {"spearmanr": float("nan"), "matthews_correlation": None}
    sets = {"eval": {**scores, **others, **undefined}, "predict_mm": {"accuracy": 0.91234}, "predict_ax": {}}
    baselines = {"eval": {"answer": "always no answer", "exact": 0.5, "mse": 3.0}}
    fractions = results_tables(sets, baselines, 1)
    assert [row[1:] for row in cells(fractions) if row[0] != "set"] == [
        ["exact", "81.26", "50.00 (always no answer)"],
        ["f1", "100.00", ""],
        ["HasAns exact", "62.50", ""],
        ["pearson", "-50.00", ""],
        ["spearmanr", "-", ""],
        ["matthews correlation", "-", ""],
        ["accuracy", "91.23", ""],
        ["best exact thresh", "-1.2500", ""],
        ["mse", "2.5000", "3.0000 (always no answer)"],
    ]
    of_type = {"LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 1248}
    intervals = {"eval": {"f1": (0.7904, 0.8326), "mse": [2.0, 3.125]}}
    table = results_tables({"eval": {"f1": 0.81256, "mse": 2.5, **of_type}}, {}, 1, intervals)
    assert [row[1:] for row in cells(table) if row[0] != "set"] == [
        ["f1", "81.26 (79.0 to 83.3)", ""],
        ["mse", "2.5000 (2.0000 to 3.1250)", ""],
        ["LOC", "1,248", "100.00", "25.00", "40.00"],
    ]
    percent = {"eval": sets["eval"] | {name: 100 * value for name, value in scores.items()}}
    percent |= {"predict_mm": {"accuracy": 91.234}}
    baselines["eval"]["exact"] = 50.0
    assert results_tables(percent, baselines, 100) == fractions
    data = {
        "train": [{"name": "b.json", "split": "unlabeled", "num_examples": 1}],
        "eval": [{"name": "dev.json", "split": "validation", "num_examples": 1500}],
    }
    assert cells(data_table(data, sets))[1:] == [
        ["training, unlabeled", "b.json", "1"],
        ["validation", "dev.json", "1,500"],
        ["validation HasAns", "dev.json", "900"],
        ["validation NoAns", "dev.json", "600"],
    ]


# BERT-base in Devlin et al. (2018), table 1: MNLI matched and mismatched, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE,
# average.
PUBLISHED = (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 79.6)


def test_suite_average_equals_the_published_one():
    matched, mismatched, qqp, qnli, sst2, cola, stsb, mrpc, rte, _ = PUBLISHED
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
    table = suite_table(select_suite(metrics), {})
    header, row = cells(table)
    assert header == "MNLI-m MNLI-mm QQP QNLI SST-2 CoLA STS-B MRPC RTE average WNLI".split()
    assert row == [*map(str, PUBLISHED), "56.3"] and "Missing" not in table

    # The average of two scores: sqrt(3^2 + 4^2) / 2 = 2.5 below, sqrt(0.5^2 + 1.2^2) / 2 = 0.65 above.
    ends = {"mnli": [(matched - 3) / 100, (matched + 0.5) / 100], "rte": [(rte - 4) / 100, (rte + 1.2) / 100]}
    intervals = {task: {"eval": {"accuracy": interval}} for task, interval in ends.items()}
    two = {"mnli": {"eval": metrics["mnli"]["eval"]}, "rte": metrics["rte"]}
    table = suite_table(select_suite(two), select_suite(intervals))
    _, row, ends = cells(table)
    assert "Missing here: MNLI-mm, QQP, QNLI, SST-2, CoLA, STS-B, MRPC." in table
    assert row == [str(matched), "-", "-", "-", "-", "-", "-", "-", str(rte), f"{(matched + rte) / 2:.1f}"]
    average = (matched + rte) / 2
    assert ends[0] == f"{matched - 3:.1f} to {matched + 0.5:.1f}" and ends[1] == ""
    assert [float(end) for end in ends[9].split(" to ")] == pytest.approx([average - 2.5, average + 0.65], abs=0.051)


def test_tables_of_a_sweep_show_scores_and_only_f1_of_entity_types():
    nan = float("nan")
    setting = {"batch_size": 32, "learning_rate": 3e-5, "epochs": 3.0}
    of_types = {"LOC_precision": 1.0, "LOC_recall": 0.25, "LOC_f1": 0.4, "LOC_number": 9}
    metrics = {name: {"mean": value, "std": 0.125} for name, value in {"f1": 0.5, "total": 30, **of_types}.items()}
    spreads = [(0.5, 0.01), (0.5, nan), (nan, nan)]  # three seeds, one seed, a correlation of a constant
    settings = [{**setting, "seeds": 2, "mean": mean, "std": std} for mean, std in spreads]
    summary = {"chosen_by": "eval_f1", "settings": settings, "best_setting": setting, "failures": ["seed-7: *nan*"]}
    text = sweep_tables({**summary, "metrics": {"eval": metrics}}, tuple(setting), 1)
    assert cells(text) == [
        ["batch size", "learning rate", "epochs", "seeds", "mean ± standard deviation"],
        *(["32", "3e-05", "3", "2", mean] for mean in ("50.00 ± 1.00", "50.00", "-")),
        ["set", "metric", "mean ± standard deviation"],
        ["validation", "f1", "50.00 ± 12.50"],
        ["validation", "LOC f1", "40.00 ± 12.50"],
    ]
    assert r"Failed: seed-7: \*nan\*" in text
    settings[0]["interval"], metrics["f1"]["interval"] = (0.41, 0.5904), (0.25, 0.75)
    text = sweep_tables({**summary, "metrics": {"eval": metrics}}, tuple(setting), 1)
    assert "50.00 ± 1.00 (41.0 to 59.0)" in text and "50.00 ± 12.50 (25.0 to 75.0)" in text
    assert "Best setting: batch size 32, learning rate 3e-05, epochs 3. Its validation score is optimistic" in text
