"""Multiple choice: losses next to stock BERT, scores, bad rows, and `snugbert swag` from the data to an export."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch
from datasets import ClassLabel, Dataset, List, Value
from datasets import Features as DatasetFeatures
from glue_examples import FILLER, LARGER, TOKENIZER, WORDS, arguments, read_predictions
from parity import ours_and_stock
from scipy.special import softmax
from tables import write_csv
from transformers import DataCollatorForMultipleChoice

from snugbert import SnugBertDataCollatorWithPacking
from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.export.export import export_model
from snugbert.prediction.predictor import Predictor
from snugbert.tasks.metrics import TaskMetric
from snugbert.tasks.multiple_choice import MultipleChoice

pytestmark = pytest.mark.usefixtures("one_thread")


def swag(number: int, seed: int, labeled: bool = True) -> list[dict[str, object]]:
    """Rows with SWAG's columns. The correct ending has a cheerful word, the others have a gloomy one."""
    generator = random.Random(seed)

    def words(least: int, mood: str = "") -> str:
        chosen = generator.choices(FILLER, k=generator.randint(least, 6))
        return " ".join([*chosen, generator.choice(WORDS[mood])] if mood else chosen)

    rows = []
    for index in range(number):
        label = generator.randrange(4)
        endings = [words(0, "cheerful" if position == label else "gloomy") for position in range(4)]
        row = {"": index, "video-id": f"anetv_{index}", "fold-ind": index, "startphrase": "unused"}
        row |= {"sent1": words(2), "sent2": words(1), "gold-source": "gold"}
        row |= {f"ending{position}": ending for position, ending in enumerate(endings)}
        rows.append(row | {"label": label} if labeled else row)
    return rows


def as_lists(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The same examples as texts with lists of choices."""
    return [
        {"text": row["sent1"], "choices": [f"{row['sent2']} {row[f'ending{i}']}" for i in range(4)]}
        | {name: row[name] for name in ("label",) if name in row}
        for row in rows
    ]


def write_lines(file: Path, rows: list[dict[str, object]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    """A folder with a tokenizer and data: 200 examples to train on, 60 to score, 20 to predict."""
    folder = tmp_path_factory.mktemp("swag")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    write_csv(folder / "train.csv", swag(200, seed=1))
    write_csv(folder / "dev.csv", swag(60, seed=2))
    write_lines(folder / "test.jsonl", as_lists(swag(20, seed=3, labeled=False)))
    return folder


def run_swag(workshop: Path, output_dir: Path, **changes: object) -> float:
    """Runs `snugbert swag`, by default to train a small model from random weights. Returns the accuracy."""
    run_command("swag", arguments(workshop, output_dir, **LARGER | {"num_train_epochs": 3} | changes))
    return json.loads((output_dir / "results.json").read_text())["metrics"]["eval"]["accuracy"]


@pytest.fixture(scope="module")
def trained(workshop) -> tuple[Path, float]:
    """The output folder of a complete run, and its accuracy."""
    files = {"test_file": workshop / "test.jsonl", "load_best_model_at_end": True}
    flags = {"do_train": True, "do_eval": True, "do_predict": True}
    return workshop / "run", run_swag(workshop, workshop / "run", **files, **flags)


def test_loss_and_logits_equal_stock_bert():
    """Packed and padded features, next to run_swag's tokens in stock BERT. Long pairs are truncated."""
    ours, stock = ours_and_stock("ForMultipleChoice")
    ours, stock = ours.eval(), stock.eval()
    rows = swag(12, seed=5)
    task = MultipleChoice()
    task.use_tokenizer(TOKENIZER, 14)
    split = task.read_splits({"train": [Dataset.from_list(rows)]})["train"]
    assert split.others == []  # other columns of training examples would only use memory
    features = task.encode(split).inputs
    first = [row["sent1"] for row in rows for _ in range(4)]
    second = [f"{row['sent2']} {row[f'ending{i}']}" for row in rows for i in range(4)]
    encoded = TOKENIZER(first, second, truncation=True, max_length=14, padding=True, return_tensors="pt")
    padded = {name: values.view(12, 4, -1) for name, values in encoded.items()}
    with torch.no_grad():
        expected = stock(**padded, labels=torch.tensor([row["label"] for row in rows]))
        found = ours(**SnugBertDataCollatorWithPacking()(list(features)))
        # The collator of --pad_to_max_length, with and without labels.
        pad = task.padding_collator(TOKENIZER, padding="max_length", max_length=40)
        also = ours(**pad(list(features)))
        unlabeled = pad(list(features.remove_columns("label")))
    torch.testing.assert_close(found.logits, expected.logits)
    for each in (found, also):
        torch.testing.assert_close(each.loss, expected.loss)
    theirs = DataCollatorForMultipleChoice(TOKENIZER, padding="max_length", max_length=40)(list(features))
    assert theirs.keys() - unlabeled.keys() == {"labels"}
    assert all(torch.equal(theirs[name], values) for name, values in unlabeled.items())

    answers = task.decode(expected.logits.numpy(), split, task.encode(split))
    assert answers.values.tolist() == expected.logits.argmax(-1).tolist()
    np.testing.assert_allclose(answers.probabilities, softmax(expected.logits.numpy(), axis=-1), atol=1e-6)


def test_accuracy_equals_scikit_learn():
    generator = np.random.default_rng(0)
    references, predictions = generator.integers(0, 4, 300), generator.integers(0, 4, 300)
    expected = sklearn.metrics.accuracy_score(references, predictions)
    task = MultipleChoice()
    split, answers = task.pair(references.tolist(), predictions.tolist())
    rows = task.measure(split, answers)
    assert TaskMetric(task).compute(predictions=predictions, references=references) == {"accuracy": expected}
    counts = generator.integers(0, 3, 300)
    weighted = sklearn.metrics.accuracy_score(references, predictions, sample_weight=counts)
    assert task.score(split, rows, counts)["accuracy"] == pytest.approx(weighted, abs=1e-12)
    most = np.bincount(references).argmax()
    assert task.baseline(split, None) == (f"always choice {most}", {"accuracy": (references == most).mean()})


def test_files_and_datasets_give_the_same_examples(tmp_path):
    rows = swag(6, seed=7)
    write_csv(tmp_path / "train.csv", rows)
    write_lines(tmp_path / "train.jsonl", as_lists(rows))
    columns = {name: [row[name] for row in rows] for name in rows[0] if name}
    features = DatasetFeatures({name: Value("string") for name in columns} | {"fold-ind": Value("int64")})
    features["label"] = ClassLabel(names=["0", "1", "2", "3"])  # as on the Hub
    lists = DatasetFeatures({"text": Value("string"), "choices": List(Value("string")), "label": Value("int8")})
    sources = [tmp_path / "train.csv", tmp_path / "train.jsonl"]
    sources += [Dataset.from_dict(columns, features), Dataset.from_list(as_lists(rows), lists)]
    expected = [(row["text"], row["choices"]) for row in as_lists(rows)]
    for source in sources:
        split = MultipleChoice(max_train_samples=5).read_splits({"train": [source]})["train"]
        assert split.examples == expected[:5] and split.labeled and split.num_examples == 5
        assert split.references.tolist() == [row["label"] for row in rows[:5]]


ROW = {"text": "a", "choices": ["b", "c"], "label": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], ": no examples."),
        ([ROW | {"choices": ["b"], "label": 0}], ", row 1: number of choices: 1. Expected at least 2"),
        ([ROW, ROW | {"choices": ["b", "c", "d"]}], ", row 2: number of choices: 3. "),
        ([ROW, ROW | {"choices": []}], ", row 2: no choices in column 'choices'."),
        ([ROW, ROW | {"choices": "b"}], ", row 2: no list of texts in column 'choices'. Fix or remove the row."),
        ([ROW, ROW | {"text": None}], ", row 2: no text in column 'text'. Fix or remove the row."),
        ([ROW, {"text": "a"}], ", row 2: expected the columns text and choices, or sent1, sent2, ending0, "),
        ([ROW, ROW | {"label": 2}], ", row 2: the label is '2'. Choices count from 0 to 1."),
    ],
)
def test_bad_rows_are_named(rows, message, tmp_path):
    file = write_lines(tmp_path / "train.jsonl", rows)
    with pytest.raises(InputError, match=re.escape(f"{file}{message}")):
        MultipleChoice().read_splits({"train": [file]})


