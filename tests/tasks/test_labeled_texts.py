"""Reading GLUE's files and your own in every format, and files that cannot be read."""

import json
from dataclasses import replace

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from glue_examples import TOKENIZER, load_splits
from tables import write_csv

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.glue import TASKS
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.labeled_texts import find_text_columns
from snugbert.tasks.labels import choose_labels, encode_labels
from snugbert.tasks.task_arguments import GlueDataArguments

# Sizes of train, validation and test, how many validation examples have label 1 (from the datasets' papers), and the
# label and the beginning of the last text of the first validation example.
GLUE_FOLDERS = {
    "sst2": (67349, 872, 1821, 444, "positive", "it 's a charming and often affecting journey . "),
    "cola": (8551, 1043, 1063, 721, "acceptable", "The sailors rode the breeze clear of the rocks."),
    "mrpc": (3668, 408, 1725, 279, "equivalent", '" The foodservice pie business does not fit'),
    "rte": (2490, 277, 3000, 131, "not_entailment", "Christopher Reeve had an accident."),
    "stsb": (5749, 1500, 1379, None, "5.000", "A man wearing a hard hat is dancing."),
    "wnli": (635, 71, 146, 31, "not_entailment", "The hair has to be cleaned."),
}


def encode(splits) -> tuple[list[str], Dataset]:
    """Returns the labels of the training examples, and their features."""
    task = TextClassification()
    task.choose_labels(splits, SnugBertConfig())
    task.use_tokenizer(TOKENIZER, 128)
    return task.labels, task.encode(splits["train"]).inputs


@pytest.mark.parametrize("task", GLUE_FOLDERS)
def test_glue_folders_are_read(task, data_dir):
    *sizes, ones, label, text = GLUE_FOLDERS[task]
    parts = ("train", "validation", "test")
    folder = data_dir / "glue"
    splits = load_splits(GlueDataArguments(task_name=task.upper(), data_dir=str(folder)), parts)
    assert [splits[part].num_examples for part in parts] == sizes
    assert set(splits["test"].labels) == {None}
    validation = splits["validation"]
    assert len(validation.texts) == len(TASKS[task].text_columns)
    assert validation.texts[-1][0].startswith(text) and validation.labels[0] == label
    assert validation.rows[0] == (1 if task == "cola" else 2)  # CoLA's files have no header
    labels = choose_labels(TASKS[task], splits, checkpoint_labels=["LABEL_0", "LABEL_1"])
    ids = encode_labels(validation, labels)
    if ones is None:
        assert labels is None and ids[:2] == [5.0, 4.75] and min(ids) == 0.0 and max(ids) == 5.0
    else:
        assert sum(ids) == ones
    # The task's folder can be given instead of its parent.
    own = load_splits(GlueDataArguments(task_name=task, data_dir=str(folder / TASKS[task].folder)), ("validation",))
    assert replace(own["validation"], source=validation.source) == validation


@pytest.mark.parametrize(
    ("task", "file", "rows"),
    [("mnli", "MNLI/dev_subset.tsv", 1000), ("qqp", "QQP/dev_subset.tsv", 1000), ("qnli", "QNLI/dev.tsv", 5463)],
)
def test_files_given_by_name(task, file, rows, data_dir):
    arguments = GlueDataArguments(task_name=task, validation_file=str(data_dir / "glue" / file))
    split = load_splits(arguments, ("validation",))["validation"]
    assert len(encode_labels(split, list(TASKS[task].labels) or None)) == rows


def test_mnli_on_the_hub(monkeypatch):
    """MNLI has two validation and two test splits and the diagnostic split. A label of -1 means not labeled."""
    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])

    def rows(*labels: int) -> Dataset:
        texts = [{"premise": "a", "hypothesis": "b", "label": label, "idx": 100 + i} for i, label in enumerate(labels)]
        return Dataset.from_list(texts).cast_column("label", classes)

    validation = {name: rows(1, 1) for name in ("validation_matched", "validation_mismatched")}
    test = {name: rows(-1, -1) for name in ("test_matched", "test_mismatched")}
    hub = {"mnli": {"train": rows(0), **validation, **test}, "ax": {"test": rows(-1, -1, -1)}}
    monkeypatch.setattr("datasets.load_dataset", lambda name, config_name, **_: hub[config_name])
    splits = load_splits(GlueDataArguments(task_name="MNLI"), ("train", "validation", "test"))
    sizes = {"validation": 2, "validation_mismatched": 2, "test": 2, "test_mismatched": 2, "test_diagnostic": 3}
    assert {name: split.num_examples for name, split in splits.items()} == {"train": 1, **sizes}
    assert splits["validation_mismatched"].labels == ["neutral", "neutral"]
    assert splits["test_diagnostic"].labels == [None] * 3
    assert splits["test_diagnostic"].indices == [100, 101, 102]


