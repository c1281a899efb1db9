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
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate.utils import broadcast_object_list
from huggingface_hub import HfApi

from snugbert.errors import InputError, format_count
from snugbert.files import LOCK_NAME, write_atomically
from snugbert.reports.finetuned_card import write_finetuning_card
from snugbert.reports.results import RESULTS, RunResults, format_summary, read_results, write_results
from snugbert.reports.score_tables import format_with_interval, sweep_tables
from snugbert.trainers.dry_run import as_dry_run
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_dry_run import run_dry_fine_tuning, run_dry_sweep
from snugbert.trainers.finetuning.model_selection import choose_metric
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import (
    PLAN,
    check_plan,
    digest_examples,
    list_run_folders,
    make_plan,
    prepare_folders,
)
from snugbert.trainers.finetuning.single_run import Start, fine_tune, make_trainer
from snugbert.trainers.finetuning.suggestions import PrunedError, StopBadRuns, Suggestions
from snugbert.trainers.finetuning.sweep_file import BATCH_SIZE, Choices, Span
from snugbert.trainers.finetuning.sweep_results import (
    FinishedRun,
    best_run,
    choose_setting,
    read_runs,
    selection_metric,
    summarize_sweep,
)
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_uploads import NOT_UPLOADED
from snugbert.trainers.run.stopping import DivergedError

logger = logging.getLogger(__name__)

WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)
NAME = re.compile(r"[\w.+-]{1,40}", re.ASCII)  # values that can be a part of a folder's name
LONGEST_NAME = 200  # of a folder, without digest and seed. File systems allow 255 bytes
MOST_REPEATS = 100  # If only time limits a sweep, it ends after this many suggestions in a row without a new setting.
# Every table has columns for these flags.
IN_COLUMNS = (BATCH_SIZE, "per_device_train_batch_size", "learning_rate", "num_train_epochs")


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


def run_task(prepared: PreparedTask, args: FineTuningArguments, start: Start | None = None) -> float:
    """Fine-tunes once, or runs the sweep that `sweep` and `seeds` define, and prints a summary.

    Returns the expected seconds of a dry run, otherwise 0.
    """
    if args.sweeps:
        return run_sweep(prepared, args)
    if args.dry_run:
        return run_dry_fine_tuning(prepared, args, start)
    results = fine_tune(prepared, args, start=start)
    if args.should_save:
        print(f"\n{format_summary(prepared.facts, results, Path(str(args.output_dir)))}", flush=True)
    return 0.0


def run_sweep(prepared: PreparedTask, args: FineTuningArguments) -> float:
    """Runs all settings with all seeds, and keeps the model that is best on the validation examples.

    Returns the expected seconds of a dry run, otherwise 0.
    """
    args, plan = plan_sweep(prepared, args)
    output_dir = Path(str(args.output_dir))
    (continues,) = broadcast_object_list([check_plan("sweep", plan, args, [output_dir])])
    if not continues:
        _check_values(prepared, args)
    if args.dry_run:
        return _run_dry(prepared, args, read_runs(output_dir) if continues else [])
    prepare_folders("sweep", plan, args, [output_dir], continues)
    runs = _run_all(prepared, args)
    if args.should_save:
        _finish(prepared, args, runs)
    return 0.0


def _run_dry(prepared: PreparedTask, args: FineTuningArguments, finished: list[FinishedRun]) -> float:
    """Measures the first run, and multiplies its time by the number of runs that are left. Returns the seconds."""
    search, total = args.search, _count_runs(args)
    assert search is not None and prepared.train_features is not None
    first = plan_run(args, len(prepared.train_features), Suggestions(search, args).ask(0) or {}, args.seed)
    left = None if total is None else max(0, total - len(finished))
    seconds = None if search.hours is None else 3600 * search.hours - sum(_list_seconds(finished))
    return run_dry_sweep(prepared, first.args, left, seconds)


def _count_runs(args: FineTuningArguments) -> int | None:
    """Returns the number of runs of a sweep, if none is stopped early. None: only time limits the sweep."""
    assert args.search is not None
    size, extra = args.search.size, max(0, args.search.winner_seeds - args.seeds)
    return None if size is None else size * args.seeds + extra


