"""Sweeps: the grid, the best run, suggested settings, interrupted sweeps."""

import itertools
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fake_hub import intercept_pushes
from finetuning_examples import HEADS, arguments, examples, make_tokenizer, new_trainer, prepare_counting
from forked import run as run_forked
from huggingface_hub import ModelCard

import snugbert
from snugbert.errors import InputError
from snugbert.trainers.finetuning import single_run, sweep
from snugbert.trainers.finetuning.finetuning_trainer import DivergedError, FineTuningTrainer
from snugbert.trainers.finetuning.run_records import prepare_folder
from snugbert.trainers.finetuning.single_run import fine_tune
from snugbert.trainers.finetuning.sweep import Objective, StopBadRuns, Suggestions, SweepRun, choose_setting

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_the_grid_of_the_paper_and_the_length_of_a_stable_sweep(tmp_path):
    """Stable runs take 20 epochs of batches of 32, or as many as 100 steps need."""
    args = arguments(tmp_path, sweep="paper", learning_rate=None)
    suggestions = Suggestions(args.search, 42, higher_is_better=True, journal=None)
    names = []
    for index in range(args.search.size):
        names.append(sweep.plan_run(args, 60, suggestions.ask(index), 7).folder.name)
        suggestions.tell(0.5)
    grid = itertools.product((16, 32), ("5e-05", "4e-05", "3e-05", "2e-05"), (2, 3, 4))
    assert sorted(names) == sorted(f"batch-{size}_rate-{rate}_epochs-{epochs}_seed-7" for size, rate, epochs in grid)
    accumulated = {"gradient_accumulation_steps": 2}
    for settings, number, epochs in (
        ({}, 160, 20),
        ({}, 96, 34),
        ({"num_train_epochs": 3}, 8, 3),
        (accumulated, 128, 50),
    ):
        args = arguments(tmp_path, sweep="stable", **settings)
        assert sweep.plan_run(args, number, {}, 42).args.num_train_epochs == epochs and args.seeds == 5


def read_results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def test_a_sweep_over_a_grid_and_seeds(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "grid.yaml").write_text("settings: {batch_size: [16, 32], learning_rate: 1e-3, num_train_epochs: [1]}")
    settings = {"sweep": str(tmp_path / "grid.yaml"), "seeds": 2, "learning_rate": None}
    sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path / "a", **settings))
    results = read_results(tmp_path / "a")
    rows = results["sweep"]["settings"]
    assert "seconds" not in results  # of the best run
    assert len(rows) == 2 and all(len(row["scores"]) == 2 for row in rows)
    for row in rows:
        assert row["mean"] == pytest.approx(np.mean(row["scores"]))
        assert row["std"] == pytest.approx(np.std(row["scores"], ddof=1))
        half = 12.7062 * row["std"] / np.sqrt(2)  # Student's t with one degree of freedom
        assert row["interval"] == pytest.approx([row["mean"] - half, row["mean"] + half], rel=1e-5)
    assert results["metrics"]["eval"]["accuracy"] == max(max(row["scores"]) for row in rows)
    assert results["sweep"]["best_setting"]["mean"] == max(row["mean"] for row in rows)

    # Only the best weights are left, and they reproduce the predictions.
    weights = [file.parent for file in (tmp_path / "a").rglob("*.safetensors")]
    assert tmp_path / "a" in weights and len(weights) == 2
    model = snugbert.SnugBertForSequenceClassification.from_pretrained(tmp_path / "a")
    trainer = new_trainer(HEADS[0], tokenizer, tmp_path / "again", model=model)
    predictions = trainer.predict(examples(HEADS[0], 30, seed=1)).predictions.argmax(-1)
    np.testing.assert_array_equal(predictions, np.loadtxt(tmp_path / "a" / "predictions.txt"))

    # It does not continue with other settings or other data.
    monkeypatch.setattr(sweep, "fine_tune", None)
    with pytest.raises(InputError, match=r"has other settings\.\n.*\n  --weight_decay .*\nChoose another folder"):
        sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path / "a", **settings, weight_decay=0.1))
    with pytest.raises(InputError, match="\n  the training data "):
        sweep.run_sweep(prepare_counting(tokenizer, 61), arguments(tmp_path / "a", **settings))


