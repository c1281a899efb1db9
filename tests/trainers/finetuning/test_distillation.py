"""Distillation in the commands: the card, the cache, resuming, unlabeled text, errors."""

import json
import shutil
from pathlib import Path

import forked
import pytest
import torch
from glue_examples import LARGER, arguments, checkpoint_of, sentences
from safetensors.torch import load_file, save_file
from tables import write_csv

from snugbert.cli.main import run_command
from snugbert.errors import InputError
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
THREE_LAYERS = LARGER["config_overrides"].replace("num_hidden_layers=1", "num_hidden_layers=3")


@pytest.fixture(scope="module")
def folder(workshop) -> Path:
    """The data, and a teacher of three layers."""
    settings = {"config_overrides": THREE_LAYERS, "num_train_epochs": 1, "save_strategy": "no"}
    run_command("glue", arguments(workshop, workshop / "teacher", **settings))
    return workshop


def student(folder: Path, output_dir: Path, **changes: object) -> list[str]:
    """A command line that distills the teacher into a student of two of its layers."""
    settings = {**checkpoint_of(None), "teacher_name_or_path": folder / "teacher", "num_student_layers": 2}
    settings |= {"num_train_epochs": 1, "cache_dir": folder / "cache", "save_strategy": "no"}
    return arguments(folder, output_dir, **settings | changes)


def test_the_card_names_teacher_and_data_and_labels_of_unlabeled_text_are_not_read(folder, tmp_path):
    rows = [json.dumps({"sentence": row["sentence"], "label": ["x", "y"]}) for row in sentences(20, seed=5)]
    (tmp_path / "unlabeled.jsonl").write_text("\n".join(rows))
    run_command("glue", student(folder, tmp_path / "run", unlabeled_file=tmp_path / "unlabeled.jsonl", max_steps=2))
    card = (tmp_path / "run/README.md").read_text()
    assert "It was distilled from teacher." in card and "| teacher | teacher |" in card
    assert "train.csv (160 examples) and unlabeled.jsonl (20 examples without labels)" in card
    assert "starting from 2 layers of teacher." in card and "| student layers | first |" in card
    assert read_results(tmp_path / "run")["training"]["train_samples"] == 180


def read_results(run: Path) -> dict:
    return json.loads((run / "results.json").read_text())


