"""Suggested settings: next to Optuna's own loop, to SciPy's distributions, and after an interruption."""

import itertools
import json
import math
import os
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
from scipy.stats import kstest, loguniform

from snugbert.errors import InputError
from snugbert.trainers.finetuning import single_run, sweep
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.suggestions import StopBadRuns, Suggestions, draw_setting
from snugbert.trainers.finetuning.sweep_results import FinishedRun, Objective, choose_setting, read_runs

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


def own_loop(method: str, prune: bool, runs: int) -> list[tuple]:
    """Optuna's loop: `optimize`, with an objective that defines its parameters."""

    def objective(trial: optuna.Trial) -> float:
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True)
        epochs = 2.0 + trial.suggest_int("num_train_epochs", 0, 2)
        schedule = ("linear", "cosine", "constant")[trial.suggest_categorical("lr_scheduler_type", range(3))]
        rate = float(f"{rate:.4g}")
        scores = evaluate(rate, epochs, schedule)
        for step, score in enumerate(scores):
            trial.report(score, step)
            if prune and step + 1 < len(scores) and trial.should_prune():
                found.append((rate, epochs, schedule, step + 1))
                raise optuna.TrialPruned
        found.append((rate, epochs, schedule, len(scores)))
        return scores[-1]

    found: list[tuple] = []
    sampler = {"tpe": optuna.samplers.TPESampler, "qmc": optuna.samplers.QMCSampler}[method](seed=7)
    pruner = optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner()
    optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner).optimize(objective, n_trials=runs)
    return found


@pytest.mark.parametrize(("method", "prune"), [("tpe", True), ("qmc", False)])
def test_suggestions_equal_optunas_own_loop(method, prune, tmp_path):
    args = search_arguments(tmp_path / "run", method=method, prune=prune, runs=30, flags={"seed": 7})
    suggestions, found = Suggestions(args.search, 7, higher_is_better=True), []
    for index in itertools.count():
        setting = suggestions.ask(index)
        if setting is None:
            break
        values = (setting["learning_rate"], setting["num_train_epochs"], setting["lr_scheduler_type"].value)
        scores = evaluate(*values)
        ended = next((n for n in range(1, len(scores)) if prune and suggestions.is_bad(scores[:n])), len(scores))
        found.append((*values, ended))
        suggestions.tell(scores[-1] if ended == len(scores) else math.nan, scores[:ended])
    assert found == own_loop(method, prune, 30) and len(found) == 30
    assert any(ended < epochs for _, epochs, _, ended in found) == prune


def test_more_seeds_do_not_change_the_settings(tokenizer, tmp_path, monkeypatch):
    """Otherwise, earlier runs would not be part of the continued sweep. The first ten settings are random."""
    found = []
    for name, seeds in (("one", 1), ("two", 2)):
        args = search_arguments(tmp_path / name, method="tpe", runs=14, seeds=seeds, flags={"greater_is_better": True})

        def run(self, run, *_):
            score = run.args.learning_rate * (-1 if run.args.seed > 42 else 1)
            return FinishedRun(run.setting, run.args.seed, run.folder, {"metrics": {"eval": {"accuracy": score}}})

        monkeypatch.setattr(sweep.Sweep, "_run", run)
        runs = sweep.Sweep(prepare_counting(tokenizer), args).run_all()
        found.append([run.setting for run in runs if run.seed == 42])
    assert found[0] == found[1] and len(found[0]) == 14


def test_random_settings_depend_on_the_seed_and_the_index(tmp_path):
    search = search_arguments(tmp_path / "run", method="random", runs=3).search
    drawn = [draw_setting(search, 1, index) for index in range(400)]
    assert (
        drawn[:5] == [draw_setting(search, 1, index) for index in range(5)] and draw_setting(search, 2, 0) != drawn[0]
    )
    rates = [setting["learning_rate"] for setting in drawn]
    assert kstest(rates, loguniform(1e-5, 1e-3).cdf).pvalue > 0.01
    for flag, count in (("num_train_epochs", 3), ("lr_scheduler_type", 3)):
        values = [setting[flag] for setting in drawn]
        assert len(set(values)) == count and min(map(values.count, set(values))) > 100
    whole = search_arguments(
        tmp_path / "a", {"freeze_layers": {"low": 1, "high": 9, "log": True}}, method="random", runs=1
    )
    assert {type(draw_setting(whole.search, 0, index)["freeze_layers"]) for index in range(20)} == {int}


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


@pytest.fixture
def count_left(monkeypatch):
    """A function that returns the number of runs that a dry run of a search counts."""
    counted = []
    monkeypatch.setattr(
        sweep, "run_dry_fine_tuning", lambda prepared, first, checkpoint, number: counted.append(number)
    )

    def call(folder, **content) -> int | None:
        run_search(folder, **content | {"flags": {**content.get("flags", {}), "dry_run": True}})
        return counted[-1]

    return call