def plan_sweep(prepared: PreparedTask, args: FineTuningArguments) -> tuple[FineTuningArguments, dict[str, Any]]:
    """Returns the arguments with the number of epochs, and the plan of the output folder."""
    choose_metric(prepared, args)
    if args.metric_for_best_model == "loss":
        main_metric = prepared.task.main_metric
        raise InputError(f"--metric_for_best_model: a sweep needs a metric such as {main_metric}, not the loss.")
    if prepared.train_features is None:
        raise InputError("--sweep and --seeds need training examples.")
    search = args.search
    assert search is not None
    if search.prune and args.eval_strategy == "no":
        raise InputError("--eval_strategy no: `prune` in the file of --sweep needs evaluations. Use epoch or steps.")
    sizes, accumulation = (search.settings.get(flag) for flag in (BATCH_SIZE, "gradient_accumulation_steps"))
    for size in _list_values(sizes):
        for steps in _list_values(accumulation) or (args.gradient_accumulation_steps,):
            _divide_batch(args, size, steps)
    args = lengthen(args, len(prepared.train_features))
    plan = {**make_plan(prepared.model_args, args, prepared.settings), **digest_examples(prepared)}
    if search.uses_optuna:  # another version may suggest other settings
        plan["version of optuna"] = version("optuna")
    return args, plan


def _list_values(values: Choices | Span | None) -> Sequence[Any]:
    """Returns the whole numbers that a sweep may choose. Empty: the flag does not vary."""
    if isinstance(values, Span):
        return range(int(values.low), int(values.high) + 1)
    return () if values is None else values.values


