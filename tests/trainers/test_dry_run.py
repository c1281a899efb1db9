"""`--dry_run`: what it prints, that it changes nothing, and how it computes the time."""

import json
import re
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from glue_examples import LARGER, VOCABULARY, arguments, sentences
from pretraining_command import run
from safetensors.torch import load_file
from tables import write_csv

from snugbert import SnugBertTokenizer
from snugbert.data.packed_batches import count_tokens
from snugbert.trainers import dry_run
from snugbert.trainers.finetuning import finetuning_dry_run
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert_cli import main as snugbert_command

pytestmark = pytest.mark.usefixtures("one_thread")


def read_plan(capsys) -> dict[str, str]:
    text = capsys.readouterr().out.rpartition("is unchanged.\n\n")[2]
    return {line[:17].strip(): line[17:] for line in text.splitlines()}


def list_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(file): (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.rglob("*") if file.is_file()}


def test_a_dry_run_of_pretraining_changes_nothing(small_run, tmp_path, capsys, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    small_run = small_run | {"save_steps": 4, "eval_strategy": "steps", "eval_steps": 3, "phases": "24:50%:mlm,40:50%"}
    assert run(small_run, output_dir=tmp_path / "without") == 0
    folder = tmp_path / "with"
    assert run(small_run, output_dir=folder, dry_run="true") == 0
    plan = read_plan(capsys)
    assert not folder.exists()
    assert plan["phase 1"].startswith("4 steps of 16 examples of at most 24 tokens, no sentence pairs, ")
    assert plan["phase 2"].startswith("4 steps of 10 examples of at most 40 tokens, ")
    assert plan["evaluation"] == "3 x 39 examples"
    assert run(small_run, output_dir=folder) == 0
    weights, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("with", "without"))
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)
    history, expected_history = (
        [
            line.get("mlm_loss")
            for line in json.loads((tmp_path / name / "trainer_state.json").read_text())["log_history"]
        ]
        for name in ("with", "without")
    )
    assert history == expected_history

    shutil.rmtree(folder / "checkpoint-8")
    before = list_files(folder)
    capsys.readouterr()
    assert run(small_run, output_dir=folder, dry_run="true") == 2  # as the run itself
    assert "already contains a run" in capsys.readouterr().err
    assert run(small_run, output_dir=folder, dry_run="true", resume_from_checkpoint="true") == 0
    plan = read_plan(capsys)
    left = [plan[name].rpartition(" epochs, ")[2] for name in ("phase 1", "phase 2")]
    assert left == [f"{number} left after {folder / 'checkpoint-4'}" for number in (0, 4)]
    assert run(small_run, output_dir=folder, dry_run="true", resume_from_checkpoint="true", mlm_probability=0.3) == 2
    assert "the training data of " in capsys.readouterr().err
    assert list_files(folder) == before and not any(temporary.iterdir())


def test_a_stopped_dry_run_prints_no_plan(small_run, tmp_path, capsys, caplog, monkeypatch):
    step = PretrainingTrainer.training_step

    def stopped(*args, **kwargs):
        signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    monkeypatch.setattr(PretrainingTrainer, "training_step", stopped)
    assert run(small_run, output_dir=tmp_path / "run", dry_run="true") == 143
    assert "dry run" not in capsys.readouterr().out and not (tmp_path / "run").exists()
    assert "SIGTERM: stopped after step 1 of" in caplog.text and "Wrote" not in caplog.text


