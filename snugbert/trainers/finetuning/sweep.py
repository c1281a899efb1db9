"""Runs a task with several settings and seeds, and keeps the run that is best on the validation examples.

Each run has a folder in OUTPUT/runs, named after its setting. Finished runs are not repeated, so an interrupted sweep
continues with the run that was interrupted. Only the best run keeps its weights. At the end, OUTPUT gets a copy.

Optuna suggests each setting (`ask`) and gets its score (`tell`). Its journal in OUTPUT contains all settings and
scores. Trainer's own hook for Optuna, `hyperparameter_search`, does not fit: its trials share one output folder and
one seed, and an interrupted search cannot resume.
"""

import copy
import functools
import gc
import hashlib
import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
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
from snugbert.files import write_atomically
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.results import RESULTS, RunResults, format_summary, read_results, write_results
from snugbert.reports.score_tables import sweep_tables
from snugbert.trainers.dry_run import as_dry_run
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import (
    JOURNAL,
    PLAN,
    check_plan,
    digest_examples,
    make_plan,
    prepare_folder,
)
from snugbert.trainers.finetuning.settled_arguments import settle_arguments, total_batch_size
from snugbert.trainers.finetuning.single_run import fine_tune, make_trainer, run_dry_fine_tuning
from snugbert.trainers.finetuning.sweep_file import BATCH_SIZE, SweepFile, read_value
from snugbert.trainers.finetuning.sweep_results import (
    FinishedRun,
    Objective,
    best_run,
    choose_setting,
    copy_best_run,
    keep_best_weights,
    read_runs,
    summarize_sweep,
)
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_uploads import NOT_UPLOADED
from snugbert.trainers.run.stopping import DivergedError

logger = logging.getLogger(__name__)

OTHER_FLAGS = re.compile(r"[\w.+-]{0,160}", re.ASCII)  # in a folder's name. File systems allow 255 bytes
# Every table has columns for these flags.
IN_COLUMNS = (BATCH_SIZE, "per_device_train_batch_size", "learning_rate", "num_train_epochs")