def _check_values(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Makes a trainer for each value, so that a value that does not fit ends the sweep before its first run.

    One flag varies at a time, and all other flags keep their first value. The last trainer has the last value of all
    flags. Ranges are tried at both ends only. Values of `IN_COLUMNS` fit every model.
    """
    assert args.search is not None and prepared.train_features is not None
    varied: dict[str, tuple[Any, ...]] = {}
    for flag, values in args.search.settings.items():
        varied[flag] = (values.low, values.high) if isinstance(values, Span) else values.values
        if isinstance(values, Choices) and values.ordered:
            varied[flag] = (values.values[0], values.values[-1])
    others = [flag for flag in varied if flag not in IN_COLUMNS]
    if not others:
        return
    first, last = ({flag: values[place] for flag, values in varied.items()} for place in (0, -1))
    with tempfile.TemporaryDirectory() as folder:
        for setting in (first, *(first | {flag: value} for flag in others for value in varied[flag][1:]), last):
            run_args = plan_run(args, len(prepared.train_features), setting, args.seed).args
            make_trainer(prepared, as_dry_run(run_args, folder)).create_optimizer_and_scheduler(1)
            gc.collect()  # a dry run measures the memory


def lengthen(args: FineTuningArguments, examples: int) -> FineTuningArguments:
    """Returns arguments with enough epochs for `min_steps`."""
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    needed = math.ceil(args.min_steps / max(1, math.ceil(examples / batch)))
    if needed > args.num_train_epochs:
        args = copy.copy(args)
        args.num_train_epochs = float(needed)
    return args


def plan_run(args: FineTuningArguments, examples: int, values: Mapping[str, Any], seed: int) -> PlannedRun:
    """Returns the run with the `values` of the flags that vary. `examples` is the number of training examples."""
    run_args = copy.copy(args)
    for flag, value in values.items():
        if flag != BATCH_SIZE:
            setattr(run_args, flag, value)
    if BATCH_SIZE in values:
        run_args.per_device_train_batch_size = _divide_batch(
            args, values[BATCH_SIZE], run_args.gradient_accumulation_steps
        )
    run_args = lengthen(run_args, examples)
    setting = {
        "batch_size": run_args.per_device_train_batch_size * run_args.gradient_accumulation_steps * args.world_size,
        "learning_rate": run_args.learning_rate,
        "epochs": run_args.num_train_epochs,
    }
    # Enums are stored by their values.
    other = {flag: getattr(value, "value", value) for flag, value in values.items() if flag not in IN_COLUMNS}
    name = f"batch-{setting['batch_size']}_rate-{setting['learning_rate']:g}_epochs-{setting['epochs']:g}"
    name += "".join(f"_{flag}-{_shorten(value)}" for flag, value in other.items())
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}_{_digest(name)}"
    if run_args.max_steps > 0:
        setting["epochs"] = float(f"{run_args.max_steps / math.ceil(examples / setting['batch_size']):.3g}")
    run_args.seed = seed
    output_dir = Path(str(args.output_dir))
    folder = output_dir / "runs" / f"{name}_seed-{seed}"
    run_args.output_dir = str(folder)
    run_args.run_name = f"{args.run_name or output_dir.resolve().name}-{folder.name}"
    # The folder was checked: an interrupted run in it belongs to this sweep.
    run_args.overwrite_output_dir = True
    run_args.resume_from_checkpoint = "true"
    run_args.push_to_hub, run_args.sweep, run_args.seeds, run_args.search = False, None, 1, None
    if not run_args.load_best_model_at_end:
        run_args.save_strategy = "no"  # type: ignore[assignment]
    return PlannedRun(dict(values), setting | other, run_args, folder, seed)


def _shorten(value: Any) -> str:
    """Returns a part of a folder's name. A digest replaces text that file systems may not allow."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if NAME.fullmatch(text) else _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _divide_batch(args: FineTuningArguments, size: int, accumulation_steps: int) -> int:
    """Returns the batch size per device."""
    divisor = args.world_size * accumulation_steps
    if size % divisor:
        raise InputError(
            f"--sweep {args.sweep}: the batch size {size} is not divisible by the number of processes "
            f"({args.world_size}) times --gradient_accumulation_steps ({accumulation_steps}). Use a multiple of "
            f"{divisor}."
        )
    return size // divisor


# --- runs -------------------------------------------------------------------------------------------------------


def _run_all(prepared: PreparedTask, args: FineTuningArguments) -> list[FinishedRun]:
    """Runs the settings, then the best setting with further seeds. Returns all finished runs of these settings."""
    search = args.search
    assert search is not None and prepared.train_features is not None
    set_name, metric = selection_metric(prepared, args)
    suggestions = Suggestions(search, args)
    stopper = [StopBadRuns(suggestions, f"{set_name}_{metric}")] if search.prune else []
    examples, extra = len(prepared.train_features), max(0, search.winner_seeds - args.seeds)
    total = "" if search.size is None else f" of {_count_runs(args)}"
    finished: dict[Path, FinishedRun] = {}  # a setting may be suggested twice
    tried: list[dict[str, Any]] = []
    repeats = 0
    while (values := suggestions.ask(len(tried))) is not None:
        runs = [plan_run(args, examples, values, args.seed + number) for number in range(args.seeds)]
        repeats = repeats + 1 if runs[0].folder in finished else 0
        if search.size is None and repeats == MOST_REPEATS:
            logger.info("stopped: all of the last %d suggested settings ran before", repeats)
            break
        if runs[0].read() is None and _is_out_of_time(search.hours, [*finished.values()], args.seeds + extra):
            tries = format_count(len(tried), "setting")
            logger.info("stopped after %s. Another setting would probably exceed %g hours", tries, search.hours)
            break
        for number, run in enumerate(runs):
            title = f"run {len(tried) * args.seeds + number + 1}{total}"
            # Only the first seed is compared with earlier runs. If it is stopped, the other seeds do not run.
            finished[run.folder] = _run(prepared, args, run, title, [] if number else stopper)
            if "stopped_early" in finished[run.folder].results:
                break
        tried.append(values)
        first = finished[runs[0].folder]
        # Optuna gets only the score of the first seed, so that a sweep with more seeds tries the same settings. Only
        # the main process needs the evaluations.
        scores = first.evaluations(metric, set_name) if stopper and args.process_index == 0 else []
        suggestions.tell(first.score(metric, set_name), scores)
    best = choose_setting([*finished.values()], prepared, args)
    for values in tried:
        for number in range(args.seeds, search.winner_seeds):
            run = plan_run(args, examples, values, args.seed + number)
            if run.setting == best:
                finished[run.folder] = _run(prepared, args, run, f"seed {number + 1} of the best setting", [])
            elif (result := run.read()) is not None:  # this setting was the best until the budget grew
                finished[run.folder] = result
    return [*finished.values()]


def _run(
    prepared: PreparedTask, args: FineTuningArguments, run: PlannedRun, title: str, callbacks: list[StopBadRuns]
) -> FinishedRun:
    """Returns the finished run. If `run` is not finished, runs it, and removes all weights except the best."""
    if (finished := run.read()) is not None:
        return finished
    name = run.folder.name
    logger.info("%s: %s", title, name)
    set_name, metric = selection_metric(prepared, args)
    if student := {flag: value for flag, value in run.values.items() if flag in prepared.settings}:  # distillation
        prepared = dataclasses.replace(prepared, settings=prepared.settings | student)
    start = time.monotonic()
    failure: dict[str, Any] = {}
    for callback in callbacks:
        callback.evaluations = []  # the same callback compares all runs
    try:
        results = fine_tune(prepared, run.args, callbacks)
        interval = results.get("intervals", {}).get(set_name, {}).get(metric)
        score = results["metrics"][set_name].get(metric)
        perfect_score = prepared.task.perfect_score
        logger.info("%s: %s %s", name, metric, format_with_interval(metric, score, interval, perfect_score))
    except DivergedError as error:
        logger.warning("%s: %s", name, error)
        failure = {"failure": f"{name}: {error}"}
    except torch.OutOfMemoryError:
        # Other processes wait for this process. If no run is complete yet, another program may be using the memory.
        if args.world_size > 1 or not any(each.is_complete for each in read_runs(Path(str(args.output_dir)))):
            raise
        logger.warning("%s: out of memory. The sweep continues. To repeat this run, remove its folder.", name)
        failure = {"failure": f"{name}: out of memory"}
    except PrunedError:
        logger.info("%s: stopped early, because it is worse than the median", name)
        failure = {"stopped_early": True}
    if failure:
        gc.collect()  # the exception kept the model in memory
    if args.should_save:
        _store(run, failure, [score for callback in callbacks for score in callback.evaluations], start)
        output_dir = Path(str(args.output_dir))
        # A continued sweep may have finished runs after this run.
        _keep_best_weights(output_dir, best_run(read_runs(output_dir), prepared, args))
    finished = run.read()
    assert finished is not None
    return finished


def _store(run: PlannedRun, failure: dict[str, Any], evaluations: list[float], start: float) -> None:
    """Adds the time to the results of a run. The results of a failed run mark it as finished, too."""
    run.folder.mkdir(parents=True, exist_ok=True)
    results = failure | {"evaluations": evaluations} if failure else read_results(run.folder / RESULTS)
    results["seconds"] = round(time.monotonic() - start, 1)
    write_atomically(run.folder / RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def _is_out_of_time(hours: float | None, runs: list[FinishedRun], needed: int) -> bool:
    """Whether `needed` more runs would exceed the budget, if they take as long as earlier runs.

    The first run may exceed the budget. The time of interrupted attempts does not count.
    """
    seconds = _list_seconds(runs)
    return hours is not None and len(runs) > 0 and sum(seconds) * (1 + needed / len(runs)) > 3600 * hours


def _list_seconds(runs: list[FinishedRun]) -> list[float]:
    return [run.results.get("seconds", run.results.get("training", {}).get("train_runtime", 0)) for run in runs]


def _finish(prepared: PreparedTask, args: FineTuningArguments, runs: list[FinishedRun]) -> None:
    """Moves the best run's files to the output folder, writes results and card, prints the tables, and pushes."""
    output_dir = Path(str(args.output_dir))
    best = best_run(runs, prepared, args)
    if not best.is_complete:
        raise DivergedError(f"All runs of the sweep failed. The first error: {runs[0].results['failure']}")
    if (decisions := best.results.get("decisions")) is not None:  # the task may have the thresholds of another run
        labels, thresholds = prepared.task.labels or [], decisions["thresholds"]
        prepared.task.thresholds = {i: thresholds[label] for i, label in enumerate(labels) if label in thresholds}
    summary = summarize_sweep(runs, prepared, args)
    columns = list(best.setting)
    tables = sweep_tables(summary, columns, prepared.task.perfect_score)
    tables += f"\n\nThe model is from the best run, {best.folder.name}."
    _keep_best_weights(output_dir, best)  # again, because an earlier command may have stopped before this step
    _move_best_run(output_dir, best)
    repository = None
    if args.push_to_hub:
        name = args.hub_model_id or output_dir.resolve().name
        hub = HfApi(token=args.hub_token)
        repository = hub.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
    results: RunResults = {**best.results, "sweep": summary}  # type: ignore[typeddict-item]
    results.pop("seconds", None)  # type: ignore[typeddict-item]
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
