"""The results of a sweep: its finished runs, the best of them, and the summary of all settings."""

from collections.abc import Mapping, Sequence
from filecmp import cmp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers.trainer import TRAINER_STATE_NAME

from snugbert.reports.intervals import Interval, estimate_mean_interval
from snugbert.reports.results import RESULTS, read_results
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import list_run_folders
from snugbert.trainers.finetuning.suggestions import list_evaluations
from snugbert.trainers.run.run_settings import read_state


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
        weights, output_dir = "model*.safetensors", self.folder.parents[1]
        if any(self.folder.glob(weights)):
            return True
        own, moved = (folder / TRAINER_STATE_NAME for folder in (self.folder, output_dir))
        return any(output_dir.glob(weights)) and own.exists() and moved.exists() and cmp(own, moved, shallow=False)

    def score(self, metric: str, set_name: str) -> float:
        """Returns a metric. NaN if it is undefined (the correlation of a constant) or the run is not complete."""
        value = self.results.get("metrics", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value

    def interval(self, metric: str, set_name: str) -> Interval | None:
        """Returns the interval of a metric. None if the metric has no interval."""
        return self.results.get("intervals", {}).get(set_name, {}).get(metric)

    def evaluations(self, metric: str, set_name: str) -> list[float]:
        """Returns the metric after each evaluation in training."""
        if self.is_complete:
            return list_evaluations(read_state(self.folder).log_history, f"{set_name}_{metric}")
        return self.results["evaluations"]


def read_runs(output_dir: Path) -> list[FinishedRun]:
    """Returns the finished runs in the output folder of a sweep, without their settings. The newest is the last."""
    folders = [folder for folder in list_run_folders(output_dir) if (folder / RESULTS).exists()]
    folders.sort(key=lambda folder: (folder / RESULTS).stat().st_mtime_ns)
    return [FinishedRun({}, 0, folder, read_results(folder / RESULTS)) for folder in folders]


def summarize_sweep(runs: list[FinishedRun], prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns means and standard deviations over seeds, of each setting's score and the best setting's metrics.

    `metrics` is evaluation set -> metric -> `mean`, `std` and `interval`. With one seed, `interval` is the interval of
    that run's score, or None. `failures` are messages. `stopped` are the settings that were stopped early, and their
    `scores` in training.
    """
    set_name, metric = selection_metric(prepared, args)
    settings = []
    for setting in _list_settings(runs):
        setting_runs = [run for run in runs if run.is_complete and run.setting == setting]
        if setting_runs:
            scores = [run.score(metric, set_name) for run in setting_runs]
            spread = _summarize_seeds(setting_runs, metric, set_name)
            settings.append({**setting, "seeds": len(scores), "scores": scores, **spread})
    best = choose_setting(runs, prepared, args)
    best_runs = [run for run in runs if run.is_complete and run.setting == best]
    metrics = {
        name: {m: _summarize_seeds(best_runs, m, name) for m in values}
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


def choose_setting(runs: Sequence[FinishedRun], prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns the setting with the best mean over the seeds that every setting has. Empty: no run is complete.

    A setting with an incomplete run ranks below settings whose runs are all complete. A setting with an undefined
    score ranks last.
    """
    set_name, metric = selection_metric(prepared, args)
    compared = [run for run in runs if run.seed < args.seed + args.seeds]
    sign = 1 if args.greater_is_better else -1

    def rank(setting: Mapping[str, Any]) -> tuple[bool, bool, float]:
        seeds = [run for run in compared if run.setting == setting]
        score = sign * float(np.mean([run.score(metric, set_name) for run in seeds if run.is_complete]))
        return bool(np.isfinite(score)), all(run.is_complete for run in seeds), float(np.nan_to_num(score))

    return max(_list_settings([run for run in compared if run.is_complete]), key=rank, default={})


def best_run(runs: Sequence[FinishedRun], prepared: PreparedTask, args: FineTuningArguments) -> FinishedRun:
    """Returns the best run. If several runs are equal, returns the first run with weights.

    If no run is complete, returns any run.
    """
    set_name, metric = selection_metric(prepared, args)
    sign = 1 if args.greater_is_better else -1

    def rank(run: FinishedRun) -> tuple[bool, float, bool]:
        score = float(np.nan_to_num(sign * run.score(metric, set_name), nan=-np.inf))
        return run.is_complete, score, run.has_weights

    return max(runs, key=rank)


def selection_metric(prepared: PreparedTask, args: FineTuningArguments) -> tuple[str, str]:
    """Returns the evaluation set and the metric that select the best run."""
    assert prepared.validation_set is not None  # see `choose_metric`
    return prepared.validation_set.name, str(args.metric_for_best_model)


def _list_settings(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Returns the different settings, in order."""
    return [run.setting for index, run in enumerate(runs) if run.setting not in [r.setting for r in runs[:index]]]


def _summarize_seeds(runs: list[FinishedRun], metric: str, set_name: str) -> dict[str, Any]:
    values = [run.score(metric, set_name) for run in runs]
    return {
        "mean": float(np.mean(values)),
        # The standard deviation of a sample, undefined for one seed.
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "interval": estimate_mean_interval(values) if len(values) > 1 else runs[0].interval(metric, set_name),
    }
