"""The scores of each label in results.md."""

import numpy as np
from markdown_tables import cells

from snugbert.reports.label_tables import label_table
from snugbert.tasks.classification import TextClassification


def test_of_many_labels_the_worst_are_shown_and_those_never_predicted_are_named():
    task = TextClassification()
    task.labels = [f"label_{i}" for i in range(14)]
    references = np.repeat(np.arange(14), range(14, 0, -1))
    predicted = np.where(references >= 12, 0, references)  # the last two are never predicted
    predicted[:3] = 5
    scores = task.score_labels(*task.pair(references, predicted))
    text = label_table({"eval": scores})
    average, *labels = cells(text)[1:]
    assert average[:2] == ["validation", "average of the labels"] and average[-1].startswith("8")
    assert labels[0] == ["validation", "label_12", "2", "-", "0.00 (0.0 to 0.0)", "0.00 (0.0 to 0.0)"]
    assert labels[1][1] == "label_13" and len(labels) == 10
    assert text.endswith(
        "Validation: never predicted (number of examples): label_12 (2), label_13 (1). "
        "Validation: the 10 labels with the lowest F1 of 14."
    )
    assert not label_table({})