def run_sweep(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Runs all settings with all seeds, and keeps the model that is best on the validation examples.

    Returns the expected seconds of a dry run, otherwise 0.
    """
    sweep = Sweep(prepared, args)
    plan = make_plan(prepared.model_args, sweep.args, prepared.settings)
    plan |= digest_examples(prepared, prepared.evaluation_sets)
    (continues,) = broadcast_object_list([not args.overwrite_output_dir and check_plan(plan, sweep.output_dir)])
    if not continues:
        sweep.check_values()
    if not args.dry_run:
        prepare_folder(plan, sweep.output_dir, continues)
        runs = sweep.run_all()
        if args.should_save:
            sweep.finish(runs)
        return 0.0
    return sweep.run_dry(len(read_runs(sweep.output_dir)) if continues else 0)


# --- the runs of a setting ----------------------------------------------------------------------------------------


class PlannedRun(NamedTuple):
    """One run of a sweep, finished or not."""

    setting: dict[str, Any]  # columns of every table, and other flags that vary, for reports
    args: FineTuningArguments
    folder: Path  # named after the setting
    seed: int

    def read(self) -> FinishedRun | None:
        """Returns the finished run. None if the run is not finished. Every process must call this."""
        wait_for_all()  # the first process may still be removing weights
        file = self.folder / RESULTS
        (results,) = broadcast_object_list([read_results(file) if file.exists() else None])
        return None if results is None else FinishedRun(self.setting, self.seed, self.folder, results)


def plan_run(args: FineTuningArguments, examples: int, values: Mapping[str, Any], seed: int) -> PlannedRun:
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
                "of processes times --gradient_accumulation_steps. Use a multiple."
            )
    lengthen(run_args, examples)
    batch, rate = total_batch_size(run_args), run_args.learning_rate
    other = {flag: value for flag, value in values.items() if flag not in IN_COLUMNS}
    names = "".join(f"_{flag}-{value}" for flag, value in other.items())
    if not OTHER_FLAGS.fullmatch(names):
        names = f"_{hashlib.sha256(names.encode()).hexdigest()[:8]}"
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
    epochs = run_args.num_train_epochs
    if run_args.max_steps > 0:
        epochs = float(f"{run_args.max_steps / math.ceil(examples / batch):.3g}")
    return PlannedRun({"batch_size": batch, "learning_rate": rate, "epochs": epochs} | other, run_args, folder, seed)


def lengthen(args: FineTuningArguments, examples: int) -> None:
    """Increases the number of epochs if `min_steps` need more."""
    needed = math.ceil(args.min_steps / max(1, math.ceil(examples / total_batch_size(args))))
    args.num_train_epochs = max(args.num_train_epochs, float(needed))


# --- suggested settings -------------------------------------------------------------------------------------------


class Suggestions:
    """The settings of a sweep in order. The main process chooses them, and all processes get them.

    Args:
        journal: the file with earlier settings and their scores. None: a dry run, which writes no file.
    """

    def __init__(self, search: SweepFile, seed: int, higher_is_better: bool, journal: Path | None):
        self._search, self._seed = search, seed
        self._study: Any = None  # in the main process
        self._trial: Any = None  # of the last setting
        if PartialState().is_main_process:
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
                value = self._trial._suggest(flag, values)  # the value in the journal, or as in `Study.ask`
                # Few digits, because the value is in tables and in the name of a folder.
                setting[flag] = float(f"{value:.4g}") if isinstance(values, FloatDistribution) else value
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
            with suppress(RuntimeError):  # after the last setting, a grid stops `Study.optimize`, which does not run
                self._study.tell(self._trial, *result, skip_if_finished=True)

    def _make_sampler(self, number: int) -> optuna.samplers.BaseSampler:
        if self._search.method == "grid":
            settings: Any = self._search.settings.items()
            return optuna.samplers.GridSampler({flag: values.choices for flag, values in settings}, seed=self._seed)
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
        return samplers[self._search.method](seed=seed)


class StopBadRuns(TrainerCallback):
    """Compares a run with earlier runs after each evaluation except the last: stopping then would save nothing."""

    def __init__(self, suggestions: Suggestions, metric: str):
        self._suggestions, self._metric = suggestions, metric
        self.evaluations: list[float] = []

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called by Trainer after each evaluation. The log contains evaluations before a resumed checkpoint, too."""
        self.evaluations = [line[self._metric] for line in state.log_history if self._metric in line]
        if self._suggestions.is_bad(self.evaluations) and state.global_step < state.max_steps:
            raise optuna.TrialPruned


# --- a sweep --------------------------------------------------------------------------------------------------------


class Sweep:
    """A sweep over settings and seeds in an output folder. Its arguments are checked once, when it is made."""

    def __init__(self, prepared: PreparedTask, args: FineTuningArguments):
        settle_arguments(prepared, args)
        if args.metric_for_best_model == "loss":
            main_metric = prepared.task.main_metric
            raise InputError(f"--metric_for_best_model: a sweep needs a metric such as {main_metric}, not the loss.")
        if prepared.train_features is None:
            raise InputError("--sweep and --seeds need training examples.")
        assert args.search is not None and prepared.validation_set is not None  # see `settle_arguments`
        self.prepared = prepared
        self.search = args.search
        self.args = copy.copy(args)
        lengthen(self.args, len(prepared.train_features))
        self.plan_run = functools.partial(plan_run, self.args, len(prepared.train_features))
        self.output_dir = Path(str(args.output_dir))
        self.objective = Objective(
            prepared.validation_set.name, str(args.metric_for_best_model), bool(args.greater_is_better)
        )
        self.seeds = range(args.seed, args.seed + args.seeds)
        self.further_seeds = range(self.seeds.stop, args.seed + self.search.winner_seeds)  # of the best setting
        self.total = self.search.size * args.seeds + len(self.further_seeds)  # if no run is stopped early

    def check_values(self) -> None:
        """Plans a run with each value of each flag, so that a value that does not fit ends the sweep at once.

        The first run has the first values, and the last run the last. Ranges are tried at both ends only. The flags
        `IN_COLUMNS` fit every model. For the others, a trainer is made.
        """
        settings = self.search.settings.items()
        varied = {flag: getattr(each, "choices", None) or (each.low, each.high) for flag, each in settings}
        for number in range(max(map(len, varied.values()), default=0)):
            setting = {flag: values[min(number, len(values) - 1)] for flag, values in varied.items()}
            run = self.plan_run(setting, self.args.seed)
            if setting.keys() - IN_COLUMNS:
                with tempfile.TemporaryDirectory() as folder:
                    make_trainer(self.prepared, as_dry_run(run.args, folder)).create_optimizer_and_scheduler(1)
                gc.collect()  # a dry run measures the memory

    def run_dry(self, finished: int) -> float:
        """Measures the first run, and multiplies its time by the number of runs that are left. Returns the seconds."""
        first = self.plan_run(Suggestions(self.search, self.args.seed, True, None).ask(0), self.args.seed)
        return run_dry_fine_tuning(self.prepared, first.args, None, max(0, self.total - finished))

    def run_all(self) -> list[FinishedRun]:
        """Runs the settings, then the best setting with further seeds. Returns all finished runs of these settings."""
        set_name, metric, higher_is_better = self.objective
        suggestions = Suggestions(self.search, self.args.seed, higher_is_better, self.output_dir / JOURNAL)
        hours = math.inf if self.search.hours is None else self.search.hours
        finished: dict[Path, FinishedRun] = {}  # a setting may be suggested twice
        tried: list[dict[str, Any]] = []
        while len(tried) < self.search.size:
            values = suggestions.ask(len(tried))
            seconds = sum(run.results["seconds"] for run in finished.values())
            if seconds > 3600 * hours and self.plan_run(values, self.args.seed).read() is None:
                logger.info("stopped after %g hours and %s", hours, format_count(len(tried), "setting"))
                break
            tried.append(values)
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
        best = choose_setting([*finished.values()], self.objective, self.seeds)
        for values in tried:
            for run in (self.plan_run(values, seed) for seed in self.further_seeds):
                # A finished run belongs to a setting that was the best until the budget grew.
                if run.setting == best or run.read() is not None:
                    finished[run.folder] = self._run(run, len(finished) + 1, [])
        return [*finished.values()]

    def _run(self, run: PlannedRun, number: int, callbacks: list[StopBadRuns]) -> FinishedRun:
        """Returns the finished run. If `run` is not finished, runs it. Removes all weights except the best."""
        if run.read() is None:
            logger.info("run %d of %d: %s", number, self.total, run.folder.name)
            self._start(run, callbacks)
        if self.args.should_save:
            # An earlier command may have been killed here, and may have finished runs after this run.
            keep_best_weights(self.output_dir, self.objective)
        finished = run.read()
        assert finished is not None
        return finished

    def _start(self, run: PlannedRun, callbacks: list[StopBadRuns]) -> None:
        """Runs until results are written. The results of a failed run mark it as finished, too."""
        name = run.folder.name
        start = time.monotonic()
        failure: dict[str, Any] = {}
        try:
            fine_tune(self.prepared, run.args, callbacks)
        except (DivergedError, torch.OutOfMemoryError) as error:
            if self.args.world_size > 1 and not isinstance(error, DivergedError):
                raise  # other processes wait for this process
            failure = {"failure": f"{name}: {error if isinstance(error, DivergedError) else 'out of memory'}"}
            logger.warning("%s. The sweep continues. To repeat this run, remove its folder.", failure["failure"])
        except optuna.TrialPruned:
            logger.info("%s: stopped early, because it is worse than the median", name)
            failure = {"stopped_early": True}
        gc.collect()  # an exception keeps the model in memory
        if failure and self.args.should_save:
            failure["evaluations"] = [score for callback in callbacks for score in callback.evaluations]
            failure["seconds"] = round(time.monotonic() - start, 1)
            run.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(run.folder / RESULTS, json.dumps(failure, indent=1, ensure_ascii=False) + "\n")

    def finish(self, runs: list[FinishedRun]) -> None:
        """Copies the best run's files to the output folder, writes results and card, prints the tables, and pushes."""
        prepared = self.prepared
        args = self.args
        best = best_run(runs, self.objective)
        if not best.is_complete:
            raise DivergedError(f"All runs of the sweep failed. The first error: {runs[0].results['failure']}")
        if "decisions" in best.results:  # the card shows their number. The task may have the thresholds of another run
            prepared.task.thresholds = best.results["decisions"]["thresholds"]
        summary = summarize_sweep(runs, self.objective, self.seeds)
        tables = sweep_tables(summary, list(best.setting), prepared.task.perfect_score)
        tables += f"\n\nThe model is from the best run, {best.folder.name}."
        copy_best_run(self.output_dir, best)
        repository = None
        if args.push_to_hub:
            name = args.hub_model_id or self.output_dir.resolve().name
            hub = HfApi(token=args.hub_token)
            repository = hub.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
        results: RunResults = {**best.results, "sweep": summary}  # type: ignore[typeddict-item]
        results.pop("seconds")  # of the best run only
        card_name = repository or args.hub_model_id
        base_model = prepared.model_args.model_name_or_path
        write_finetuning_card(self.output_dir, prepared.facts, results, base_model, card_name, tables)
        write_results(self.output_dir, results, tables)
        print(f"\n{format_summary(prepared.facts, results, self.output_dir, tables)}", flush=True)
        if repository is not None:
            hub.upload_folder(
                repo_id=repository,
                folder_path=self.output_dir,
                ignore_patterns=[*NOT_UPLOADED, "runs/*", PLAN, JOURNAL],
                commit_message="Best run of a sweep",
            )
