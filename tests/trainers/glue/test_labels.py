"""Labels of your own data, their ids, and labels that cannot be used."""

import json

import pytest

from snugbert.errors import InputError
from snugbert.trainers.glue.arguments import GlueDataArguments
from snugbert.trainers.glue.data import load_splits
from snugbert.trainers.glue.labels import choose_labels, choose_problem, encode_labels


def test_labels_of_your_own_data(tmp_path):
    def labels(
        values: list[object],
        checkpoint: tuple[str, ...] = ("LABEL_0", "LABEL_1"),
        regression: bool | None = None,
        distills: bool = False,
    ) -> tuple:
        file = tmp_path / "train.jsonl"
        file.write_text("\n".join(json.dumps({"sentence": "a", "label": value}) for value in values))
        splits = load_splits(GlueDataArguments(train_file=str(file)), ("train",))
        names = choose_labels(None, splits, list(checkpoint), regression, distills)
        return names, encode_labels(splits["train"], names)

    assert labels([10, 9, 10]) == (["9", "10"], [1, 0, 1])
    assert labels([-1, 1, -1]) == (["-1", "1"], [0, 1, 0])
    assert labels(["b", "a"]) == (["a", "b"], [1, 0])
    assert labels(["b", "a"], checkpoint=("B", "A")) == (["b", "a"], [0, 1])  # the checkpoint's order
    assert labels(["b", "a"], checkpoint=("b", "c")) == (["a", "b"], [1, 0])
    assert labels(["A"], checkpoint=("b", "a"), distills=True) == (["b", "A"], [1])
    assert labels(["a"], checkpoint=("A", "b", "a"), distills=True) == (["A", "b", "a"], [2])
    with pytest.raises(InputError, match=r"the label '5'\. At least two"):  # the teacher predicts numbers
        labels([5, 5], checkpoint=("LABEL_0",), distills=True)
    assert labels([0.5, 1, 2.25]) == (None, [0.5, 1.0, 2.25])
    assert labels([1, 5, 3], regression=True) == (None, [1.0, 5.0, 3.0])
    assert labels([0.5, 2.25, 0.5], regression=False) == (["0.5", "2.25"], [0, 1, 0])
    assert labels(["3.5", "none", "3.6", "none"]) == (["3.5", "3.6", "none"], [0, 2, 1, 2])
    assert labels([1, 2, "n/a"]) == (["1", "2", "n/a"], [0, 1, 2])
    assert labels(["nan", "inf"]) == (["inf", "nan"], [1, 0])
    assert labels([True, False]) == (["False", "True"], [1, 0])
    message = r"train\.jsonl, row 3: the label 'n/a' is not a number, but most labels are\. .* --do_regression false"
    with pytest.raises(InputError, match=message):
        labels([0.5, 1, "n/a", 0.5, "?"])
    assert labels([0.5, 1, "n/a", 2], regression=False) == (["0.5", "1", "2", "n/a"], [0, 1, 3, 2])
    for values in (["2", "3,5", "-1,0"], ["3,5", "n/a", "2,5", "1"]):
        with pytest.raises(InputError, match=r"train.jsonl: labels such as '3,5' are numbers with a comma\. Use a "):
            labels(values)
    assert labels(["3,5", "n/a", "2,5", "?"]) == (["2,5", "3,5", "?", "n/a"], [1, 3, 0, 2])
    assert labels(["2", "3,5"], regression=False) == (["2", "3,5"], [0, 1])
    assert labels(["2,x", "3,5"]) == (["2,x", "3,5"], [0, 1])
    with pytest.raises(InputError, match=r"row 2: 'n/a' is not a finite number"):
        labels([0.5, "n/a"], regression=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence": "a", "label": []}\n{"sentence": "b", "label": []}', r"all examples have no label"),
        ('{"sentence": "a", "label": "yes"}\n{"sentence": "b", "label": "yes"}', r"all examples have the label 'yes'"),
        ('{"sentence": "a", "label": [0, 1]}', r"lists of labels, but .*dev\.jsonl has single labels"),
    ],
)
def test_bad_labels(content, message, tmp_path):
    (tmp_path / "train.jsonl").write_text(content)
    (tmp_path / "dev.jsonl").write_text('{"sentence": "a", "label": 1}')
    files = {"train_file": str(tmp_path / "train.jsonl"), "validation_file": str(tmp_path / "dev.jsonl")}
    splits = load_splits(GlueDataArguments(**files), None)
    with pytest.raises(InputError, match=message):
        choose_problem(splits, choose_labels(None, splits, []), None)