def test_an_interrupted_search_equals_an_uninterrupted_one(tmp_path, monkeypatch, count_left):
    """A resumed sweep tells Optuna the finished runs again, also the stopped ones. Budgets may grow."""
    content = {"method": "tpe", "prune": True, "runs": 13, "winner_seeds": 2, "flags": {"num_train_epochs": 2.0}}
    run_search(tmp_path / "a", **content)
    expected, names = read_sweep(tmp_path / "a"), sorted(path.name for path in (tmp_path / "a/runs").iterdir())
    assert len(expected["settings"]) + len(expected["stopped"]) == 13 and len(names) == 14
    assert expected["best_setting"]["seeds"] == 2 and expected["best_setting"]["std"] is not None
    assert expected["best_setting"]["scores"][0] == max(row["scores"][0] for row in expected["settings"])
    assert "stopped early at" in (tmp_path / "a/README.md").read_text()

    steps, training_step = itertools.count(), FineTuningTrainer.training_step

    def interrupted(self, *args):
        if next(steps) == 47:
            raise KeyboardInterrupt
        return training_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_search(tmp_path / "b", **content | {"runs": 9})
    finished = len(list((tmp_path / "b/runs").glob("*/results.json")))
    assert 3 <= finished < 9 and count_left(tmp_path / "b", **content) == 14 - finished
    run_search(tmp_path / "b", **content)
    assert read_sweep(tmp_path / "b") == expected
    assert count_left(tmp_path / "b", **content) == 0
    assert count_left(tmp_path / "b", **content | {"winner_seeds": 3}) == 1
    with pytest.raises(InputError, match=r"\n  runs +13 +9\n"):
        run_search(tmp_path / "b", **content | {"runs": 9})
    with pytest.raises(InputError, match=r"\n  --sweep settings "):
        run_search(tmp_path / "b", {**RATES, "batch_size": [12]}, **content)


PROCESSES = {"method": "tpe", "prune": True, "runs": 7, "flags": {"num_train_epochs": 2.0}}


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


def test_a_budget_of_time(tmp_path, monkeypatch, count_left):
    """Runs take an hour. The seeds of the best setting have to fit, too. Finished runs always count."""
    clock = itertools.count(step=3600)  # read before and after each run
    monkeypatch.setattr(single_run, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    content = {"method": "random", "winner_seeds": 3, "flags": {"max_steps": 1}}
    for hours, settings in ((6.5, 4), (7.0, 5), (1.0, 5)):
        run_search(tmp_path / "run", hours=hours, **content)
        rows = read_sweep(tmp_path / "run")["settings"]
        assert len(rows) == settings and sum(row["seeds"] for row in rows) in (settings + 2, settings + 4)
    assert count_left(tmp_path / "run", hours=20.0, **content) == 1  # not known
    first = json.loads(next((tmp_path / "run/runs").glob("*/results.json")).read_text())
    assert first["seconds"] == 3600
    few = {"learning_rate": [1e-3, 2e-3]}
    run_search(tmp_path / "few", few, method="random", hours=1000.0, flags={"max_steps": 1})  # ends without new ones
    assert len(read_sweep(tmp_path / "few")["settings"]) == 2


def test_settings_with_a_failed_seed_come_last(tmp_path):
    scores = {"one of two": [0.9, None], "undefined": [math.nan, math.nan], "worse": [0.5, 0.5], "best": [0.5, 0.6]}
    runs = [
        FinishedRun({"name": name}, 42 + i, tmp_path, {"metrics": {"eval": {"accuracy": score}}} if score else {})
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
        if args.learning_rate > 5e-3:
            raise next(errors)("the loss is nan")
        return fine_tune(task, args, callbacks)

    monkeypatch.setattr(sweep, "fine_tune", fail)
    run_search(tmp_path / "run", method="tpe", runs=4, flags={"max_steps": 2})
    found = read_sweep(tmp_path / "run")
    messages = [failure.partition("_seed-42: ")[2] for failure in found["failures"]]
    assert messages == ["out of memory", "the loss is nan"]
    assert len(found["settings"]) + len(found["failures"]) == 4 and 0 < len(found["failures"]) < 4
    assert all(row["learning_rate"] <= 5e-3 for row in found["settings"])
    # If no run ends well, the memory may be free later.
    with pytest.raises(torch.OutOfMemoryError):
        run_search(tmp_path / "full", {"learning_rate": [1e-2, 2e-2]}, flags={"max_steps": 2})
    assert not read_runs(tmp_path / "full")
