"""Runs a task with several settings and seeds, and keeps the run with the best score on the validation examples.

Each run has a folder in OUTPUT/runs, named after its setting. Finished runs are not repeated, so an interrupted sweep
continues with the interrupted run. Only the best run keeps its weights. At the end, its files are copied to OUTPUT.

Optuna suggests each setting (`ask`) and gets its score (`tell`). Its journal in OUTPUT contains all settings and
scores. Trainer's own hook for Optuna, `hyperparameter_search`, does not fit: its trials share one output folder and
one seed, and an interrupted search cannot resume.
"""

import copy
import functools
import gc
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from huggingface_hub import HfApi
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState
from transformers import TrainerCallback

from snugbert.errors import InputError, format_count
from snugbert.files import LOCK_NAME, dump_json, hash_json, write_atomically
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.intervals import estimate_mean_interval
from snugbert.reports.results import RESULTS, format_summary, read_results, write_results
from snugbert.reports.score_tables import sweep_tables
from snugbert.trainers.dry_run import as_temporary
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import (
    JOURNAL,
    PLAN,
    check_plan,
    list_run_folders,
    make_plan,
    prepare_folder,
)
from snugbert.trainers.finetuning.settled_arguments import settle_arguments, total_batch_size
from snugbert.trainers.finetuning.single_run import fine_tune, make_trainer, run_dry_fine_tuning
from snugbert.trainers.finetuning.sweep_file import BATCH_SIZE, SweepFile, read_value
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_uploads import NOT_UPLOADED
from snugbert.trainers.run.stopping import DivergedError

logger = logging.getLogger(__name__)

OTHER_FLAGS = re.compile(r"[\w.+-]{0,160}", re.ASCII)  # in a folder's name. File systems allow 255 bytes
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)
# Every table has columns for these flags.
IN_COLUMNS = (BATCH_SIZE, "per_device_train_batch_size", "learning_rate", "num_train_epochs")


