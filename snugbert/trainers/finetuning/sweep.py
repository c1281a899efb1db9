"""Runs a task with several settings and seeds, and keeps the run that is best on the validation examples.

Each run has a folder in OUTPUT/runs, named after its setting. Finished runs are not repeated, so an interrupted sweep
continues with the run that was interrupted. Only the best run keeps its weights. At the end, its files move to OUTPUT.
"""

import copy
import dataclasses
import gc
import hashlib
import json
import logging
import math
import re
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub import HfApi

from snugbert.errors import InputError, format_count
from snugbert.files import write_atomically
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.results import RESULTS, RunResults, format_summary, read_results, write_results
from snugbert.reports.score_tables import format_with_interval, sweep_tables
from snugbert.trainers.dry_run import as_dry_run
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import (
    PLAN,
    check_plan,
    digest_examples,
    make_plan,
    prepare_folders,
)
from snugbert.trainers.finetuning.settled_arguments import settle_arguments
from snugbert.trainers.finetuning.single_run import fine_tune, make_trainer, run_dry_fine_tuning
from snugbert.trainers.finetuning.suggestions import PrunedError, StopBadRuns, Suggestions
from snugbert.trainers.finetuning.sweep_file import BATCH_SIZE, Choices
from snugbert.trainers.finetuning.sweep_results import (
    FinishedRun,
    Objective,
    best_run,
    choose_setting,
    keep_best_weights,
    move_best_run,
    read_runs,
    summarize_sweep,
)
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_uploads import NOT_UPLOADED
from snugbert.trainers.run.stopping import DivergedError

logger = logging.getLogger(__name__)

OTHER_FLAGS = re.compile(r"[\w.+-]{0,160}", re.ASCII)  # in a folder's name. File systems allow 255 bytes
MOST_REPEATS = 100  # If only time limits a sweep, it ends after this many suggestions in a row without a new setting.
ACCUMULATION = "gradient_accumulation_steps"
# Every table has columns for these flags.
IN_COLUMNS = (BATCH_SIZE, "per_device_train_batch_size", "learning_rate", "num_train_epochs")


