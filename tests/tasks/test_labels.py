"""Labels of your own data, their ids, and labels that cannot be used."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset
from glue_examples import load_splits
from sklearn.preprocessing import MultiLabelBinarizer
from tables import write_csv

from snugbert import SnugBertConfig
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labels import choose_labels, encode_labels
from snugbert.tasks.task_arguments import GlueDataArguments


def encode(
    file: Path,
    values: list[object],
    checkpoint: tuple[str, ...] = (),
    split: str = "train",
    regression: bool | None = None,
    distills: bool = False,
    **arguments: str,
) -> tuple:
    """Writes the values as labels of a file, and returns the names of the labels and the encoded labels."""
    rows = [{"sentence": "a", "label": value} for value in values]
    if file.suffix == ".csv":
        write_csv(file, rows)
    else:
        file.write_text("\n".join(map(json.dumps, rows)))
    splits = load_splits(GlueDataArguments(**{f"{split}_file": str(file)}, **arguments), None)
    names = choose_labels(None, splits, list(checkpoint), regression, distills)
    return names, encode_labels(splits[split], names)


def test_labels_of_your_own_data(tmp_path):
    labels = partial(encode, tmp_path / "train.jsonl", checkpoint=("LABEL_0", "LABEL_1"))
    assert labels([10, 9, 10]) == (["9", "10"], [1, 0, 1])
    assert labels([-1, 1, -1]) == (["-1", "1"], [0, 1, 0])
    assert labels(["b", "a"], checkpoint=("B", "A")) == (["b", "a"], [0, 1])  # the checkpoint's order
    assert labels(["b", "a"], checkpoint=("b", "c")) == (["a", "b"], [1, 0])
    assert labels([1, 0], distills=True) == (["0", "1"], [1, 0])
    assert labels(["A"], checkpoint=("b", "a"), distills=True) == (["b", "A"], [1])
    assert labels(["a"], checkpoint=("A", "b", "a"), distills=True) == (["A", "b", "a"], [2])
    with pytest.raises(InputError, match=r"the label '5'\. Expected at least 2"):  # the teacher predicts numbers
        labels([5, 5], checkpoint=("LABEL_0",), distills=True)
    assert labels([0.5, 1, 2.25]) == (None, [0.5, 1.0, 2.25])
    assert labels([1, 5, 3], regression=True) == (None, [1.0, 5.0, 3.0])
    assert labels([0.5, 2.25, 0.5], regression=False) == (["0.5", "2.25"], [0, 1, 0])
    assert labels([True, False]) == (["False", "True"], [1, 0])
    with pytest.raises(InputError, match=r"row 3: the label 'n/a' is not a number with a .* --do_reg"):
        labels([0.5, 1, "n/a", 0.5, "?"])
    for values in (["2", "3,5", "-1,0"], ["3,5", "n/a", "2,5", "1"]):
        with pytest.raises(InputError, match=r"the label '3,5' is not a number with a decimal point"):
            labels(values)
    assert labels(["3,5", "n/a", "2,5", "?"]) == (["2,5", "3,5", "?", "n/a"], [1, 3, 0, 2])
    assert labels(["2", "3,5"], regression=False) == (["2", "3,5"], [0, 1])
    with pytest.raises(InputError, match=r"row 2: the model predicts numbers, and 'n/a' is not a finite number"):
        labels([0.5, "n/a"], regression=True)


def test_every_form_of_label_vectors_gives_the_same_labels(tmp_path):
    vectors = [[1, 0, 1], [0, 0, 0], [0, 1, 1]]
    expected = (["LABEL_0", "LABEL_1", "LABEL_2"], vectors)
    for change in (int, float, bool):
        changed = [[change(bit) for bit in vector] for vector in vectors]
        assert encode(tmp_path / "a.jsonl", changed) == encode(tmp_path / "a.csv", map(str, changed)) == expected
    cells = ["|".join(map(str, vector)) for vector in vectors]
    assert encode(tmp_path / "a.csv", cells, label_separator="|") == expected
    with pytest.raises(InputError, match=r"labels such as '0.0.0' are vectors\. Set --label_separator '\|'"):
        encode(tmp_path / "a.csv", cells)
    names = ("x", "b", "c")
    assert encode(tmp_path / "a.jsonl", vectors, names, split="validation") == ([*names], vectors)
    # An element is the label at its position, whatever the names are.
    assert encode(tmp_path / "a.jsonl", vectors, ("1", "2", "0"), split="validation")[1] == vectors
    # The length counts, also for vectors of zeros and models without names.
    for rows, known in ((vectors, names[:2]), ([[0, 0, 0]], tuple(f"LABEL_{i}" for i in range(6)))):
        with pytest.raises(InputError, match=rf"vectors of 3 elements, but the model has {len(known)} labels"):
            encode(tmp_path / "a.jsonl", rows, known, split="validation")
    # Vectors of two, and lists of one label, which is a name.
    assert encode(tmp_path / "a.jsonl", [[1, 0], [0, 1]]) == (["LABEL_0", "LABEL_1"], [[1, 0], [0, 1]])
    assert encode(tmp_path / "a.jsonl", [[1], [0]]) == (["0", "1"], [[0, 1], [1, 0]])
    assert encode(tmp_path / "a.jsonl", [[1, 0], [2]]) == (["0", "1", "2"], [[1, 1, 0], [0, 0, 1]])


def test_lists_in_cells_are_read(tmp_path):
    values = [["joy", "love"], ["joy"], [], ["it's", "a, b"], ['"q"']]
    binarizer = MultiLabelBinarizer()
    encoded = binarizer.fit_transform(values).tolist()
    expected = (list(binarizer.classes_), encoded)
    for cells in (list(map(str, values)), list(map(json.dumps, values))):
        assert encode(tmp_path / "a.csv", cells) == expected
    escaped = ['["\\ud83d\\ude00", "b"]', "['\\xe9', 'b']"]
    assert encode(tmp_path / "a.csv", escaped)[0] == ["b", "\xe9", "\U0001f600"]
    # Parentheses and braces may be part of a name.
    names = ["(other)", "{x}", "f(x)", "(5)", "[a", "a]", "Sports(a, b)", "(a, b)", "C(it's)", "Foo[1,2]"]
    assert encode(tmp_path / "a.csv", names) == (sorted(names), [sorted(names).index(name) for name in names])
    assert encode(tmp_path / "a.csv", ["(a),(b)", "(b)"], label_separator=",") == (["(a)", "(b)"], [[1, 1], [0, 1]])


def test_spaces_and_invisible_characters_around_labels_do_not_matter(tmp_path):
    edges = ["pos", " pos", "pos\t", "\xa0pos\u3000", "pos\u200b", "\ufeffpos", "pos\r\n", "\u2060pos\u200e"]
    composed, decomposed = "caf\xe9", "cafe\u0301"
    expected = (["caf\xe9", "pos"], [1] * len(edges) + [0, 0])
    assert encode(tmp_path / "a.csv", [*edges, composed, decomposed]) == expected
    assert encode(tmp_path / "a.jsonl", [*edges, composed, decomposed]) == expected
    # The checkpoint's labels may have another form.
    known = {"checkpoint": (decomposed, " pos"), "split": "validation"}
    assert encode(tmp_path / "a.csv", [*edges[:2], composed], **known)[1] == [1, 1, 0]
    listed = [[edge, composed] for edge in edges] + [[decomposed]]
    assert encode(tmp_path / "a.jsonl", listed) == (expected[0], [[1, 1]] * len(edges) + [[1, 0]])


@pytest.mark.parametrize(
    ("model", "labels", "expected"),
    [
        (["LABEL_0", "LABEL_1"], [1, 0], [1, 0]),
        (["LABEL_1", "LABEL_0"], [1, 0], [0, 1]),  # by number, not by position
        (["Pos", "neg"], ["NEG ", "pos", "POS"], [1, 0, 0]),
        (["a", "A"], ["A", "a"], [1, 0]),  # case matters
        (["joy", "LOVE", "fear"], [["love"], [], ["Fear", "joy"]], [[0, 1, 0], [0, 0, 0], [1, 0, 1]]),
        (["LABEL_0", "LABEL_1"], ClassLabel(names=["neg", "pos"]), [1, 0]),  # the ids of the dataset
        (["pos", "neg"], ClassLabel(names=["neg", "pos"]), [0, 1]),
        (["LABEL_1", "LABEL_0"], ClassLabel(names=["LABEL_0", "LABEL_1"]), [0, 1]),  # names, not vectors
        (["neg", "pos"], ClassLabel(names=["LABEL_0", "LABEL_1"]), "unknown label 'LABEL_1'. Expected one of neg"),
        (["Pos", "pos"], ["pos", "POS"], "row 2: unknown label 'POS'. Expected one of Pos, pos. "),
        (["LABEL_0", "LABEL_1"], [1, 2], "unknown label '2'. Expected one of LABEL_0, LABEL_1."),
        (["LABEL_0"], ["neg", "pos"], "the model predicts numbers, and 'neg' is not a finite number. Choose the"),
    ],
)
def test_the_labels_of_a_checkpoint_that_is_scored(model, labels, expected):
    """Default names are numbers. Case does not matter if it does not distinguish labels."""
    values = [1, 0] if isinstance(labels, ClassLabel) else labels
    rows = Dataset.from_dict({"text": ["a"] * len(values), "label": values})
    rows = rows.cast_column("label", labels) if isinstance(labels, ClassLabel) else rows
    task, config = TextClassification(), SnugBertConfig(id2label=dict(enumerate(model)))
    splits = task.read_splits({"validation": [rows]})
    if isinstance(expected, str):
        with pytest.raises(InputError, match=re.escape(expected)):
            task.choose_labels(splits, config)
        return
    task.choose_labels(splits, config)
    assert splits["validation"].references.tolist() == expected
    assert task.labels == model and config.num_labels == len(model)


def test_a_model_of_another_task_is_not_scored():
    """Without this, its labels would count as the labels of the task, in any order."""
    data = {"validation": [Dataset.from_dict({"sentence": ["a"], "label": [1]})]}
    task = TextClassification(task_name="sst2")
    splits = task.read_splits(data)
    task.choose_labels(splits, SnugBertConfig(id2label={0: "Positive", 1: "negative"}))
    assert splits["validation"].references.tolist() == [0]
    with pytest.raises(InputError, match="The labels of the model are POS, NEG, but SST-2 has negative, positive"):
        task.choose_labels(task.read_splits(data), SnugBertConfig(id2label={0: "POS", 1: "NEG"}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([[1, 0, 1], [1, 0]], r"row 2: the label \['1', '0'\] cannot be read\. Expected a vector of 3 elements, each"),
        ([[0, 1], []], r"row 2: the label \[\] cannot be read\. Expected a vector of 2"),
        ([[0, 0, 2], [0, 1, 0]], r"row 1: the label \['0', '0', '2'\] cannot"),
        ([[0.3, 0.7], [0, 1]], r"row 1: the label \['0.3', '0.7'\] cannot"),
        (['[["joy"]]', "x"], r"row 1: the label \['joy'\] cannot"),
        ([[], []], "all examples have no label"),
        (["yes", "yes"], "all examples have the label 'yes'"),
        *(
            ([cell, "x"], r'row 1: the label .* cannot be read\. Expected a name.*\["joy", "love"\]')
            for cell in ("[joy, love]", "['joy', None]", "[1_000]", "('joy', 'love')", "[" * 5000 + "]" * 5000)
        ),
    ],
)
def test_labels_that_cannot_be_used(values, message, tmp_path):
    with pytest.raises(InputError, match=message):
        encode(tmp_path / "a.jsonl", values)


def test_lists_in_one_file_and_single_labels_in_another():
    data = {
        "train": [Dataset.from_dict({"text": ["a"], "label": [["a", "b"]]})],
        "validation": [Dataset.from_dict({"text": ["a"], "label": [1]})],
    }
    with pytest.raises(InputError, match=r"\(train\) has lists of labels, but .*\(validation\) has single labels"):
        TextClassification().choose_labels(TextClassification().read_splits(data), SnugBertConfig())
