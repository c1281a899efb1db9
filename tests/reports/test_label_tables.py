"""The scores of each label in results.md and in the summary."""

import numpy as np

from snugbert.reports.label_tables import label_table, list_label_lines
from snugbert.tasks.classification import TextClassification


def test_of_many_labels_the_worst_are_shown_and_those_never_predicted_are_named():
    task = TextClassification()
    task.labels = [f"label_{i}" for i in range(14)]
    references = np.repeat(np.arange(14), range(14, 0, -1))
    predicted = np.where(references >= 12, 0, references)  # the last two are never predicted
    predicted[:3] = 5
    scores = task.score_labels(*task.pair(references, predicted))
    lines = list(list_label_lines({"eval": scores}))
    assert lines[0][0] == "validation labels" and lines[0][1].startswith("macro F1 8")
    assert [text.split(" (")[0] for _, text in lines[1:3]] == ["label_12", "label_13"]
    assert lines[1][1] == "label_12 (2 examples): F1 0.00 (0.0 to 0.0), precision -, recall 0.00 (0.0 to 0.0)"
    assert len(lines) == 1 + 10 + 2
    assert lines[11][1] == "Validation: never predicted (number of examples): label_12 (2), label_13 (1)."
    assert lines[12][1] == "Validation: the 10 labels with the lowest F1 of 14."
    table = label_table({"eval": scores})
    assert table.count("| validation | label_") == 10 and "never predicted" in table
    assert not label_table({})