def test_a_continued_sweep_keeps_the_best_weights(tokenizer, tmp_path, monkeypatch):
    output_dir = tmp_path / "run"
    scores = {42: 0.5, 43: 0.9, 44: 0.6, 46: 0.9}  # of each seed; 45 diverges. Of equal runs, the earlier one stays
    failures: list[type[BaseException]] = [KeyboardInterrupt, DivergedError]

    def run_of_a_seed(task, args, callbacks):
        if args.seed == 45:
            raise failures.pop(0)("the loss is nan")
        task.evaluation_sets[0].score = lambda predictions: {"accuracy": scores[args.seed], "pearson": np.nan}
        return fine_tune(task, args)

    def sweep_over(seeds: int) -> None:
        task = prepare_counting(tokenizer)
        task.task.metrics = ("accuracy", "pearson")
        sweep.run_sweep(task, arguments(output_dir, seeds=seeds, max_steps=1))

    monkeypatch.setattr(sweep, "fine_tune", run_of_a_seed)
    with pytest.raises(KeyboardInterrupt):
        sweep_over(4)
    (kept,) = output_dir.rglob("*.safetensors")
    assert kept.parent.name.endswith("seed-43")
    best = kept.read_bytes()
    for seeds in (4, 5, 5):  # one more seed is allowed
        sweep_over(seeds)
        assert [file.read_bytes() for file in output_dir.rglob("*.safetensors")] == [best, best]
        results = read_results(output_dir)
        # NaN is null in the file.
        assert results["metrics"]["eval"] == {"accuracy": 0.9, "pearson": None} and results["settings"]["seed"] == 43
        assert [failure.partition("seed-")[2] for failure in results["sweep"]["failures"]] == ["45: the loss is nan"]
    with pytest.raises(InputError, match=r"\n  --seeds +5 +2\n"):
        sweep_over(2)


def test_seeds_without_a_sweep(tokenizer, tmp_path):
    given = arguments(tmp_path / "run", seeds=2, num_train_epochs=1, per_device_train_batch_size=20, push_to_hub=True)
    with intercept_pushes() as pushed:
        sweep.run_sweep(prepare_counting(tokenizer), given)
    (files,) = pushed.values()
    assert {"README.md", "model.safetensors", "config.json", "results.json"} <= files.keys()
    assert not {"_lock", "predictions.txt"} & files.keys()
    runs = sorted(folder.name for folder in (tmp_path / "run" / "runs").iterdir())
    assert runs == [f"batch-20_rate-0.001_epochs-1_seed-{seed}" for seed in (42, 43)]
    best = max(read_results(tmp_path / "run")["sweep"]["settings"][0]["scores"])
    (result,) = ModelCard.load(tmp_path / "run/README.md").data.eval_results
    assert result.metric_value == pytest.approx(best, rel=1e-5)
    # The folder of a single run is not continued as a sweep.
    shutil.rmtree(tmp_path / "run" / "runs")
    (tmp_path / "run" / "plan.json").unlink()
    with pytest.raises(InputError, match=r"already contains a run\. Choose another folder"):
        sweep.run_sweep(prepare_counting(tokenizer), given)


# --- the plan in the output folder --------------------------------------------------------------------------------


def test_replacing_a_sweep_removes_only_what_sweeps_write(tokenizer, tmp_path):
    settings, task = {"sweep": "fixed", "max_steps": 1}, prepare_counting(tokenizer)
    task.evaluation_sets[0].estimate_intervals = lambda predictions: {"accuracy": (0.25, 0.375)}
    sweep.run_sweep(task, arguments(tmp_path, **settings))
    (setting,) = read_results(tmp_path)["sweep"]["settings"]
    assert setting["interval"] == [0.25, 0.375] and setting["epochs"] == 0.5  # of one seed, and one of two steps
    (run,) = (tmp_path / "runs").iterdir()
    for name in ("my_adapter.safetensors", "checkpoint-notes.txt"):
        (run / name).write_text("mine")
    (run / "checkpoint-notes").mkdir()
    sweep.run_sweep(prepare_counting(tokenizer), arguments(tmp_path, **settings, seeds=2))  # continues
    assert {"my_adapter.safetensors", "checkpoint-notes.txt", "checkpoint-notes"} <= {f.name for f in run.iterdir()}

    theirs = tmp_path / "runs" / "batch-32_rate-3e-05_epochs-2_seed-1" / "results.json"
    mine = ("checkpoint-notes/a", "my_results.json", "eval_my_learning_curve.png", "cola/checkpoint-notes/a", "cola/a")
    mine += ("runs/mine/results.json", "runs/mine/model.safetensors", "runs/mine/checkpoint-1/a", "runs/batch-mine/a")
    for file in (*(tmp_path / name for name in mine), theirs):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    args = arguments(tmp_path, **settings, overwrite_output_dir=True)
    sweep.run_sweep(prepare_counting(tokenizer), args)
    prepare_folder({}, tmp_path, continues=False)
    assert all((tmp_path / name).read_text() == "mine" for name in mine) and not theirs.exists()
    assert not (tmp_path / "results.json").exists() and not list((tmp_path / "runs").glob("batch-*_seed-*"))