def run_sweep(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Runs all settings with all seeds, and keeps the model that is best on the validation examples.

    In a dry run, returns the expected seconds of the sweep. Otherwise, returns 0.
    """
    sweep = Sweep(prepared, args)
    plan = make_plan(prepared, args, sweep.search)
    (continues,) = broadcast_object_list([not args.overwrite_output_dir and check_plan(plan, sweep.output_dir)])
    if not continues:
        sweep.check_values()
    if args.dry_run:  # measures the first run
        first = sweep.plan_run(Suggestions(sweep.search, args.seed, True, None).ask(0), args.seed)
        finished = read_runs(sweep.output_dir) if continues else []
        left = max(0, sweep.total - len(finished))
        budget = max(0, 3600 * sweep.hours - sum(run.results["seconds"] for run in finished))
        return run_dry_fine_tuning(prepared, first.args, None, left, budget)
    prepare_folder(plan, sweep.output_dir, continues)
    runs = sweep.run_all()
    if args.should_save:
        sweep.finish(runs)
    return 0.0


# --- runs -----------------------------------------------------------------------------------------------------------


class Objective(NamedTuple):
    """The score that selects the best run."""

    set_name: str  # name of the validation examples
    metric: str
    higher_is_better: bool


class SweepRun(NamedTuple):
    """One run of a sweep: planned, or finished, which includes failed runs and runs that were stopped early."""

    setting: dict[str, Any]  # columns of every table, and other flags that vary, for reports
    seed: int
    folder: Path  # named after the setting
    # Empty: not finished. Otherwise [`RunResults`], or "evaluations" with either "failure" (the message of a failed
    # run) or "stopped_early". All have "seconds", the time that the run took.
    results: dict[str, Any]
    args: Any = None  # arguments of a planned run

    def read(self) -> "SweepRun":
        """Returns the run with its results. Every process must call this."""
        wait_for_all()  # the first process may still be removing weights
        file = self.folder / RESULTS
        (results,) = broadcast_object_list([read_results(file) if file.exists() else {}])
        return self._replace(results=results)

    @property
    def is_complete(self) -> bool:
        """Whether the run neither failed nor was stopped early."""
        return "metrics" in self.results

    def score(self, set_name: str, metric: str) -> float:
        """Returns a metric. NaN if it is undefined (the correlation of a constant) or the run is not complete."""
        value = self.results.get("metrics", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value

    def rank(self, objective: Objective) -> float:
        """Returns the score as a number that is higher for better runs, and lowest without a score."""
        score = self.score(objective.set_name, objective.metric)
        return float(np.nan_to_num(score if objective.higher_is_better else -score, nan=-np.inf))


def read_runs(output_dir: Path) -> list[SweepRun]:
    """Returns the finished runs in the output folder of a sweep, without their settings. The newest run is last."""
    files = [file for folder in list_run_folders(output_dir) if (file := folder / RESULTS).exists()]
    files.sort(key=lambda file: file.stat().st_mtime_ns)
    return [SweepRun({}, 0, file.parent, read_results(file)) for file in files]


def plan_run(args: FineTuningArguments, examples: int, values: Mapping[str, Any], seed: int) -> SweepRun:
    """Returns the run with the `values` of the flags that vary. `examples` is the number of training examples."""
    run_args = copy.copy(args)
    for flag, value in values.items():
        if value is not None and flag != BATCH_SIZE:
            setattr(run_args, flag, read_value(flag, value, type(args)))
    if BATCH_SIZE in values:
        divisor = args.world_size * args.gradient_accumulation_steps
        run_args.per_device_train_batch_size, rest = divmod(values[BATCH_SIZE], divisor)
        if rest:
            raise InputError(
                f"--sweep {args.sweep}: the batch size {values[BATCH_SIZE]} is not divisible by {divisor}, the number "
                "of processes times --gradient_accumulation_steps. Use a multiple of this number."
            )
    batch, rate = total_batch_size(run_args), run_args.learning_rate
    steps = max(1, math.ceil(examples / batch))  # steps of an epoch
    run_args.num_train_epochs = max(run_args.num_train_epochs, float(math.ceil(args.min_steps / steps)))
    other = {flag: value for flag, value in values.items() if flag not in IN_COLUMNS}
    names = "".join(f"_{flag}-{value}" for flag, value in other.items())
    if not OTHER_FLAGS.fullmatch(names):
        names = f"_{hash_json(names)[:8]}"
    output_dir = Path(str(args.output_dir))
    name = f"batch-{batch}_rate-{rate:g}_epochs-{run_args.num_train_epochs:g}{names}_seed-{seed}"
    folder = output_dir / "runs" / name
    run_args.seed, run_args.output_dir = seed, str(folder)
    run_args.run_name = f"{args.run_name or output_dir.resolve().name}-{folder.name}"
    # The folder was checked: an interrupted run in it belongs to this sweep.
    run_args.overwrite_output_dir = True
    run_args.resume_from_checkpoint = "true"
    run_args.push_to_hub, run_args.sweep, run_args.seeds, run_args.search = False, None, 1, None
    if not run_args.load_best_model_at_end:
        run_args.save_strategy = "no"  # type: ignore[assignment]
    epochs = run_args.num_train_epochs if run_args.max_steps <= 0 else float(f"{run_args.max_steps / steps:.3g}")
    setting = {"batch_size": batch, "learning_rate": rate, "epochs": epochs} | other
    return SweepRun(setting, seed, folder, {}, run_args)


# --- suggested settings -------------------------------------------------------------------------------------------


class Suggestions:
    """The settings of a sweep in order. The main process chooses the settings and sends them to all processes.

    Args:
        journal: the file with earlier settings and their scores. None: a dry run, which writes no file.
    """

    def __init__(self, search: SweepFile, seed: int, higher_is_better: bool, journal: Path | None):
        self._search, self._seed = search, seed
        self._study: Any = None  # only in the main process
        self._trial: Any = None  # the trial of the last setting
        if PartialState().is_main_process:
            if journal is not None:
                repair_journal(journal)
            optuna.logging.set_verbosity(optuna.logging.WARNING)  # the sweep logs its runs
            self._study = optuna.create_study(
                study_name="sweep",
                storage=None if journal is None else JournalStorage(JournalFileBackend(str(journal))),
                # By default, MedianPruner never stops the first five runs.
                pruner=optuna.pruners.MedianPruner() if search.prune else optuna.pruners.NopPruner(),
                direction="maximize" if higher_is_better else "minimize",
                load_if_exists=True,
            )

    def ask(self, number: int) -> dict[str, Any]:
        """Returns the setting `number`. Every process must call this once for each number, in order.

        The seed of a setting depends on its number, so an interrupted sweep continues with the same settings.
        """
        setting: dict[str, Any] = {}
        if self._study is not None:
            self._study.sampler = self._make_sampler(number)
            trials = self._study.trials
            known = number < len(trials)
            self._trial = Trial(self._study, trials[number]._trial_id) if known else self._study.ask()
            for flag, values in self._search.settings.items():
                value = self._trial._suggest(flag, values)  # from the journal, or a new value as in `Study.ask`
                if isinstance(values, FloatDistribution):
                    # Few digits, because the value is in tables and in the name of a folder.
                    value = min(max(float(f"{value:.4g}"), values.low), values.high)
                setting[flag] = value
        (setting,) = broadcast_object_list([setting])
        return setting

    def is_bad(self, evaluations: list[float]) -> bool:
        """Returns whether to stop the last run, from its scores so far. Every process must call this."""
        bad = False
        trial = None if self._study is None else self._study.trials[self._trial.number]
        if trial is not None and not trial.state.is_finished():  # the folder of a finished run may have been removed
            for step in range(len(trial.intermediate_values), len(evaluations)):
                self._trial.report(evaluations[step], step)
            bad = self._trial.should_prune()
        (bad,) = broadcast_object_list([bad])
        return bad

    def tell(self, score: float) -> None:
        """Sends the result of the last setting to Optuna. A NaN score: the run was stopped early, or it failed."""
        if self._study is not None:
            # TPE ranks pruned runs below all complete runs.
            result = (score, TrialState.COMPLETE) if math.isfinite(score) else (None, TrialState.PRUNED)
            self._study.tell(self._trial, *result, skip_if_finished=True)

    def _make_sampler(self, number: int) -> optuna.samplers.BaseSampler:
        if self._search.method == "grid":
            settings = {flag: values.choices for flag, values in self._search.settings.items()}
            return Grid(settings, seed=self._seed)
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        return samplers[self._search.method](seed=seed)


class Grid(optuna.samplers.GridSampler):
    """Optuna's grid, but it does not stop `Study.optimize` after the last setting. Sweeps do not call that method."""

    def after_trial(self, *args: Any) -> None:
        """Does nothing."""


def repair_journal(journal: Path) -> None:
    """Removes what a kill or a full disk left: an unfinished line, and Optuna's lock. The output folder is locked."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists():
        os.truncate(journal, journal.read_bytes().rfind(b"\n") + 1)


class StopBadRuns(TrainerCallback):
    """After each evaluation except the last, stops a run that is worse than earlier runs."""

    def __init__(self, suggestions: Suggestions, metric: str):
        self._suggestions, self._metric = suggestions, metric
        self.evaluations: list[float] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each evaluation. In a resumed run, the log includes earlier evaluations."""
        self.evaluations = [line[self._metric] for line in state.log_history if self._metric in line]
        if self._suggestions.is_bad(self.evaluations) and state.global_step < state.max_steps:
            raise optuna.TrialPruned


# --- a sweep --------------------------------------------------------------------------------------------------------


class Sweep:
    """A sweep over settings and seeds in an output folder. Its arguments are checked once, when it is made."""

    def __init__(self, prepared: PreparedTask, args: FineTuningArguments):
        settle_arguments(prepared, args)
        if prepared.train_features is None or args.metric_for_best_model == "loss":
            raise InputError("--sweep and --seeds need training examples, and a metric of the task instead of loss.")
        assert args.search is not None and prepared.validation_set is not None  # see `settle_arguments`
        if args.search.prune and args.eval_strategy == "no":
            raise InputError(
                "--eval_strategy no: `prune` in the file of --sweep needs evaluations. Use epoch or steps."
            )
        self.prepared, self.args, self.search = prepared, args, args.search
        self.plan_run = functools.partial(plan_run, args, len(prepared.train_features))
        self.output_dir = Path(str(args.output_dir))
        self.objective = Objective(
            prepared.validation_set.name, str(args.metric_for_best_model), bool(args.greater_is_better)
        )
        self.seeds = range(args.seed, args.seed + args.seeds)
        self.hours = math.inf if self.search.hours is None else self.search.hours
        self.total = self.search.size * args.seeds  # if no run is stopped early

    def check_values(self) -> None:
        """Plans a run with each value of each flag, so that a value that does not fit ends the sweep at once.

        The first run has the first value of each flag, and the last run the last value. Ranges are tried at both ends
        only. The flags `IN_COLUMNS` fit every model. Other flags are checked by making a trainer.
        """
        settings = self.search.settings.items()
        varied = {flag: getattr(each, "choices", None) or (each.low, each.high) for flag, each in settings}
        for number in range(max(map(len, varied.values()), default=0)):
            setting = {flag: values[min(number, len(values) - 1)] for flag, values in varied.items()}
            run = self.plan_run(setting, self.args.seed)
            if setting.keys() - IN_COLUMNS:
                with tempfile.TemporaryDirectory() as folder:
                    make_trainer(self.prepared, as_temporary(run.args, folder)).check_optimizer(1)
                gc.collect()  # a dry run measures the memory

    def run_all(self) -> list[SweepRun]:
        """Runs the settings with all seeds. Returns the finished runs."""
        set_name, metric, higher_is_better = self.objective
        suggestions = Suggestions(self.search, self.args.seed, higher_is_better, self.output_dir / JOURNAL)
        finished: dict[Path, SweepRun] = {}  # a setting may be suggested twice
        for number in range(self.search.size):
            values = suggestions.ask(number)
            seconds = sum(run.results["seconds"] for run in finished.values())
            if seconds > 3600 * self.hours and not self.plan_run(values, self.args.seed).read().results:
                logger.info("stopped after %g hours and %s", self.hours, format_count(number, "setting"))
                break
            for seed in self.seeds:
                run = self.plan_run(values, seed)
                # Optuna gets only the score of the first seed, so that a sweep with more seeds tries the same
                # settings. If the first run is stopped early, the other seeds do not run.
                is_first = seed == self.args.seed
                prunes = is_first and self.search.prune
                callbacks = [StopBadRuns(suggestions, f"{set_name}_{metric}")] if prunes else []
                finished[run.folder] = self._run(run, len(finished) + 1, callbacks)
                if is_first:
                    suggestions.tell(finished[run.folder].score(set_name, metric))
                if "stopped_early" in finished[run.folder].results:
                    break
        return [*finished.values()]

    def _run(self, run: SweepRun, number: int, callbacks: list[StopBadRuns]) -> SweepRun:
        """Returns the finished run. If `run` is not finished, runs it. Removes all weights except the best."""
        if not run.read().results:
            logger.info("run %d of %d: %s", number, self.total, run.folder.name)
            self._start(run, callbacks)
        if self.args.should_save:
            self._keep_best_weights()
        return run.read()

    def _keep_best_weights(self) -> None:
        """Removes the weights of all finished runs but the best, and all checkpoints of finished runs.

        An earlier command may have been killed here, and may have finished runs that follow the current run.
        """
        runs = read_runs(self.output_dir)
        best = best_run(runs, self.objective)
        for run in runs:
            weights = [file for file in run.folder.iterdir() if WEIGHTS.fullmatch(file.name)]
            for file in weights if run is not best else []:
                file.unlink()
            for checkpoint in list_checkpoints(run.folder):
                shutil.rmtree(checkpoint)

    def _start(self, run: SweepRun, callbacks: list[StopBadRuns]) -> None:
        """Runs until results are written. The results of a failed run also mark it as finished."""
        start = time.monotonic()
        failure: dict[str, Any] = {}
        try:
            fine_tune(self.prepared, run.args, callbacks)
        except (DivergedError, torch.OutOfMemoryError) as error:
            diverged = isinstance(error, DivergedError)
            # Other processes wait for this process. If no run is complete yet, another program may use the memory.
            alone = self.args.world_size == 1
            if not diverged and not (alone and any(each.is_complete for each in read_runs(self.output_dir))):
                raise
            failure["failure"] = f"{run.folder.name}: {error if diverged else 'out of memory'}"
            logger.warning("%s. The sweep continues. To repeat this run, remove its folder.", failure["failure"])
        except optuna.TrialPruned:
            failure["stopped_early"] = True
            logger.info("%s: stopped early, because it is worse than the median", run.folder.name)
        gc.collect()  # an exception keeps the model in memory
        if failure and self.args.should_save:
            failure["evaluations"] = [score for callback in callbacks for score in callback.evaluations]
            failure["seconds"] = round(time.monotonic() - start, 1)
            run.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(run.folder / RESULTS, dump_json(failure))

    def finish(self, runs: list[SweepRun]) -> None:
        """Copies the best run's files to the output folder, writes results and card, prints the tables, and pushes."""
        prepared, args = self.prepared, self.args
        best = best_run(runs, self.objective)
        if not best.is_complete:
            raise DivergedError(f"All runs of the sweep failed. The first error: {runs[0].results['failure']}")
        if "decisions" in best.results:  # for the card. The task may have the thresholds of another run
            prepared.task.thresholds = best.results["decisions"]["thresholds"]
        summary = summarize_sweep(runs, self.objective)
        tables = sweep_tables(summary, list(best.setting), prepared.task.perfect_score)
        tables += f"\n\nThe model is from the best run, {best.folder.name}."
        for path in sorted(best.folder.iterdir(), key=lambda path: path.suffix == ".safetensors"):  # weights last
            if path.is_file() and path.name not in (RESULTS, "results.md", LOCK_NAME):
                shutil.copy2(path, self.output_dir / path.name)
        repository = None
        if args.push_to_hub:
            name = args.hub_model_id or self.output_dir.resolve().name
            hub = HfApi(token=args.hub_token)
            repository = hub.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
        results: Any = {**best.results, "sweep": summary}
        results.pop("seconds")  # these are seconds of the best run only
        card_name = repository or args.hub_model_id
        write_finetuning_card(self.output_dir, prepared.facts, results, card_name, tables)
        write_results(self.output_dir, results, tables)
        print(f"\n{format_summary(prepared.facts, results, self.output_dir, tables)}", flush=True)
        if repository is not None:
            hub.upload_folder(
                repo_id=repository,
                folder_path=self.output_dir,
                ignore_patterns=[*NOT_UPLOADED, "runs/*", PLAN, JOURNAL],
                commit_message="Best run of a sweep",
            )


# --- results --------------------------------------------------------------------------------------------------------


def summarize_sweep(runs: list[SweepRun], objective: Objective) -> dict[str, Any]:
    """Returns means and standard deviations over seeds, of each setting's score and the best setting's metrics.

    `metrics` is evaluation set -> metric -> `mean`, `std` and `interval`. With one seed, `interval` is the interval of
    that run's score, or None. `failures` are messages. `stopped` are the settings that were stopped early, and their
    `scores` in training.
    """
    set_name, metric, _ = objective
    groups = _group_by_setting(run for run in runs if run.is_complete)
    settings = {}
    for name, group in groups.items():
        scores = [run.score(set_name, metric) for run in group]
        spread = _summarize_seeds(group, set_name, metric)
        settings[name] = {**group[0].setting, "seeds": len(scores), "scores": scores, **spread}
    best = json.dumps(choose_setting(runs, objective))
    metrics = {
        name: {m: _summarize_seeds(groups[best], name, m) for m in values}
        for name, values in groups[best][0].results["metrics"].items()
    }
    stopped = [run for run in runs if "stopped_early" in run.results]
    return {
        "chosen_by": f"{set_name}_{metric}",
        "settings": [*settings.values()],
        "best_setting": settings[best],
        "metrics": metrics,
        "failures": [run.results["failure"] for run in runs if "failure" in run.results],
        "stopped": [{**run.setting, "scores": run.results["evaluations"]} for run in stopped],
    }


def choose_setting(runs: Sequence[SweepRun], objective: Objective) -> dict[str, Any]:
    """Returns the setting with the best mean over its seeds. At least one run must be complete.

    A setting with an incomplete run ranks below settings whose runs are all complete. A setting with an undefined
    score ranks last.
    """

    def rank(group: list[SweepRun]) -> tuple[bool, bool, float]:
        mean = float(np.mean([run.rank(objective) for run in group if run.is_complete]))
        return mean > -np.inf, all(run.is_complete for run in group), mean

    groups = _group_by_setting(runs).values()
    return max((group for group in groups if any(run.is_complete for run in group)), key=rank)[0].setting


def best_run(runs: Sequence[SweepRun], objective: Objective) -> SweepRun:
    """Returns the best run, or any run if none is complete. Of equally good runs, the first with weights is best."""

    def rank(run: SweepRun) -> tuple[bool, float, bool]:
        return run.is_complete, run.rank(objective), any(run.folder.glob("model*.safetensors"))

    return max(runs, key=rank)


def _group_by_setting(runs: Iterable[SweepRun]) -> dict[str, list[SweepRun]]:
    groups: dict[str, list[SweepRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting), []).append(run)
    return groups


def _summarize_seeds(runs: list[SweepRun], set_name: str, metric: str) -> dict[str, Any]:
    values = [run.score(set_name, metric) for run in runs]
    intervals = runs[0].results.get("intervals", {})
    return {
        "mean": float(np.mean(values)),
        # The standard deviation of a sample, undefined for one seed.
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "interval": estimate_mean_interval(values) if len(values) > 1 else intervals.get(set_name, {}).get(metric),
    }
