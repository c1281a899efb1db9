"""Suggested settings: with Optuna's journal, in real runs, and after an interruption."""

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
import yaml
from finetuning_examples import arguments, make_tokenizer, prepare_counting
from forked import run as run_forked
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from snugbert.errors import InputError
from snugbert.trainers.finetuning import single_run, sweep
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.sweep import Objective, StopBadRuns, Suggestions, SweepRun, choose_setting

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SETTINGS = {
    "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
    "num_train_epochs": {"low": 2, "high": 4, "step": 1},
    "lr_scheduler_type": ["linear", "cosine", "constant"],
}


def search_arguments(folder: Path, settings=None, flags=None, **content):
    """Arguments with a file of a sweep."""
    file = folder.parent / f"{folder.name}.yaml"
    settings = settings or SETTINGS
    file.write_text(yaml.safe_dump({"settings": settings, **content}, sort_keys=False))
    rate = {"learning_rate": None} if "learning_rate" in settings else {}
    return arguments(folder, sweep=str(file), **{"metric_for_best_model": "accuracy", **rate, **(flags or {})})


def evaluate(rate: float, epochs: float, schedule: str) -> list[float]:
    """A learning curve: one score per epoch."""
    peak = {"linear": 3e-4, "cosine": 1e-4, "constant": 3e-5}[schedule]
    best = math.exp(-abs(math.log(rate / peak))) + 0.01 * epochs
    return [(1 - 0.5 ** (epoch + 1)) * best for epoch in range(int(epochs))]


def run_curves(search, journal: Path, runs: int, number: int = 0) -> list[tuple]:
    """Tries settings from `number` on, as a command does. Returns rate, epochs, schedule and evaluations."""
    suggestions, found = Suggestions(search, 7, higher_is_better=True, journal=journal), []
    for index in range(runs):
        setting = suggestions.ask(index)
        values = (setting["learning_rate"], setting["num_train_epochs"], setting["lr_scheduler_type"])
        scores = evaluate(*values)
        ended = len(scores)
        if index >= number:
            ended = next((n for n in range(1, len(scores)) if suggestions.is_bad(scores[:n])), len(scores))
        suggestions.tell(scores[-1] if ended == len(scores) else math.nan)
        found.append((*values, ended))
    return found


def test_a_journal_continues_with_the_same_settings(tmp_path, monkeypatch):
    """It contains all settings, and the scores that Optuna compares."""
    search = search_arguments(tmp_path / "run", method="tpe", prune=True, runs=30, flags={"seed": 7}).search
    whole = run_curves(search, tmp_path / "whole", 30)
    assert run_curves(search, tmp_path / "parts", 17) == whole[:17]
    Suggestions(search, 7, higher_is_better=True, journal=tmp_path / "parts").ask(17)  # interrupted
    with (tmp_path / "parts").open("ab") as file:
        file.write(b'{"op_code":5,"wor')  # killed while it wrote
    (tmp_path / "parts.lock").symlink_to("parts")
    monkeypatch.setattr(time, "sleep", None)  # nothing waits for this lock
    continued = run_curves(search, tmp_path / "parts", 30, number=17)
    assert [row[:3] for row in continued] == [row[:3] for row in whole] and continued[17:] == whole[17:]
    assert any(ended < epochs for _, epochs, _, ended in whole) and len({row[:3] for row in whole}) == 30
    study = optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(str(tmp_path / "whole"))))
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE" if ended == epochs else "PRUNED" for _, epochs, _, ended in whole]


def test_rounded_values_stay_in_their_range(tmp_path):
    settings = {"adam_beta2": {"low": 0.9999, "high": 0.99999}, "weight_decay": {"low": 0.012346, "high": 0.012349}}
    search = search_arguments(tmp_path / "run", settings, method="random", runs=9).search
    suggestions = Suggestions(search, 7, higher_is_better=True, journal=None)
    for number in range(9):
        setting = suggestions.ask(number)
        assert setting["adam_beta2"] in (0.9999, 0.99999) and 0.012346 <= setting["weight_decay"] <= 0.012349


def test_more_seeds_do_not_change_the_settings(tokenizer, tmp_path, monkeypatch):
    """Otherwise, earlier runs would not be part of the continued sweep. The first ten settings are random."""

    def run(self, run, *_):
        score = run.args.learning_rate * (-1 if run.args.seed > 42 else 1)
        return run._replace(results={"metrics": {"eval": {"accuracy": score}}, "seconds": 1})

    monkeypatch.setattr(sweep.Sweep, "_run", run)
    found = []
    for seeds in (1, 2):
        folder = tmp_path / str(seeds)
        folder.mkdir()
        args = search_arguments(folder, method="tpe", runs=14, seeds=seeds, flags={"greater_is_better": True})
        runs = sweep.Sweep(prepare_counting(tokenizer), args).run_all()
        found.append([run.setting for run in runs if run.seed == 42])
    assert found[0] == found[1] and len(found[0]) == 14


# --- real runs --------------------------------------------------------------------------------------------------

RATES = {"learning_rate": {"low": 1e-3, "high": 3e-2, "log": True}, "batch_size": [12, 30]}


def read_sweep(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())["sweep"]


