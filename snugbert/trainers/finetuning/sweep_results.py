"""The finished runs of a sweep: their files, the best of them, and the summary of all settings."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from snugbert.files import LOCK_NAME
from snugbert.reports.intervals import estimate_mean_interval
from snugbert.reports.results import RESULTS, read_results
from snugbert.trainers.run.checkpoints import list_checkpoints

RUN_FOLDER = re.compile(r"batch-\d+_rate-[\d.e+-]+_epochs-[\d.e+-]+(_[\w.+-]+)?_seed-\d+", re.ASCII)  # see `plan_run`
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)


class Objective(NamedTuple):
    """The score that selects the best run."""

    set_name: str  # of the validation examples
    metric: str
    higher_is_better: bool


class FinishedRun(NamedTuple):
    """A run that finished, failed or was stopped early."""

    setting: dict[str, Any]
    seed: int
    folder: Path
    # [`RunResults`], or "evaluations" with either "failure" (the message of a failed run) or "stopped_early". All
    # have "seconds", the time that the run took.
    results: dict[str, Any]

    @property
    def is_complete(self) -> bool:
        """Whether the run neither failed nor was stopped early."""
        return "metrics" in self.results

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in the run's folder."""
        return any(self.folder.glob("model*.safetensors"))

    def score(self, set_name: str, metric: str) -> float:
        """Returns a metric. NaN if it is undefined (the correlation of a constant) or the run is not complete."""
        value = self.results.get("metrics", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value

    def rank(self, objective: Objective) -> float:
        """Returns the score as a number that is higher for better runs, and lowest without a score."""
        score = self.score(objective.set_name, objective.metric)
        return float(np.nan_to_num(score if objective.higher_is_better else -score, nan=-np.inf))


def list_run_folders(output_dir: Path) -> list[Path]:
    """Returns the folders of a sweep's runs in `output_dir`."""
    return [path for path in (output_dir / "runs").glob("*") if RUN_FOLDER.fullmatch(path.name)]


def read_runs(output_dir: Path) -> list[FinishedRun]:
    """Returns the finished runs in the output folder of a sweep, without their settings. The newest is the last."""
    folders = [folder for folder in list_run_folders(output_dir) if (folder / RESULTS).exists()]
    folders.sort(key=lambda folder: (folder / RESULTS).stat().st_mtime_ns)
    return [FinishedRun({}, 0, folder, read_results(folder / RESULTS)) for folder in folders]


def keep_best_weights(output_dir: Path, objective: Objective) -> None:
    """Removes the weights of all finished runs but the best, and all checkpoints of finished runs."""
    runs = read_runs(output_dir)
    best = best_run(runs, objective)
    for run in runs:
        weights = [file for file in run.folder.iterdir() if WEIGHTS.fullmatch(file.name)]
        for file in weights if run is not best else []:
            file.unlink()
        for checkpoint in list_checkpoints(run.folder):
            shutil.rmtree(checkpoint)


def copy_best_run(output_dir: Path, best: FinishedRun) -> None:
    """Copies the best run's files to the output folder, its weights last."""
    for path in sorted(best.folder.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        if path.is_file() and path.name not in (RESULTS, "results.md", LOCK_NAME):
            shutil.copy2(path, output_dir / path.name)


# --- the best run --------------------------------------------------------------------------------------------------


def summarize_sweep(runs: list[FinishedRun], objective: Objective, seeds: range) -> dict[str, Any]:
    """Returns means and standard deviations over seeds, of each setting's score and the best setting's metrics.

    `metrics` is evaluation set -> metric -> `mean`, `std` and `interval`. With one seed, `interval` is the interval of
    that run's score, or None. `failures` are messages. `stopped` are the settings that were stopped early, and their
    `scores` in training. `seeds`: see [`choose_setting`].
    """
    set_name, metric, _ = objective
    settings = {}
    for setting, group in _group_by_setting(run for run in runs if run.is_complete).items():
        scores = [run.score(set_name, metric) for run in group]
        spread = _summarize_seeds(group, set_name, metric)
        settings[setting] = {**group[0].setting, "seeds": len(scores), "scores": scores, **spread}
    best = _key(choose_setting(runs, objective, seeds))
    best_runs = [run for run in runs if run.is_complete and _key(run.setting) == best]
    metrics = {
        name: {m: _summarize_seeds(best_runs, name, m) for m in values}
        for name, values in best_runs[0].results["metrics"].items()
    }
    stopped = [run for run in runs if "stopped_early" in run.results]
    return {
        "chosen_by": f"{set_name}_{metric}",
        "settings": [*settings.values()],
        "best_setting": settings[best],
        "metrics": metrics,
        "failures": [run.results["failure"] for run in runs if "failure" in run.results],
        **({"stopped": [{**run.setting, "scores": run.results["evaluations"]} for run in stopped]} if stopped else {}),
    }


def choose_setting(runs: Sequence[FinishedRun], objective: Objective, seeds: range) -> dict[str, Any]:
    """Returns the setting with the best mean over `seeds`, which every setting has. Empty: no run is complete.

    A setting with an incomplete run ranks below settings whose runs are all complete. A setting with an undefined
    score ranks last.
    """

    def rank(group: list[FinishedRun]) -> tuple[bool, bool, float]:
        mean = float(np.mean([run.rank(objective) for run in group if run.is_complete]))
        return mean > -np.inf, all(run.is_complete for run in group), mean

    groups = _group_by_setting(run for run in runs if run.seed in seeds).values()
    complete = [group for group in groups if any(run.is_complete for run in group)]
    return max(complete, key=rank)[0].setting if complete else {}


def best_run(runs: Sequence[FinishedRun], objective: Objective) -> FinishedRun:
    """Returns the best run, or any if no run is complete. If several runs are equal, the first run with weights."""
    return max(runs, key=lambda run: (run.is_complete, run.rank(objective), run.has_weights))


def _group_by_setting(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault(_key(run.setting), []).append(run)
    return groups


def _key(setting: Mapping[str, Any]) -> str:
    return json.dumps(setting)


def _summarize_seeds(runs: list[FinishedRun], set_name: str, metric: str) -> dict[str, Any]:
    values = [run.score(set_name, metric) for run in runs]
    intervals = runs[0].results.get("intervals", {})
    return {
        "mean": float(np.mean(values)),
        # The standard deviation of a sample, undefined for one seed.
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "interval": estimate_mean_interval(values) if len(values) > 1 else intervals.get(set_name, {}).get(metric),
    }