def test_files_and_datasets_give_the_same_features(tmp_path):
    """Texts that pandas would read as missing values are texts."""
    rows = [
        {"question": 'the "old" film, a story', "answer": "None", "label": "yes"},
        {"question": "was it long ?", "answer": "NA \u2028 \u00e9", "label": "no"},
        {"question": "", "answer": "1984", "label": "yes"},
    ]
    write_csv(tmp_path / "a.csv", rows)
    tsv = "\n".join("\t".join(line) for line in [rows[0], *(row.values() for row in rows)])
    (tmp_path / "a.tsv").write_text("\ufeff" + tsv, encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    text, classes = Value("string"), ClassLabel(names=["no", "yes"])
    (tmp_path / "folder").mkdir()
    dataset = Dataset.from_list(rows, Features({"question": text, "answer": text, "label": classes}))
    dataset.to_parquet(tmp_path / "folder" / "train.parquet")

    expected = TOKENIZER([row["question"] for row in rows], [row["answer"] for row in rows])
    sources = [{"train_file": str(tmp_path / name)} for name in ("a.csv", "a.tsv", "a.jsonl")]
    for source in [*sources, {"dataset_name": str(tmp_path / "folder")}]:
        splits = load_splits(GlueDataArguments(**source), ("train",), cache_dir=str(tmp_path / "cache"))
        labels, features = encode(splits)
        assert labels == ["no", "yes"] and features["label"][:] == [1, 0, 1]
        assert features["input_ids"][:] == expected["input_ids"]
        assert features["token_type_ids"][:] == expected["token_type_ids"]


def test_every_form_of_several_labels_gives_the_same_features(tmp_path):
    rows = [("the film", ["b", "a"]), ("a plot", []), ("the scene", ["c"])]
    csv = write_csv(tmp_path / "a.csv", [{"text": text, "topics": " | ".join(labels)} for text, labels in rows])
    listed = [{"text": text, "topics": labels} for text, labels in rows]
    (tmp_path / "a.json").write_text(json.dumps(listed))
    classes = Dataset.from_list(listed).cast_column("topics", List(ClassLabel(names=["a", "b", "c"])))
    for data, separator in ((csv, "|"), (tmp_path / "a.json", None), (classes, None)):
        task = TextClassification(label_column_name="topics", label_separator=separator)
        labels, features = encode(task.read_splits({"train": [data]}))
        assert labels == ["a", "b", "c"]
        assert features["label"][:] == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
        assert features["input_ids"][:] == TOKENIZER([text for text, _ in rows])["input_ids"]


NAMES = ["Anna Schmidt", "Ben Maier", "Cem Huber", "Dora Adams"]
TEXTS = ["the parcel never came", "5 days late, 2 calls, and no refund", "thank you", "who answers my calls"]
SHORT = ["late parcel", "refund", "thanks", "no answer"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"number": ["1", "-2.5", "1e3", "4"], "ticketId": NAMES, "open": [True] * 4, "nachricht": SHORT},
            "nachricht",
        ),
        ({"ticket_id": NAMES, "created": ["1 May", "2 May"] * 2, "message": TEXTS}, "message"),
        ({"age": [31, "", 47.5, None], "old": [""] * 4, "a": ["2012", *TEXTS[1:]]}, "a"),
        ({"Title": TEXTS, "Text": SHORT}, "Text"),
        ({"qid1": list("1234"), "question1": SHORT, "question2": TEXTS}, "question1 question2"),
        ({"sentence1": SHORT, "sentence2": TEXTS, "sentence1_parse": TEXTS}, "sentence1 sentence2"),
        ({"text": TEXTS, "left": SHORT, "right": SHORT}, "left right"),  # the checkpoint's columns
    ],
)
def test_text_columns_are_chosen(columns, expected):
    rows = [dict(zip(columns, cells, strict=True)) | {"label": "a"} for cells in zip(*columns.values(), strict=True)]
    assert find_text_columns(rows, "label", "a.csv", ("left", "right")) == tuple(expected.split())


