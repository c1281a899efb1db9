"""`--folds`: every prediction is from a model that has not seen the example, and wrong labels come first."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
from glue_examples import LARGER, TOKENIZER, WORDS, arguments, read_predictions, sentences
from tables import write_csv

from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.trainers.finetuning import folds

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = LARGER | {"validation_file": None, "save_steps": 2, "num_train_epochs": 6}
OTHER = {"cheerful": "gloomy", "gloomy": "cheerful"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """240 examples. Every 19th has the wrong label. The last one is a copy of the second one, with another label."""
    folder = tmp_path_factory.mktemp("folds")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    rows = sentences(239, seed=1)
    rows = [row | {"label": OTHER[row["label"]]} if index % 19 == 0 else row for index, row in enumerate(rows)]
    write_csv(folder / "train.csv", [*rows, rows[1] | {"label": OTHER[rows[1]["label"]]}])
    return folder


def find_folds(workshop: Path, output_dir: Path, command: str = "glue", **changes) -> tuple[list[dict], list[dict]]:
    """Returns all rows, and the suspicious ones."""
    run_command(command, arguments(workshop, output_dir, **FILES | {"folds": 4} | changes))
    with (output_dir / folds.SUSPICIOUS).open(encoding="utf-8-sig", newline="") as table:
        return read_predictions(output_dir / folds.PREDICTIONS), list(csv.DictReader(table))


def test_wrong_labels_come_first_and_each_prediction_equals_a_run_without_the_row(planted, tmp_path, capsys):
    rows, suspicious = find_folds(planted, tmp_path / "folds", folds=4)
    with (planted / "train.csv").open(newline="") as table:
        data = list(csv.DictReader(table))
    assert [(row["row"] - 2, row["sentence"], row["label"]) for row in rows] == [
        (index, row["sentence"], row["label"]) for index, row in enumerate(data)
    ]
    wrong = {index + 2 for index in range(0, 239, 19)}
    found = [int(row["row"]) for row in suspicious]
    assert wrong | {3, 241} <= set(found) and len(found) < 2 * len(wrong)
    assert len(wrong & set(found[: len(wrong)])) >= 0.7 * len(wrong)
    least = [float(row["label_probability"]) for row in suspicious]
    assert least == sorted(least)
    copies = {row["row"]: row for row in suspicious if row["copies"] == "1"}
    assert copies["3"]["rows_with_another_label"] == "241" and rows[1]["fold"] == rows[-1]["fold"]
    assert "Out-of-fold predictions differ from the labels of" in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "folds").rglob("checkpoint-*")) == []

    seen, held_out = ([row for row in rows if (row["fold"] == 2) == is_held] for is_held in (False, True))
    for name, part in (("seen", seen), ("held", held_out)):
        write_csv(tmp_path / f"{name}.csv", [{key: row[key] for key in ("sentence", "label")} for row in part])
    files = {"train_file": tmp_path / "seen.csv", "test_file": tmp_path / "held.csv"}
    run_command("glue", arguments(planted, tmp_path / "run", **FILES | files))
    expected = read_predictions(tmp_path / "run/predictions.jsonl")
    assert [row["probabilities"] for row in expected] == [row["probabilities"] for row in held_out]
    assert [row["label_probability"] for row in held_out] == [row["probabilities"][row["label"]] for row in expected]


def test_an_interrupted_command_continues_with_the_next_fold(planted, tmp_path, monkeypatch):
    first = find_folds(planted, tmp_path, num_train_epochs=1)
    trained = []
    make = folds.make_trainer
    monkeypatch.setattr(folds, "make_trainer", lambda *given: trained.append(1) or make(*given))
    (file,) = tmp_path.glob("folds/*/3.json")
    file.unlink()
    assert find_folds(planted, tmp_path, num_train_epochs=1) == first and len(trained) == 1
    run_command("glue", arguments(planted, tmp_path, **FILES, folds=4, dry_run=True))
    find_folds(planted, tmp_path, num_train_epochs=1, learning_rate=1e-4)  # other settings are other folds
    assert len(trained) == 5


def test_the_least_likely_word_of_a_sentence_and_several_labels(tmp_path):
    generator = random.Random(0)
    TOKENIZER.save_pretrained(tmp_path / "tokenizer")
    names, others = WORDS["cheerful"], WORDS["gloomy"]
    lines, planted = [], []
    for number in range(100):
        words = [generator.choice(generator.choice([names, others])) for _ in range(4)]
        tags = ["B-X" if word in names else "O" for word in words]
        if number % 20 == 0:
            planted.append((len(lines) + 1, words[2]))
            tags[2] = "O" if tags[2] == "B-X" else "B-X"
        lines += [f"{word} {tag}" for word, tag in zip(words, tags, strict=True)] + [""]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    settings = {"train_file": tmp_path / "train.txt", "max_seq_length": 16, "num_train_epochs": 6}
    rows, suspicious = find_folds(tmp_path, tmp_path / "ner", "ner", **settings)
    assert len(rows) == 100 and all(len(row["tags"]) == len(row["predicted_tags"]) == 4 for row in rows)
    assert sorted((int(row["row"]), row["word"]) for row in suspicious[:5]) == planted
    several = [{"sentence": row["text"], "label": "|".join(sorted({*row["tags"]}))} for row in rows]
    write_csv(tmp_path / "several.csv", several)
    settings = {"train_file": tmp_path / "several.csv", "label_separator": "|"}
    rows, _ = find_folds(tmp_path, tmp_path / "several", **settings)
    for row in rows:
        likely = [p if label in row["label"] else 1 - p for label, p in row["probabilities"].items()]
        assert row["label_probability"] == pytest.approx(min(likely))
    assert np.std([row["label_probability"] for row in rows]) > 0


def test_what_has_no_labels_to_check_is_refused(planted, tmp_path):
    rows = [{"text": word, "choices": ["b", "c"], "label": 0} for word in WORDS["gloomy"] + WORDS["cheerful"]]
    (tmp_path / "swag.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_csv(tmp_path / "numbers.csv", [row | {"label": i / 3} for i, row in enumerate(sentences(9, seed=0))])
    for command, changes, message in (
        ("glue", {"seeds": 2}, "--folds needs --train_file, without --teacher_name_or_path"),
        ("glue", {"folds": 1}, "--folds 1 must be from 2 to 239, the number of different texts"),
        ("glue", {"folds": 240}, "--folds 240 must be from 2 to 239"),
        ("glue", {"train_file": tmp_path / "numbers.csv"}, "--folds is for snugbert glue with labels"),
        ("swag", {"train_file": tmp_path / "swag.jsonl"}, "--folds is for snugbert glue with labels, and for ner"),
    ):
        with pytest.raises(InputError, match=message):
            find_folds(planted, tmp_path / "out", command, **changes)
