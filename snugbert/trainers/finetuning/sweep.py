"""Runs a task with several settings and seeds, and keeps the run that is best on the validation examples.

Each run has a folder in OUTPUT/runs. Finished runs are not repeated, so an interrupted sweep continues with the run
that was interrupted. Only the best run keeps its weights. At the end, its files move to OUTPUT.
"""

import copy
import dataclasses
import itertools
import json
import logging
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import HfApi

from snugbert.errors import InputError
from snugbert.files import read_json, write_atomically
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import Interval, estimate_mean_interval
from snugbert.reports.results import RESULTS, RunResults, format_summary, write_results
from snugbert.reports.score_tables import format_with_interval, sweep_tables
from snugbert.trainers.finetuning.fine_tune import fine_tune
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_dry_run import run_dry_fine_tuning
from snugbert.trainers.finetuning.finetuning_guidance import describe_wide_intervals
from snugbert.trainers.finetuning.model_selection import choose_metric
from snugbert.trainers.finetuning.plan import (
    PLAN,
    check_plan,
    digest_examples,
    list_run_folders,
    make_plan,
    prepare_folders,
)
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.processes import wait_for_all
from snugbert.trainers.run_checkpoints import list_checkpoints
from snugbert.trainers.run_lock import LOCK_NAME
from snugbert.trainers.stopping import DivergedError
from snugbert.trainers.uploads import NOT_UPLOADED

logger = logging.getLogger(__name__)

# Devlin et al. (2018), appendix A.3.
BATCH_SIZES = (16, 32)
LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
EPOCHS = (2.0, 3.0, 4.0)

WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)


class Setting(NamedTuple):
    """The hyperparameters that differ between the runs of a sweep, without the seed."""

    batch_size: int  # over all processes and accumulation steps
    learning_rate: float
    epochs: float