def change_weights(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    save_file({name: weight * 1.01 for name, weight in weights.items()}, model / "model.safetensors", {"format": "pt"})


def test_a_student_starts_from_layers_of_a_checkpoint(folder, tmp_path):
    """From layers of the teacher or of another checkpoint. The second run has no labels but the teacher's."""
    settings = {"learning_rate": 0.0, "max_steps": 1, "num_student_layers": 1, "student_layers": "last"}
    other = shutil.copytree(folder / "teacher", tmp_path / "other/teacher")
    change_weights(other)
    unlabeled = {"train_file": None, "unlabeled_file": folder / "train.csv"}
    for start, changes in ((folder / "teacher", {}), (other, {"model_name_or_path": other, **unlabeled})):
        output_dir = tmp_path / f"from-{start.parent.name}"
        run_command("glue", student(folder, output_dir, **settings, **changes))
        expected = {
            name.replace(".layer.2.", ".layer.0."): weight
            for name, weight in load_file(start / "model.safetensors").items()
            if ".layer.0." not in name and ".layer.1." not in name
        }
        weights = load_file(output_dir / "model.safetensors")
        assert weights.keys() == expected.keys()
        for name in weights:
            assert torch.equal(weights[name], expected[name]), name


def test_two_processes_equal_one(folder, tmp_path):
    """Also in a sweep, where only the first process writes the results. It does not continue with another teacher."""
    (tmp_path / "search.yaml").write_text("settings: {distillation_weight: [0.1, 0.9]}")
    settings = {"sweep": tmp_path / "search.yaml", "learning_rate": 1e-3, "max_steps": 4}
    command = student(folder, tmp_path / "one", cache_dir=tmp_path / "cache-1", **settings)
    run_command("glue", command)
    runs = [read_results(run) for run in (tmp_path / "one/runs").iterdir()]
    assert sorted(run["settings"]["distillation_weight"] for run in runs) == [0.1, 0.9]
    other = shutil.copytree(folder / "teacher", tmp_path / "teacher")
    change_weights(other)
    with pytest.raises(InputError, match="the teacher"):
        run_command("glue", [*command, "--teacher_name_or_path", str(other)])
    changes = {"per_device_train_batch_size": 8, "cache_dir": tmp_path / "cache-2"}
    command = student(folder, tmp_path / "two", **settings | changes)
    process = forked.run(run_command, "glue", command, processes=2)
    assert process.returncode == 0, process.stderr
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name in one:
        if not name.endswith("key.bias"):  # its gradient is 0 up to rounding
            torch.testing.assert_close(two[name], one[name], atol=1e-4, rtol=0, msg=name)


def test_logits_are_computed_once(folder, tmp_path, monkeypatch):
    """For 160 training examples. Training scores the student on the validation examples."""
    predicted, predict = [], FineTuningTrainer.predict

    def count(self, dataset, **kwargs):
        predicted.append(len(dataset))
        return predict(self, dataset, **kwargs)

    def run(name: str, **changes: object) -> list[int]:
        predicted.clear()
        settings = {"cache_dir": tmp_path / "cache", "max_steps": 1}
        run_command("glue", student(folder, tmp_path / name, **settings | changes))
        return predicted

    monkeypatch.setattr(FineTuningTrainer, "predict", count)
    assert run("first") == [160]
    # A folder with another name and the same weights is the same teacher.
    copy = shutil.copytree(folder / "teacher", tmp_path / "copy")
    assert run("copied", teacher_name_or_path=copy, reinit_layers=1) == []
    change_weights(copy)
    assert run("other-teacher", teacher_name_or_path=copy) == [160]
    write_csv(tmp_path / "other.csv", [*sentences(159, seed=1), *sentences(1, seed=9)])
    assert run("other-text", train_file=tmp_path / "other.csv") == [160]


def test_a_killed_run_ends_with_identical_bits(folder, tmp_path):
    """It starts again from the last checkpoint."""
    settings = {"save_strategy": "steps", "save_steps": 4, "max_steps": 6}
    run_command("glue", student(folder, tmp_path / "straight", **settings))
    shutil.copytree(tmp_path / "straight/checkpoint-4", tmp_path / "killed/checkpoint-4")
    settings["resume_from_checkpoint"] = "true"
    other = shutil.copytree(folder / "teacher", tmp_path / "other/teacher")
    change_weights(other)
    for changes, message in (
        ({"distillation_temperature": 3.0}, "--distillation_temperature"),
        ({"student_layers": "spread"}, "--student_layers"),
        ({"teacher_name_or_path": other}, "the teacher"),
    ):
        with pytest.raises(InputError, match=message):
            run_command("glue", student(folder, tmp_path / "killed", **settings | changes))
    run_command("glue", student(folder, tmp_path / "killed", **settings))
    straight, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "killed"))
    assert all(torch.equal(straight[name], killed[name]) for name in straight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_student_layers": None}, "--model_name_or_path is missing"),
        ({"num_student_layers": 4}, "--num_student_layers 4: expected 1 to 3"),
        ({"teacher_name_or_path": "./none"}, "--teacher_name_or_path: the folder ./none does not exist"),
        ({"distillation_weight": 1.5}, "--distillation_weight 1.5 must be at least 0 and at most 1"),
        ({"class_weights": "balanced"}, "cannot be combined with --class_weights"),
        ({"do_eval": True}, "--teacher_name_or_path needs training examples.* also pass --do_train"),
        ({"train_file": "sad.csv", "validation_file": None}, "The data contain cheerful, sad"),
        ({"teacher_name_or_path": None, "unlabeled_file": "sad.csv"}, "--unlabeled_file needs .*--teacher_name"),
        ({"teacher_name_or_path": None, "distillation_weight": 1.0}, "--distillation_weight needs .*--teacher_name"),
    ],
)
def test_errors(changes, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(Path("sad.csv"), [{**row, "label": row["label"].replace("gloomy", "sad")} for row in sentences(9, 1)])
    if "teacher_name_or_path" in changes and changes["teacher_name_or_path"] is None:
        changes = {"num_student_layers": None, "config_name": "tiny", "tokenizer_name": folder / "tokenizer"} | changes
    with pytest.raises(InputError, match=message):
        run_command("glue", student(folder, tmp_path / "run", **changes))