@pytest.mark.parametrize(
    ("text", "flags", "error"),
    [
        ("settings: {reinit_layers: [0, 99, 1]}", {}, "--reinit_layers 99 are too large. The model has 3 layers"),
        ("settings: {freeze_layers: [0, 2], reinit_layers: [0, 2]}", {}, "2 and --reinit_layers 2 are too"),
        ("settings: {lr_scheduler_type: [linear, cosine_with_min_lr]}", {}, "One of min_lr or min_lr_rate should be"),
        ("settings: {batch_size: [16]}", {"gradient_accumulation_steps": 3}, "16 is not divisible by"),
        ("{prune: true, settings: {weight_decay: [0.0, 0.1]}}", {"eval_strategy": "no"}, "--eval_strategy no"),
    ],
)
def test_a_value_that_does_not_fit_stops_a_sweep_at_once(text, flags, error, tokenizer, tmp_path):
    (tmp_path / "search.yaml").write_text(text)
    for dry_run in (False, True):
        args = arguments(tmp_path / "run", sweep=str(tmp_path / "search.yaml"), dry_run=dry_run, **flags)
        with pytest.raises(InputError, match=error):
            sweep.run_sweep(prepare_counting(tokenizer), args)
    assert not (tmp_path / "run").exists()
    task = prepare_counting(tokenizer)
    task.evaluation_sets = []
    with pytest.raises(InputError, match="no examples with reference answers"):
        sweep.run_sweep(task, arguments(tmp_path, seeds=2))


# --- suggested settings ----------------------------------------------------------------------------------------------

# With these, the sixth run is stopped early.
RATES = {"learning_rate": {"low": 1e-3, "high": 1e-1, "log": True}, "batch_size": [20, 30]}
PRUNED = {"method": "tpe", "prune": True, "runs": 7, "flags": {"num_train_epochs": 2.0}}


def search_arguments(folder: Path, settings, flags=None, **content):
    """Arguments with a file of a sweep."""
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(yaml.safe_dump({"settings": settings, **content}, sort_keys=False))
    flags = {"metric_for_best_model": "accuracy", "learning_rate": None} | (flags or {})
    return arguments(folder, sweep=str(file), **flags)


def run_search(folder: Path, settings=None, **content) -> None:
    """Runs a sweep. The score is the mean logit of the correct label, so that no two runs are equal."""
    prepared = prepare_counting(make_tokenizer())
    task: Any = prepared.task
    task.decode = lambda logits, split, features: logits
    task.measure = lambda split, logits: np.take_along_axis(logits, np.array(split.inputs["label"])[:, None], 1)
    sweep.run_sweep(prepared, search_arguments(folder, settings or RATES, **content))


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    """The folder of an uninterrupted search."""
    folder = tmp_path_factory.mktemp("searched") / "a"
    run_search(folder, **PRUNED)
    return folder


def test_an_interrupted_search_equals_an_uninterrupted_one(searched, tmp_path, monkeypatch):
    """A resumed sweep tells Optuna the finished runs again, also the stopped ones. Budgets may grow."""
    expected, names = read_results(searched)["sweep"], list((searched / "runs").iterdir())
    assert (len(expected["settings"]), len(expected["stopped"]), len(names)) == (6, 1, 7)
    assert expected["best_setting"]["scores"][0] == max(row["scores"][0] for row in expected["settings"])

    training_step = FineTuningTrainer.training_step

    def interrupted(self, *args):
        if len(list((tmp_path / "b/runs").glob("*/results.json"))) == 5:
            raise KeyboardInterrupt
        return training_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_search(tmp_path / "b", **PRUNED | {"runs": 6})
    with (tmp_path / "b/trials.jsonl").open("ab") as file:
        file.write(b'{"op_code":5,"wor')  # killed while it wrote
    (tmp_path / "b/trials.jsonl.lock").symlink_to("trials.jsonl")
    run_search(tmp_path / "b", **PRUNED)
    assert read_results(tmp_path / "b")["sweep"] == expected
    with pytest.raises(InputError, match=r"\n  runs +7 +6\n"):
        run_search(tmp_path / "b", **PRUNED | {"runs": 6})
    with pytest.raises(InputError, match=r"\n  --sweep settings "):
        run_search(tmp_path / "b", {**RATES, "batch_size": [20]}, **PRUNED)