class FinishedRun(NamedTuple):
    """A run that finished or diverged."""

    setting: Setting
    folder: Path
    results: dict[str, Any]  # [`RunResults`], or the message of a diverged run as "failure"

    @property
    def failed(self) -> bool:
        """Whether the run diverged."""
        return "failure" in self.results

    def score(self, metric: str, set_name: str) -> float:
        """Returns a metric. NaN if it is undefined (the correlation of a constant) or the run diverged."""
        value = self.results.get("metrics", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value

    def interval(self, metric: str, set_name: str) -> Interval | None:
        """Returns the interval of a metric. None: there is none."""
        return self.results.get("intervals", {}).get(set_name, {}).get(metric)


class PlannedRun(NamedTuple):
    """One run of a sweep, finished or not."""

    setting: Setting
    seed: int
    output_dir: Path  # of the sweep

    @property
    def name(self) -> str:
        """Name of the folder."""
        batch_size, learning_rate, epochs = self.setting
        return f"batch-{batch_size}_rate-{learning_rate:g}_epochs-{epochs:g}_seed-{self.seed}"

    @property
    def folder(self) -> Path:
        """Output folder of the run."""
        return self.output_dir / "runs" / self.name

    @property
    def is_finished(self) -> bool:
        """Whether the run ended."""
        return (self.folder / RESULTS).exists()

    @property
    def finished(self) -> FinishedRun:
        """The finished run."""
        return FinishedRun(self.setting, self.folder, read_json(self.folder / RESULTS))


def run_task(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Fine-tunes once, or runs the sweep that `sweep` and `seeds` define, and prints a summary.

    Returns:
        With `dry_run`, the expected seconds. Otherwise 0.

    Raises:
        InputError: see [`fine_tune`] and [`run_sweep`].
    """
    if args.sweeps:
        return run_sweep(prepared, args)
    if args.dry_run:
        return run_dry_fine_tuning(prepared, args)
    results = fine_tune(prepared, args)
    if args.should_save:
        print(f"\n{format_summary(prepared.facts, results, Path(str(args.output_dir)))}", flush=True)
    return 0.0


def run_sweep(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Runs all settings with all seeds, and keeps the model that is best on the validation examples.

    Returns:
        See [`run_task`].

    Raises:
        InputError: see [`fine_tune`] and [`check_plan`]; a batch size of the grid does not fit the processes; or every
            run diverged.
    """
    epochs = args.num_train_epochs
    args, plan = plan_sweep(prepared, args)
    if args.num_train_epochs > epochs:
        logger.info("training for %d epochs, to take at least %d steps", args.num_train_epochs, args.min_steps)
    output_dir, (set_name, metric) = Path(str(args.output_dir)), _selection_metric(prepared, args)
    seeds = range(args.seed, args.seed + args.seeds)
    runs = [PlannedRun(setting, seed, output_dir) for setting, seed in itertools.product(list_settings(args), seeds)]
    if args.dry_run:
        continues = check_plan(plan, args, [output_dir])
        left = [_run_arguments(args, run) for run in runs if not (continues and run.is_finished)]
        return run_dry_fine_tuning(prepared, args, left) if left else 0.0
    prepare_folders(plan, args, [output_dir])
    distillation = prepared.distillation
    if distillation is not None:  # the comparison is made once, at the end
        prepared = dataclasses.replace(prepared, distillation=dataclasses.replace(distillation, compare=None))
    for index, run in enumerate(runs, start=1):
        if not run.is_finished:
            logger.info("run %d of %d: %s", index, len(runs), run.name)
            try:
                results = fine_tune(prepared, _run_arguments(args, run))
                interval = results.get("intervals", {}).get(set_name, {}).get(metric)
                score = format_with_interval(
                    metric, results["metrics"][set_name].get(metric), interval, prepared.task.perfect_score
                )
                logger.info("%s: %s %s", run.name, metric, score)
            except DivergedError as error:
                logger.warning("%s: %s", run.name, error)
                if args.should_save:
                    _write_failure(run, str(error))
            wait_for_all()  # the main process writes the results, every process reads them
            if args.should_save:
                # A continued sweep may have finished runs after this one.
                _keep_best_weights(output_dir, _best([r.finished for r in runs if r.is_finished], prepared, args))
    compare = None if distillation is None or distillation.compare is None else distillation.compare()
    if args.should_save:
        _finish(prepared, args, [run.finished for run in runs], compare)
    return 0.0


def plan_sweep(prepared: PreparedTask, args: FineTuningArguments) -> tuple[FineTuningArguments, dict[str, Any]]:
    """Returns the arguments with the number of epochs, and the plan of the output folder.

    Raises:
        InputError: see [`choose_metric`]; the metric is the loss; or there are no training examples.
    """
    choose_metric(prepared, args)
    if args.metric_for_best_model == "loss":
        main_metric = prepared.task.main_metric
        raise InputError(f"--metric_for_best_model: a sweep needs a metric such as {main_metric}, not the loss.")
    if prepared.train_features is None:
        raise InputError("--sweep and --seeds need training examples.")
    args = lengthen(args, len(prepared.train_features))
    return args, {**make_plan(prepared.model_args, args, prepared.settings), **digest_examples(prepared)}


def lengthen(args: FineTuningArguments, examples: int) -> FineTuningArguments:
    """Returns arguments with enough epochs for `min_steps`."""
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    needed = math.ceil(args.min_steps / max(1, math.ceil(examples / batch)))
    if needed > args.num_train_epochs:
        args = copy.copy(args)
        args.num_train_epochs = float(needed)
    return args


def list_settings(args: FineTuningArguments) -> list[Setting]:
    """Returns the settings to run: the paper's grid, or the given one.

    Raises:
        InputError: a batch size of the grid is not a multiple of processes times accumulation steps.
    """
    divisor = args.world_size * args.gradient_accumulation_steps
    if args.sweep != "paper":
        return [Setting(args.per_device_train_batch_size * divisor, args.learning_rate, args.num_train_epochs)]
    for batch_size in BATCH_SIZES:
        if batch_size % divisor:
            raise InputError(
                f"--sweep paper: the batch size {batch_size} is not divisible by the number of processes "
                f"({args.world_size}) times --gradient_accumulation_steps ({args.gradient_accumulation_steps})."
            )
    return list(itertools.starmap(Setting, itertools.product(BATCH_SIZES, LEARNING_RATES, EPOCHS)))


def _run_arguments(args: FineTuningArguments, run: PlannedRun) -> FineTuningArguments:
    run_args = copy.copy(args)
    divisor = args.world_size * args.gradient_accumulation_steps
    run_args.per_device_train_batch_size = run.setting.batch_size // divisor
    run_args.learning_rate, run_args.num_train_epochs = run.setting.learning_rate, run.setting.epochs
    run_args.seed, run_args.output_dir = run.seed, str(run.folder)
    run_args.run_name = f"{args.run_name or Path(str(args.output_dir)).resolve().name}-{run.name}"
    # The folder was checked: an interrupted run in it belongs to this sweep.
    run_args.overwrite_output_dir = True
    run_args.resume_from_checkpoint = "true"
    run_args.push_to_hub, run_args.sweep, run_args.seeds = False, None, 1
    if not run_args.load_best_model_at_end:
        run_args.save_strategy = "no"  # type: ignore[assignment]
    return run_args


def _write_failure(run: PlannedRun, message: str) -> None:
    """Marks a run as diverged, so that it is not repeated."""
    run.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(run.folder / RESULTS, json.dumps({"failure": f"{run.name}: {message}"}))


def _finish(
    prepared: PreparedTask,
    args: FineTuningArguments,
    runs: list[FinishedRun],
    compare: Callable[[Mapping[str, Any]], list[dict[str, Any]]] | None,
) -> None:
    """Moves the best run's files to the output folder, writes results and card, prints the tables, and pushes."""
    output_dir = Path(str(args.output_dir))
    best = _best(runs, prepared, args)
    if best.failed:
        raise DivergedError(f"All runs of the sweep failed. The first error: {runs[0].results['failure']}")
    summary = summarize_sweep(runs, prepared, args)
    mean_intervals = {
        name: {m: row["interval"] for m, row in rows.items()} for name, rows in summary["metrics"].items()
    }
    if summary["best_setting"]["seeds"] > 1:  # a single run gave its own warning
        for sentence in describe_wide_intervals(prepared, mean_intervals, "Add seeds (--seeds)."):
            logger.warning("mean over the seeds, %s", sentence)
    tables = sweep_tables(summary, Setting._fields, prepared.task.perfect_score)
    tables += f"\n\nThe model is from the best run, {best.folder.name}."
    _keep_best_weights(output_dir, best)  # again, because an earlier command may have stopped before this step
    _move_best_run(output_dir, best)
    repository = None
    if args.push_to_hub:
        name = args.hub_model_id or output_dir.resolve().name
        hub = HfApi(token=args.hub_token)
        repository = hub.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
    results: RunResults = {**best.results, "sweep": summary}  # type: ignore[typeddict-item]
    if compare is not None:
        results["comparison"] = compare(results)
    card_name, base_model = repository or args.hub_model_id, prepared.model_args.model_name_or_path
    write_finetuning_card(output_dir, prepared.facts, results, base_model, card_name, tables)
    write_results(output_dir, results, tables)
    print(f"\n{tables}\n\n{format_summary(prepared.facts, results, output_dir)}", flush=True)
    if repository is not None:
        hub.upload_folder(
            repo_id=repository,
            folder_path=output_dir,
            ignore_patterns=[*NOT_UPLOADED, "runs/*", PLAN],
            commit_message="Best run of a sweep",
        )


def _keep_best_weights(output_dir: Path, best: FinishedRun) -> None:
    """Removes the weights of all other finished runs, and all checkpoints of finished runs."""
    for folder in list_run_folders(output_dir):
        if (folder / RESULTS).exists():
            weights = [file for file in folder.iterdir() if WEIGHTS.fullmatch(file.name)]
            for file in weights if folder.name != best.folder.name else []:
                file.unlink()
            for checkpoint in list_checkpoints(folder):
                shutil.rmtree(checkpoint)


def _move_best_run(output_dir: Path, best: FinishedRun) -> None:
    """Moves the best run's weights to the output folder, and copies its small files."""
    for path in best.folder.iterdir():
        if path.suffix == ".safetensors":
            path.replace(output_dir / path.name)
        elif path.is_file() and path.name not in (RESULTS, "results.md", LOCK_NAME):
            shutil.copy2(path, output_dir / path.name)


# --- results ----------------------------------------------------------------------------------------------------


def summarize_sweep(runs: list[FinishedRun], prepared: PreparedTask, args: FineTuningArguments) -> dict[str, Any]:
    """Returns mean and standard deviation over seeds: the score of each setting, all metrics of the best setting.

    Returns:
        `chosen_by`: the metric that selects the best setting, such as "eval_accuracy"; `settings`: for each setting
        its fields, `seeds`, `scores`, `mean`, `std` and `interval`; `best_setting`: one of them; `metrics`: evaluation
        set -> metric -> `mean`, `std` and `interval` of the best setting; `failures`: messages of diverged runs. The
        interval of one seed is the run's own. It is None if there is none.
    """
    set_name, metric = _selection_metric(prepared, args)
    settings = []
    failures = [run.results["failure"] for run in runs if run.failed]
    runs = [run for run in runs if not run.failed]
    for setting in dict.fromkeys(run.setting for run in runs):
        setting_runs = [run for run in runs if run.setting == setting]
        scores = [run.score(metric, set_name) for run in setting_runs]
        spread = _summarize_seeds(setting_runs, metric, set_name)
        settings.append({**setting._asdict(), "seeds": len(scores), "scores": scores, **spread})
    sign = 1 if args.greater_is_better else -1
    best = max(settings, key=lambda row: np.nan_to_num(sign * row["mean"], nan=-np.inf))
    best_runs = [run for run in runs if run.setting == Setting(*(best[name] for name in Setting._fields))]
    metrics = {
        name: {m: _summarize_seeds(best_runs, m, name) for m in values}
        for name, values in best_runs[0].results["metrics"].items()
    }
    return {
        "chosen_by": f"{set_name}_{metric}",
        "settings": settings,
        "best_setting": best,
        "metrics": metrics,
        "failures": failures,
    }


def _summarize_seeds(runs: list[FinishedRun], metric: str, set_name: str) -> dict[str, Any]:
    values = [run.score(metric, set_name) for run in runs]
    return {
        "mean": float(np.mean(values)),
        # The standard deviation of a sample, undefined for one seed.
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "interval": estimate_mean_interval(values) if len(values) > 1 else runs[0].interval(metric, set_name),
    }


def _selection_metric(prepared: PreparedTask, args: FineTuningArguments) -> tuple[str, str]:
    """Returns the evaluation set and the metric by which the best run is selected."""
    assert prepared.validation_set is not None  # see `choose_metric`
    return prepared.validation_set.name, str(args.metric_for_best_model)


def _best(runs: list[FinishedRun], prepared: PreparedTask, args: FineTuningArguments) -> FinishedRun:
    set_name, metric = _selection_metric(prepared, args)
    sign = 1 if args.greater_is_better else -1

    def rank(run: FinishedRun) -> tuple[bool, float]:
        return not run.failed, np.nan_to_num(sign * run.score(metric, set_name), nan=-np.inf)

    return max(runs, key=rank)
