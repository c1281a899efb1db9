"""The finished runs of a sweep: their files, the best of them, and the summary of all settings."""

import re
import shutil
from collections.abc import Mapping, Sequence
from filecmp import cmp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers.trainer import TRAINER_STATE_NAME

from snugbert.errors import InputError
from snugbert.files import LOCK_NAME
from snugbert.reports.intervals import Interval, estimate_mean_interval
from snugbert.reports.results import RESULTS, read_results
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.trainers.run.run_settings import read_state

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
        """Whether the weights are in the run's folder, or were moved to the sweep's folder by an earlier command."""
        weights = "model*.safetensors"
        output_dir = self.folder.parents[1]
        if any(self.folder.glob(weights)):
            return True
        own, moved = (folder / TRAINER_STATE_NAME for folder in (self.folder, output_dir))
        return any(output_dir.glob(weights)) and own.exists() and moved.exists() and cmp(own, moved, shallow=False)

    def score(self, set_name: str, metric: str) -> float:
        """Returns a metric. NaN if it is undefined (the correlation of a constant) or the run is not complete."""
        value = self.results.get("metrics", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value

    def interval(self, set_name: str, metric: str) -> Interval | None:
        """Returns the interval of a metric. None if the metric has no interval."""
        return self.results.get("intervals", {}).get(set_name, {}).get(metric)

    def evaluations(self, set_name: str, metric: str) -> list[float]:
        """Returns the metric after each evaluation in training."""
        if self.is_complete:
            name = f"{set_name}_{metric}"
            log = read_state(self.folder).log_history
            return [line[name] for line in log if name in line]
        return self.results["evaluations"]


def list_run_folders(output_dir: Path) -> list[Path]:
    """Returns the folders of a sweep's runs in `output_dir`."""
    return [path for path in (output_dir / "runs").glob("*") if RUN_FOLDER.fullmatch(path.name)]


def read_runs(output_dir: Path) -> list[FinishedRun]:
    """Returns the finished runs in the output folder of a sweep, without their settings. The newest is the last."""
    folders = [folder for folder in list_run_folders(output_dir) if (folder / RESULTS).exists()]
    folders.sort(key=lambda folder: (folder / RESULTS).stat().st_mtime_ns)
    return [FinishedRun({}, 0, folder, read_results(folder / RESULTS)) for folder in folders]


def keep_best_weights(output_dir: Path, best: FinishedRun) -> None:
    """Removes the weights of all other finished runs, and all checkpoints of finished runs."""
    for folder in list_run_folders(output_dir):
        if (folder / RESULTS).exists():
            weights = [file for file in folder.iterdir() if WEIGHTS.fullmatch(file.name)]
            for file in weights if folder.name != best.folder.name else []:
                file.unlink()
            for checkpoint in list_checkpoints(folder):
                shutil.rmtree(checkpoint)


def move_best_run(output_dir: Path, best: FinishedRun) -> None:
    """Copies the best run's small files to the output folder, then moves its weights there."""
    if not best.has_weights:
        raise InputError(
            f"--output_dir: the weights of the best run, {best.folder.name}, are missing. Choose another folder, or "
            "repeat the sweep (--overwrite_output_dir)."
        )
    for path in sorted(best.folder.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        if path.suffix == ".safetensors":
            path.replace(output_dir / path.name)
        elif path.is_file() and path.name not in (RESULTS, "results.md", LOCK_NAME):
            shutil.copy2(path, output_dir / path.name)


# --- the best run --------------------------------------------------------------------------------------------------


def summarize_sweep(runs: list[FinishedRun], objective: Objective, seeds: range) -> dict[str, Any]:
    """Returns means and standard deviations over seeds, of each setting's score and the best setting's metrics.

    `metrics` is evaluation set -> metric -> `mean`, `std` and `interval`. With one seed, `interval` is the interval of
    that run's score, or None. `failures` are messages. `stopped` are the settings that were stopped early, and their
    `scores` in training. `seeds`: see [`choose_setting`].
    """
    set_name, metric, _ = objective
    settings = []
    for setting in _list_settings(runs):
        if complete := [run for run in runs if run.is_complete and run.setting == setting]:
            scores = [run.score(set_name, metric) for run in complete]
            spread = _summarize_seeds(complete, set_name, metric)
            settings.append({**setting, "seeds": len(scores), "scores": scores, **spread})
    best = choose_setting(runs, objective, seeds)
    best_runs = [run for run in runs if run.is_complete and run.setting == best]
    metrics = {
        name: {m: _summarize_seeds(best_runs, name, m) for m in values}
        for name, values in best_runs[0].results["metrics"].items()
    }
    stopped = [run for run in runs if "stopped_early" in run.results]
    return {
        "chosen_by": f"{set_name}_{metric}",
        "settings": settings,
        "best_setting": next(row for row in settings if best == {name: row[name] for name in best}),
        "metrics": metrics,
        "failures": [run.results["failure"] for run in runs if "failure" in run.results],
        **({"stopped": [{**run.setting, "scores": run.results["evaluations"]} for run in stopped]} if stopped else {}),
    }


def choose_setting(runs: Sequence[FinishedRun], objective: Objective, seeds: range) -> dict[str, Any]:
    """Returns the setting with the best mean over `seeds`, which every setting has. Empty: no run is complete.

    A setting with an incomplete run ranks below settings whose runs are all complete. A setting with an undefined
    score ranks last.
    """
    compared = [run for run in runs if run.seed in seeds]

    def rank(setting: Mapping[str, Any]) -> tuple[bool, bool, float]:
        ours = [run for run in compared if run.setting == setting]
        scores = [run.score(objective.set_name, objective.metric) for run in ours if run.is_complete]
        score = float(np.mean(scores)) if objective.higher_is_better else -float(np.mean(scores))
        return bool(np.isfinite(score)), all(run.is_complete for run in ours), float(np.nan_to_num(score))

    return max(_list_settings([run for run in compared if run.is_complete]), key=rank, default={})


def best_run(runs: Sequence[FinishedRun], objective: Objective) -> FinishedRun:
    """Returns the best run. If several runs are equal, returns the first run with weights.

    If no run is complete, returns any run.
    """

    def rank(run: FinishedRun) -> tuple[bool, float, bool]:
        score = run.score(objective.set_name, objective.metric)
        score = score if objective.higher_is_better else -score
        return run.is_complete, float(np.nan_to_num(score, nan=-np.inf)), run.has_weights

    return max(runs, key=rank)


def _list_settings(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Returns the different settings, in order."""
    return [run.setting for index, run in enumerate(runs) if run.setting not in [r.setting for r in runs[:index]]]


def _summarize_seeds(runs: list[FinishedRun], set_name: str, metric: str) -> dict[str, Any]:
    values = [run.score(set_name, metric) for run in runs]
    return {
        "mean": float(np.mean(values)),
        # The standard deviation of a sample, undefined for one seed.
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "interval": estimate_mean_interval(values) if len(values) > 1 else runs[0].interval(set_name, metric),
    }