def search_in_processes(folder: Path) -> None:
    """The processes share no disk."""
    run_search(folder.with_name(f"{folder.name}{os.environ['RANK']}"), **PRUNED)


def test_processes_get_the_same_settings_and_stop_together(searched, tmp_path):
    assert run_forked(search_in_processes, tmp_path / "two", processes=2).returncode == 0
    one, two = read_results(searched)["sweep"], read_results(tmp_path / "two0")["sweep"]
    assert len(one["stopped"]) > 0
    columns = ("batch_size", "learning_rate", "epochs")
    for part in ("settings", "stopped"):
        settings = [[[row[name] for name in columns] for row in found[part]] for found in (one, two)]
        assert settings[0] == settings[1]


def test_a_budget_of_time(tmp_path, monkeypatch):
    """Runs take an hour. Finished runs always count."""
    clock = itertools.count(step=3600)  # read before and after each run
    monkeypatch.setattr(single_run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    content = {"method": "random", "runs": 20, "flags": {"max_steps": 1}}
    for hours, settings in ((3.0, 4), (4.0, 5), (1.0, 5)):
        run_search(tmp_path / "run", hours=hours, **content)
        assert len(read_results(tmp_path / "run")["sweep"]["settings"]) == settings


def test_settings_with_a_failed_seed_come_last(tmp_path):
    scores = {"one of two": [0.9, None], "undefined": [math.nan, math.nan], "worse": [0.5, 0.5], "best": [0.5, 0.6]}
    runs = [
        SweepRun({"name": name}, 42 + i, tmp_path, {"metrics": {"eval": {"accuracy": score}}} if score else {})
        for name, each in scores.items()
        for i, score in enumerate(each)
    ]
    objective = Objective("eval", "accuracy", higher_is_better=True)
    order = []
    while runs:
        order.append(choose_setting(runs, objective)["name"])
        runs = [run for run in runs if run.setting["name"] != order[-1]]
    assert order == ["best", "worse", "one of two", "undefined"]


def test_failed_runs_are_counted(tmp_path, monkeypatch):
    fine_tune, errors = sweep.fine_tune, itertools.cycle([torch.OutOfMemoryError, sweep.DivergedError])

    def fail(task, args, callbacks: Sequence[StopBadRuns]):
        if args.learning_rate > 4.61e-3:
            raise next(errors)("the loss is nan")
        return fine_tune(task, args, callbacks)

    def diverge(*_: Any) -> None:
        raise sweep.DivergedError("the loss is nan")

    monkeypatch.setattr(sweep, "fine_tune", fail)
    rates = {"learning_rate": {"low": 1e-3, "high": 3e-2, "log": True}, "batch_size": [12, 30]}
    run_search(tmp_path / "run", rates, method="tpe", runs=4, flags={"max_steps": 2})
    found = read_results(tmp_path / "run")["sweep"]
    messages = {failure.partition("_seed-42: ")[2] for failure in found["failures"]}
    assert messages <= {"out of memory", "the loss is nan"}
    assert len(found["settings"]) + len(found["failures"]) == 4 and 0 < len(found["failures"]) < 4
    assert all(row["learning_rate"] <= 4.61e-3 for row in found["settings"])
    # If no run ends well, the memory may be free later.
    with pytest.raises(torch.OutOfMemoryError):
        run_search(tmp_path / "full", {"learning_rate": [2e-2, 3e-2]}, flags={"max_steps": 2})
    assert not list((tmp_path / "full").rglob("results.json"))
    monkeypatch.setattr(sweep, "fine_tune", diverge)
    with pytest.raises(sweep.DivergedError, match="All runs of the sweep failed"):
        run_search(tmp_path / "full", {"learning_rate": [2e-2, 3e-2]}, flags={"max_steps": 2})