LABELED = Dataset.from_dict({"text": TEXTS, "label": ["a", None, "b", " "]})


def test_rows_without_labels_are_counted_or_left_out(caplog):
    problem = "2 of 4 rows have no label in column 'label': 2, 4."
    with pytest.raises(InputError, match=rf"\(train\): {problem} Add labels, or set --on_missing_label skip"):
        TextClassification().read_splits({"train": [LABELED]})
    for name in ("train", "validation"):
        caplog.clear()
        split = TextClassification(on_missing_label="skip").read_splits({name: [LABELED]})[name]
        assert (split.texts, split.labels, split.rows) == ([TEXTS[::2]], ["a", "b"], [1, 3])
        assert f"({name}): {problem} They are left out." in caplog.text
    caplog.clear()
    split = TextClassification().read_splits({"test": [LABELED]})["test"]
    assert split.texts == [TEXTS] and not split.labeled
    assert f"{problem} The rows are predicted, but not scored." in caplog.text
    with pytest.raises(InputError, match=r"4 of 4 rows have no label in column 'label': 1, 2, 3, 4\. Add labels\.$"):
        unlabeled = LABELED.remove_columns("label")
        TextClassification(on_missing_label="skip").read_splits({"train": [unlabeled]})


@pytest.mark.parametrize(
    ("known", "model", "value", "labeled"),
    [
        *((known, ["x", "y"], value, False) for known in (["a", "b"], [0.5, 2.5]) for value in (-1, "-1")),
        *((known, ["x", "y"], -1, True) for known in ([-1, 1], [-1.0, 0.5])),
        *((None, ["neg", "pos"], -1, False), (None, ["-1", "1"], -1, True)),  # without training, the model decides
    ],
)
def test_labels_of_minus_one_are_hidden_unless_training_has_them(known, model, value, labeled):
    train = {} if known is None else {"train": [Dataset.from_dict({"text": TEXTS[:2], "label": known})]}
    hidden = Dataset.from_dict({"text": TEXTS, "label": [value] * 4})
    task = TextClassification()
    splits = task.read_splits({**train, "test": [hidden]})
    task.choose_labels(splits, SnugBertConfig(id2label=dict(enumerate(model))))
    assert splits["test"].labeled == (splits["test"].references is not None) == labeled
    if train and not labeled:
        splits = task.read_splits({**train, "validation": [hidden]})
        with pytest.raises(InputError, match=r"\(validation\): every label is -1\. Add labels, or pass .* --test_"):
            task.choose_labels(splits, SnugBertConfig())


def test_empty_texts_are_kept_and_counted(tmp_path, caplog):
    texts = ["a", "", " \t", None, float("nan"), "\u3000", "", "0"]
    rows = [{"title": "x", "body": text, "label": i} for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    split = load_splits(GlueDataArguments(train_file=str(tmp_path / "a.jsonl")), ("train",))["train"]
    assert split.texts[0] == ["a", "", " \t", "", "", "\u3000", "", "0"]
    warning = next(record.getMessage() for record in caplog.records if "empty text" in record.getMessage())
    assert warning.endswith("a.jsonl: empty text in 6 rows: 2, 3, 4, 5, 6 and more. All rows are kept.")


LABELED_ROW = '{"sentence": "a", "label": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", r"a\.json: no examples"),
        ("a.jsonl", LABELED_ROW + '{"text": "b", "label": 1}', r"row 2: no text in column 'sent"),
        ("a.jsonl", LABELED_ROW + '{"sentence": "b", "label": [0]}', r"row 2: single labels and lists of labels are"),
        ("a.jsonl", '{"sentence": "a", "label": {"b": 1}}', r"row 1: the label \{'b': 1\} cannot be read"),
        ("a.jsonl", '{"sentence": ["a"], "label": 1}', r"No column has text\. Columns: 'sentence'"),
        ("a.csv", "title,story,label\na,b,yes\n", r"Several columns have text\. Columns: 'title'"),
        ("a.csv", "idx,label\n1,yes\n", r"Columns: 'idx', 'label'\. Set --text_column_names"),
        ("a.csv", "text,label\xa0\na,1\n", r"no column 'label'\. Columns: 'text', 'label\\xa0'\. Set"),
    ],
)
def test_bad_files(name, content, message, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_splits(GlueDataArguments(train_file=str(tmp_path / name)), None)