def run_search(folder: Path, settings=None, **content) -> None:
    """Runs a sweep. The score is the mean logit of the correct label, so that no two runs are equal."""
    prepared = prepare_counting(make_tokenizer())
    task: Any = prepared.task
    task.decode = lambda logits, split, features: logits
    task.measure = lambda split, logits: np.take_along_axis(logits, np.array(split.inputs["label"])[:, None], 1)
    sweep.run_sweep(prepared, search_arguments(folder, settings or RATES, **content))


def test_an_interrupted_search_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    """A resumed sweep tells Optuna the finished runs again, also the stopped ones. Budgets may grow."""
    content = {"method": "tpe", "prune": True, "runs": 13, "winner_seeds": 2, "flags": {"num_train_epochs": 2.0}}
    run_search(tmp_path / "a", **content)
    expected, names = read_sweep(tmp_path / "a"), sorted(path.name for path in (tmp_path / "a/runs").iterdir())
    assert len(expected["settings"]) + len(expected["stopped"]) == 13 and len(names) == 14
    assert expected["best_setting"]["seeds"] == 2 and expected["best_setting"]["std"] is not None
    assert expected["best_setting"]["scores"][0] == max(row["scores"][0] for row in expected["settings"])

    steps, training_step = itertools.count(), FineTuningTrainer.training_step

    def interrupted(self, *args):
        if next(steps) == 47:
            raise KeyboardInterrupt
        return training_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_search(tmp_path / "b", **content | {"runs": 9})
    assert 3 <= len(list((tmp_path / "b/runs").glob("*/results.json"))) < 9
    run_search(tmp_path / "b", **content)
    assert read_sweep(tmp_path / "b") == expected
    with pytest.raises(InputError, match=r"\n  runs +13 +9\n"):
        run_search(tmp_path / "b", **content | {"runs": 9})
    with pytest.raises(InputError, match=r"\n  --sweep settings "):
        run_search(tmp_path / "b", {**RATES, "batch_size": [12]}, **content)


PROCESSES = {"method": "tpe", "prune": True, "runs": 10, "flags": {"num_train_epochs": 2.0}}


def search_in_processes(folder: Path) -> None:
    """The processes share no disk."""
    run_search(folder.with_name(f"{folder.name}{os.environ['RANK']}"), **PROCESSES)


def test_processes_get_the_same_settings_and_stop_together(tmp_path):
    assert run_forked(search_in_processes, tmp_path / "two", processes=2).returncode == 0
    run_search(tmp_path / "one", **PROCESSES)
    one, two = (read_sweep(tmp_path / name) for name in ("one", "two0"))
    assert len(one["stopped"]) > 0
    columns = ("batch_size", "learning_rate", "epochs")
    for part in ("settings", "stopped"):
        settings = [[[row[name] for name in columns] for row in found[part]] for found in (one, two)]
        assert settings[0] == settings[1]


def test_a_budget_of_time(tmp_path, monkeypatch):
    """Runs take an hour, also the seeds of an earlier best setting. Finished runs always count."""
    clock = itertools.count(step=3600)  # read before and after each run
    monkeypatch.setattr(single_run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    content = {"method": "random", "runs": 20, "winner_seeds": 3, "flags": {"max_steps": 1}}
    for hours, settings in ((3.0, 4), (4.0, 5), (1.0, 5)):
        run_search(tmp_path / "run", hours=hours, **content)
        rows = read_sweep(tmp_path / "run")["settings"]
        assert len(rows) == settings and sum(row["seeds"] for row in rows) in (settings + 2, settings + 4)
    # A dry run counts the runs and the seconds that are left.
    finished, planned = len(list((tmp_path / "run/runs").glob("*/results.json"))), []
    monkeypatch.setattr(sweep, "run_dry_fine_tuning", lambda prepared, first, checkpoint, *left: planned.append(left))
    content["flags"]["dry_run"] = True
    for hours in (finished + 2.0, 1.0):
        run_search(tmp_path / "run", hours=hours, **content)
    assert planned == [(22 - finished, 7200), (22 - finished, 0)]


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
        order.append(choose_setting(runs, objective, range(42, 44))["name"])
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
    run_search(tmp_path / "run", method="tpe", runs=4, flags={"max_steps": 2})
    found = read_sweep(tmp_path / "run")
    assert {failure.partition("_seed-42: ")[2] for failure in found["failures"]} <= {
        "out of memory",
        "the loss is nan",
    }
    assert len(found["settings"]) + len(found["failures"]) == 4 and 0 < len(found["failures"]) < 4
    assert all(row["learning_rate"] <= 4.61e-3 for row in found["settings"])
    # If no run ends well, the memory may be free later.
    with pytest.raises(torch.OutOfMemoryError):
        run_search(tmp_path / "full", {"learning_rate": [1e-2, 2e-2]}, flags={"max_steps": 2})
    assert not list((tmp_path / "full").rglob("results.json"))
    monkeypatch.setattr(sweep, "fine_tune", diverge)
    with pytest.raises(sweep.DivergedError, match="All runs of the sweep failed"):
        run_search(tmp_path / "full", {"learning_rate": [1e-2, 2e-2]}, flags={"max_steps": 2})