def run_sweep(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Runs all settings with all seeds, and keeps the model that is best on the validation examples.

    Returns the expected seconds of a dry run, otherwise 0.
    """
    sweep = Sweep(prepared, args)
    plan = sweep.make_plan()
    folders = [sweep.output_dir]
    (continues,) = broadcast_object_list([not args.overwrite_output_dir and check_plan("sweep", plan, folders)])
    if not continues:
        sweep.check_values()
    if args.dry_run:
        return sweep.run_dry(read_runs(sweep.output_dir) if continues else [])
    prepare_folders("sweep", plan, folders, continues)
    runs = sweep.run_all()
    if args.should_save:
        sweep.finish(runs)
    return 0.0


# --- the runs of a setting ----------------------------------------------------------------------------------------


class PlannedRun(NamedTuple):
    """One run of a sweep, finished or not."""

    values: dict[str, Any]  # of the flags that vary
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
        if flag != BATCH_SIZE:
            setattr(run_args, flag, value)
    if BATCH_SIZE in values:
        divisor = args.world_size * run_args.gradient_accumulation_steps
        run_args.per_device_train_batch_size, rest = divmod(values[BATCH_SIZE], divisor)
        if rest:
            raise InputError(
                f"--sweep {args.sweep}: the batch size {values[BATCH_SIZE]} is not divisible by {divisor}, the number "
                "of processes times --gradient_accumulation_steps. Use a multiple."
            )
    lengthen(run_args, examples)
    batch = run_args.per_device_train_batch_size * run_args.gradient_accumulation_steps * args.world_size
    rate, epochs = run_args.learning_rate, run_args.num_train_epochs
    # Enums are stored by their values.
    other = {flag: getattr(value, "value", value) for flag, value in values.items() if flag not in IN_COLUMNS}
    shown = {flag: f"{value:g}" if isinstance(value, float) else value for flag, value in other.items()}
    names = "".join(f"_{flag}-{value}" for flag, value in shown.items())
    if not OTHER_FLAGS.fullmatch(names):
        names = f"_{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    if run_args.max_steps > 0:
        epochs = float(f"{run_args.max_steps / math.ceil(examples / batch):.3g}")
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
    setting = {"batch_size": batch, "learning_rate": rate, "epochs": epochs}
    return PlannedRun(dict(values), setting | other, run_args, folder, seed)


def lengthen(args: FineTuningArguments, examples: int) -> None:
    """Increases the number of epochs if `min_steps` need more."""
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    needed = math.ceil(args.min_steps / max(1, math.ceil(examples / batch)))
    args.num_train_epochs = max(args.num_train_epochs, float(needed))


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
        if args.search.prune and args.eval_strategy == "no":
            raise InputError(
                "--eval_strategy no: `prune` in the file of --sweep needs evaluations. Use epoch or steps."
            )
        self.prepared = prepared
        self.search = args.search
        self.args = copy.copy(args)
        self.examples = len(prepared.train_features)
        lengthen(self.args, self.examples)
        self.output_dir = Path(str(args.output_dir))
        self.objective = Objective(
            prepared.validation_set.name, str(args.metric_for_best_model), bool(args.greater_is_better)
        )
        self.further_seeds = max(0, self.search.winner_seeds - args.seeds)  # of the best setting
        # The number of runs, if none is stopped early. None: only time limits the sweep.
        self.total = None if self.search.size is None else self.search.size * args.seeds + self.further_seeds

    def make_plan(self) -> dict[str, Any]:
        """Returns what must not change when the sweep continues."""
        prepared = self.prepared
        plan = make_plan(prepared.model_args, self.args, prepared.settings)
        plan |= digest_examples(prepared, prepared.evaluation_sets)
        if self.search.uses_optuna:  # another version may suggest other settings
            plan["version of optuna"] = version("optuna")
        return plan

    def plan_run(self, values: Mapping[str, Any], seed: int) -> PlannedRun:
        """Returns the run with the `values` of the flags that vary."""
        return plan_run(self.args, self.examples, values, seed)

    def check_values(self) -> None:
        """Plans a run with each value, so that a value that does not fit ends the sweep before its first run.

        One flag varies at a time, and all other flags keep their first value. The last run has the last value of all
        flags. Ranges are tried at both ends only. Values of `IN_COLUMNS` fit every model. All others make a trainer.
        Each batch size has to be divisible by each number of accumulation steps, so all pairs are planned.
        """
        varied = {flag: values.extremes for flag, values in self.search.settings.items()}
        first, last = ({flag: values[place] for flag, values in varied.items()} for place in (0, -1))
        batch_sizes = self.search.settings.get(BATCH_SIZE, Choices(()))
        all_steps = self.search.settings.get(ACCUMULATION, Choices((self.args.gradient_accumulation_steps,)))
        for size in batch_sizes.values:
            for steps in all_steps.values:
                self.plan_run(first | {BATCH_SIZE: size, ACCUMULATION: steps}, self.args.seed)
        checked: list[dict[str, Any]] = [{}]
        with tempfile.TemporaryDirectory() as folder:
            for setting in [*(first | {flag: value} for flag in varied for value in varied[flag]), last]:
                run = self.plan_run(setting, self.args.seed)
                others = {flag: value for flag, value in setting.items() if flag not in IN_COLUMNS}
                if others not in checked:
                    checked.append(others)
                    make_trainer(self.prepared, as_dry_run(run.args, folder)).create_optimizer_and_scheduler(1)
                    gc.collect()  # a dry run measures the memory

    def run_dry(self, finished: list[FinishedRun]) -> float:
        """Measures the first run, and multiplies its time by the number of runs that are left. Returns the seconds."""
        first = self.plan_run(self._make_suggestions().ask(0) or {}, self.args.seed)
        left = 1 if self.total is None else max(0, self.total - len(finished))
        return run_dry_fine_tuning(self.prepared, first.args, None, left)

    def run_all(self) -> list[FinishedRun]:
        """Runs the settings, then the best setting with further seeds. Returns all finished runs of these settings."""
        search, seeds, first_seed = self.search, self.args.seeds, self.args.seed
        set_name, metric, _ = self.objective
        suggestions = self._make_suggestions()
        stopper = [StopBadRuns(suggestions, f"{set_name}_{metric}")] if search.prune else []
        total = "" if self.total is None else f" of {self.total}"
        finished: dict[Path, FinishedRun] = {}  # a setting may be suggested twice
        tried: list[dict[str, Any]] = []
        repeats = 0
        while (values := suggestions.ask(len(tried))) is not None:
            runs = [self.plan_run(values, first_seed + number) for number in range(seeds)]
            repeats = repeats + 1 if runs[0].folder in finished else 0
            if search.size is None and repeats == MOST_REPEATS:
                logger.info("stopped: all of the last %d suggested settings ran before", repeats)
                break
            if runs[0].read() is None and self._is_out_of_time([*finished.values()]):
                tries = format_count(len(tried), "setting")
                logger.info("stopped after %s. Another setting would probably exceed %g hours", tries, search.hours)
                break
            for number, run in enumerate(runs):
                title = f"run {len(tried) * seeds + number + 1}{total}"
                # Only the first seed is compared with earlier runs. If it is stopped, the other seeds do not run.
                finished[run.folder] = self._run(run, title, [] if number else stopper)
                if "stopped_early" in finished[run.folder].results:
                    break
            tried.append(values)
            first = finished[runs[0].folder]
            # Optuna gets only the score of the first seed, so that a sweep with more seeds tries the same settings.
            # Only the main process needs the evaluations.
            scores = first.evaluations(set_name, metric) if stopper and self.args.process_index == 0 else []
            suggestions.tell(first.score(set_name, metric), scores)
        best = choose_setting([*finished.values()], self.objective, range(first_seed, first_seed + seeds))
        for values in tried:
            for number in range(seeds, search.winner_seeds):
                run = self.plan_run(values, first_seed + number)
                if run.setting == best:
                    finished[run.folder] = self._run(run, f"seed {number + 1} of the best setting", [])
                elif (result := run.read()) is not None:  # this setting was the best until the budget grew
                    finished[run.folder] = result
        return [*finished.values()]

    def _make_suggestions(self) -> Suggestions:
        return Suggestions(self.search, self.args.seed, self.objective.higher_is_better)

    def _is_out_of_time(self, runs: list[FinishedRun]) -> bool:
        """Whether another setting would probably exceed the budget, if its runs take as long as earlier runs.

        The first run may exceed the budget. The time of interrupted attempts does not count.
        """
        hours = self.search.hours
        if hours is None or not runs:
            return False
        seconds = sum(run.results["seconds"] for run in runs)
        return seconds * (1 + (self.args.seeds + self.further_seeds) / len(runs)) > 3600 * hours

    def _run(self, run: PlannedRun, title: str, callbacks: list[StopBadRuns]) -> FinishedRun:
        """Returns the finished run. If `run` is not finished, runs it, and removes all weights except the best."""
        if (finished := run.read()) is not None:
            return finished
        name = run.folder.name
        prepared = self.prepared
        logger.info("%s: %s", title, name)
        set_name, metric, _ = self.objective
        if student := {flag: value for flag, value in run.values.items() if flag in prepared.settings}:  # distillation
            prepared = dataclasses.replace(prepared, settings=prepared.settings | student)
        start = time.monotonic()
        failure: dict[str, Any] = {}
        for callback in callbacks:
            callback.evaluations = []  # the same callback compares all runs
        try:
            fine_tune(prepared, run.args, callbacks)
        except DivergedError as error:
            logger.warning("%s: %s", name, error)
            failure = {"failure": f"{name}: {error}"}
        except torch.OutOfMemoryError:
            # Other processes wait for this process. If no run is complete yet, another program may use the memory.
            if self.args.world_size > 1 or not any(each.is_complete for each in read_runs(self.output_dir)):
                raise
            logger.warning("%s: out of memory. The sweep continues. To repeat this run, remove its folder.", name)
            failure = {"failure": f"{name}: out of memory"}
        except PrunedError:
            logger.info("%s: stopped early, because it is worse than the median", name)
            failure = {"stopped_early": True}
        if failure:
            gc.collect()  # the exception kept the model in memory
        if self.args.should_save:
            if failure:  # the results of a failed run mark it as finished, too
                failure["evaluations"] = [score for callback in callbacks for score in callback.evaluations]
                failure["seconds"] = round(time.monotonic() - start, 1)
                run.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(run.folder / RESULTS, json.dumps(failure, indent=1, ensure_ascii=False) + "\n")
            # A continued sweep may have finished runs after this run.
            keep_best_weights(self.output_dir, best_run(read_runs(self.output_dir), self.objective))
        finished = run.read()
        assert finished is not None
        if finished.is_complete:
            score, interval = finished.score(set_name, metric), finished.interval(set_name, metric)
            shown = format_with_interval(metric, score, interval, prepared.task.perfect_score)
            logger.info("%s: %s %s", name, metric, shown)
        return finished

    def finish(self, runs: list[FinishedRun]) -> None:
        """Moves the best run's files to the output folder, writes results and card, prints the tables, and pushes."""
        prepared = self.prepared
        args = self.args
        best = best_run(runs, self.objective)
        if not best.is_complete:
            raise DivergedError(f"All runs of the sweep failed. The first error: {runs[0].results['failure']}")
        if (decisions := best.results.get("decisions")) is not None:  # the task may have the thresholds of another run
            labels = prepared.task.labels or []
            thresholds = decisions["thresholds"]
            prepared.task.thresholds = {i: thresholds[label] for i, label in enumerate(labels) if label in thresholds}
        summary = summarize_sweep(runs, self.objective, range(args.seed, args.seed + args.seeds))
        tables = sweep_tables(summary, list(best.setting), prepared.task.perfect_score)
        tables += f"\n\nThe model is from the best run, {best.folder.name}."
        keep_best_weights(self.output_dir, best)  # again, because an earlier command may have stopped before this step
        move_best_run(self.output_dir, best)
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
        print(f"\n{tables}\n\n{format_summary(prepared.facts, results, self.output_dir)}", flush=True)
        if repository is not None:
            hub.upload_folder(
                repo_id=repository,
                folder_path=self.output_dir,
                ignore_patterns=[*NOT_UPLOADED, "runs/*", PLAN],
                commit_message="Best run of a sweep",
            )