def test_which_rows_have_no_label():
    rows = [ROW | {"label": label} for label in ("1", "None", "-1", "nan", "0", " ")]
    data = Dataset.from_list(rows)
    split = MultipleChoice(on_missing_label="skip").read_splits({"train": [data]})["train"]
    assert split.references.tolist() == [1, 0]
    test = MultipleChoice().read_splits({"test": [data]})["test"]
    assert test.num_examples == 6 and not test.labeled


def test_a_run_learns_and_writes_everything(trained):
    run, accuracy = trained
    assert accuracy > 0.95  # chance: 0.25
    rows, scored = as_lists(swag(60, seed=2)), read_predictions(run / "eval_predictions.jsonl")
    assert [{name: row[name] for name in ROW} for row in scored] == rows
    assert [row["video-id"] for row in scored] == [f"anetv_{index}" for index in range(60)]
    assert np.mean([row["label"] == row["predicted_choice"] for row in scored]) == accuracy
    predicted = read_predictions(run / "predictions.jsonl")
    assert all(sum(row["probabilities"]) == pytest.approx(1) and "label" not in row for row in predicted)
    chosen = [row["choices"][row["predicted_choice"]].split()[-1] in WORDS["cheerful"] for row in predicted]
    assert np.mean(chosen) > 0.9


@pytest.mark.slow
def test_the_export_predict_and_the_run_agree(trained, workshop, tmp_path):
    """`snugbert predict` reads both forms of examples, whichever the model was trained on."""
    run, accuracy = trained
    assert export_model(run, tmp_path / "stock", "bert").difference < 1e-4
    for model in (run, tmp_path / "stock"):
        assert Predictor(model).evaluate(workshop / "dev.csv") == {"accuracy": accuracy}
    rows = swag(20, seed=3, labeled=False)
    files = [write_csv(tmp_path / "rows.csv", rows), write_lines(tmp_path / "rows.jsonl", as_lists(rows))]
    expected = read_predictions(run / "predictions.jsonl")
    for file in files:
        output = tmp_path / f"{file.name}.out.jsonl"
        flags = ["--model_name_or_path", str(run), "--input_file", str(file), "--use_cpu"]
        run_command("predict", [*flags, "--output_file", str(output)])
        for row, other in zip(read_predictions(output), expected, strict=True):
            assert row["predicted_choice"] == other["predicted_choice"]
            assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


@pytest.mark.slow
def test_distillation(trained, workshop, tmp_path):
    unlabeled = write_lines(tmp_path / "more.jsonl", as_lists(swag(100, seed=9, labeled=False)))
    student = {"teacher_name_or_path": trained[0], "unlabeled_file": unlabeled, "distillation_weight": 1}
    assert run_swag(workshop, tmp_path / "student", **student, cache_dir=tmp_path / "cache") > 0.9