def test_a_dry_run_of_fine_tuning_changes_nothing(tmp_path, capsys, monkeypatch):
    """The seconds follow from the tokens: with a clock that tokens drive, the estimate of a sample is exact."""
    SnugBertTokenizer(vocab={word: i for i, word in enumerate(VOCABULARY)}).save_pretrained(tmp_path / "tokenizer")
    for seed, name in enumerate(("train", "dev", "test")):
        write_csv(tmp_path / f"{name}.csv", sentences(333 if seed == 0 else 48, seed))
    clock, taken, features = [0.0], [], []
    timer = SimpleNamespace(perf_counter=lambda: clock[0], time=lambda: clock[0])
    original = FineTuningTrainer.training_step, FineTuningTrainer.prediction_step, finetuning_dry_run.count_tokens

    def training_step(self, model, inputs, *rest):
        taken.append(inputs["input_ids"].numel())
        clock[0] += 0.0625 * taken[-1]
        return original[0](self, model, inputs, *rest)

    def prediction_step(self, model, inputs, *rest, **more):
        clock[0] += 0.015625 * inputs["input_ids"].numel()
        return original[1](self, model, inputs, *rest, **more)

    def count(dataset) -> np.ndarray:
        features.append(dataset)
        return original[2](dataset)

    monkeypatch.setattr(FineTuningTrainer, "training_step", training_step)
    monkeypatch.setattr(FineTuningTrainer, "prediction_step", prediction_step)
    monkeypatch.setattr(finetuning_dry_run, "count_tokens", count)
    monkeypatch.setattr(finetuning_dry_run, "time", timer)
    monkeypatch.setattr(finetuning_dry_run, "seconds_since_start", lambda: 7.0)
    monkeypatch.setattr(dry_run, "time", timer)
    more = {"test_file": tmp_path / "test.csv", "num_train_epochs": 2, "gradient_accumulation_steps": 2, **LARGER}
    command = arguments(tmp_path, tmp_path / "run", **more, per_device_train_batch_size=8)
    assert snugbert_command(["glue", *command, "--dry_run"]) == 0
    plan = read_plan(capsys)
    assert not (tmp_path / "run").exists()
    tokens = {number: count_tokens(each).sum() for each in features for number in [len(each)]}
    training = 0.0625 * 2 * tokens[333]
    validation, test = (count_tokens(each).sum() for each in features[1:3])
    evaluation = 0.015625 * (2 * validation + test)
    numbers = [60 * int(minutes or 0) + int(s) for minutes, s in re.findall(r"(?:(\d+) min )?(\d+) s\b", plan["time"])]
    assert numbers == [round(7 + training + evaluation), 7, round(training), round(evaluation)]
    assert plan["training"].startswith("42 steps of 16 inputs, 2 epochs")
    assert plan["training data"].startswith(f"333 inputs of at most 15 tokens, {tokens[333]:,} ")
    assert plan["labels"] == "cheerful, gloomy" and plan["evaluation"] == "2 x validation, 1 x test"
    lengths = count_tokens(features[0])
    assert taken[0] + taken[1] > 16 * lengths.mean() + 2 * lengths.std()  # the largest step first

    seeds = ["glue", *command, "--dry_run", "--seeds", "3", "--early_stopping_patience", "1"]
    assert snugbert_command(seeds) == 0
    assert read_plan(capsys)["runs"].startswith("3 runs, about ")
    assert snugbert_command([*seeds, "--output_dir", str(tmp_path / "train.csv")]) == 2  # a file
    assert "--output_dir: cannot write to " in capsys.readouterr().err
    # The budget of time limits a sweep. The order of its runs does not change the estimate.
    times, search = [], tmp_path / "search.yaml"
    free = {**more, "num_train_epochs": None, "gradient_accumulation_steps": None}
    command = arguments(tmp_path, tmp_path / "run", **free, per_device_train_batch_size=8)
    for content, number in (
        ("method: random, hours: 1, settings: {num_train_epochs: [2]}", "as many as fit (hours: 1)"),
        (
            "method: random, runs: 90, hours: 0.25, settings: {num_train_epochs: [2, 3]}",
            "at most 2 runs (hours: 0.25)",
        ),
        ("settings: {max_steps: 400, gradient_accumulation_steps: [1, 9]}", "2 runs"),
        ("settings: {max_steps: 400, gradient_accumulation_steps: [9, 1]}", "2 runs"),
    ):
        search.write_text(f"{{{content}}}")
        assert snugbert_command(["glue", *command, "--dry_run", "--eval_strategy", "no", "--sweep", str(search)]) == 0
        runs, _, time = read_plan(capsys)["runs"].partition(", about ")
        assert runs == number
        ((hours, minutes),) = re.findall(r"(?:(\d+) h )?(\d+) min", time)
        times.append(60 * int(hours or 0) + int(minutes))
    assert times[:2] == [60, 15] and times[2] == pytest.approx(times[3], rel=0.02)
    assert not (tmp_path / "run").exists()
