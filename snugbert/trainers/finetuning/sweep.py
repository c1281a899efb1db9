"""Several runs of a task: the paper's grid, several seeds; one table, the best by the validation examples.

Each run has a folder in OUTPUT/runs, and what is there to its end is not done again: a sweep that was interrupted goes
on with the run that it was at. Only the best run keeps its weights; when all are done its files go to OUTPUT.
"""

import copy
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from accelerate import PartialState
from datasets import Dataset
from huggingface_hub import HfApi
from transformers.trainer import TRAINING_ARGS_NAME

from snugbert.card_snugbert import escape
from snugbert.errors import InputError
from snugbert.json_files import read_json
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.plots import remove_plots
from snugbert.trainers.finetuning.results import write_atomically, write_results
from snugbert.trainers.finetuning.run import (
    DECIDES,
    FineTuningTask,
    choose_metric,
    collect_settings,
    fine_tune,
    scored,
    write_card,
)
from snugbert.trainers.finetuning.tables import apart, means_table, split_name
from snugbert.trainers.finetuning.trainer import DivergedError
from snugbert.trainers.output_folder import list_checkpoints, list_run_files, remove_run

logger = logging.getLogger(__name__)

# Devlin et al. (2018), appendix A.3.
BATCH_SIZES = (16, 32)
LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
EPOCHS = (2.0, 3.0, 4.0)

PLAN = "plan.json"  # in the output folder: what the runs have in common
DONE = "results.json"  # in a run's folder, written last
WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors", re.ASCII)
RUN_FOLDER = re.compile(r"batch-\d+_rate-[\d.e+-]+_epochs-[\d.e+-]+_seed-\d+", re.ASCII)  # see `Job.name`


class Setting(NamedTuple):
    """What the runs of a sweep differ in, but for the seed."""

    batch_size: int  # of all processes and accumulated batches together
    learning_rate: float
    epochs: float

    @property
    def name(self) -> str:
        """For a folder."""
        return f"batch-{self.batch_size}_rate-{self.learning_rate:g}_epochs-{self.epochs:g}"


class Run(NamedTuple):
    """A run that was done to its end."""

    setting: Setting
    folder: Path
    results: dict[str, Any]  # see `run.write_report`; of one that failed, the failure

    @property
    def failed(self) -> bool:
        """Whether it ended without a score."""
        return "failure" in self.results

    def figure(self, metric: str, set_name: str) -> float:
        """A figure; NaN where it was none, such as the correlation of a constant."""
        value = self.results.get("figures", {}).get(set_name, {}).get(metric)
        return np.nan if value is None else value


class Job(NamedTuple):
    """A run that is to be done, or is."""

    setting: Setting
    seed: int
    output_dir: Path  # of the sweep

    @property
    def name(self) -> str:
        """That of its folder."""
        return f"{self.setting.name}_seed-{self.seed}"

    @property
    def folder(self) -> Path:
        """Where all that it leaves is."""
        return self.output_dir / "runs" / self.name

    @property
    def is_done(self) -> bool:
        """Whether it was done to its end."""
        return (self.folder / DONE).exists()

    @property
    def run(self) -> Run:
        """What it gave, once it is done."""
        return Run(self.setting, self.folder, read_json(self.folder / DONE))


def run(task: FineTuningTask, model_args: FineTunedModelArguments, args: FineTuningArguments) -> None:
    """Fine-tunes once, or as often as `sweep` and `seeds` ask.

    Raises:
        InputError: as in [`fine_tune`]; the output folder holds something else; a batch of the grid cannot be divided.
    """
    if not args.sweeps:
        fine_tune(task, model_args, args)
        return
    choose_metric(task, args)
    if args.metric_for_best_model == "loss":
        raise InputError("--metric_for_best_model loss: a sweep is decided by a metric, such as " + task.main_metric)
    if task.train_features is None:
        raise InputError("--sweep and --seeds are for training, and there are no train examples.")
    output_dir = Path(str(args.output_dir))
    seeds = range(args.seed, args.seed + args.seeds)
    jobs = [Job(setting, seed, output_dir) for setting, seed in itertools.product(list_settings(args), seeds)]
    plan = {**make_plan(model_args, args, task.settings), **_examples(task)}
    claim(plan, args, [output_dir])
    for number, job in enumerate(jobs, start=1):
        if not job.is_done:
            logger.info("run %d of %d: %s", number, len(jobs), job.name)
            try:
                fine_tune(task, model_args, _make_arguments(args, job))
            except DivergedError as error:
                if args.world_size > 1:  # the others are in the middle of the next step
                    raise
                logger.warning("%s: %s", job.name, error)
                _write_failure(job, str(error))
            PartialState().wait_for_everyone()  # one process writes the results, all read them
            if args.should_save:
                # All that are done, not only those up to here: a sweep that goes on has some behind this one.
                _keep_best_weights(output_dir, _best([other.run for other in jobs if other.is_done], task, args))
    if args.should_save:
        runs = [job.run for job in jobs]
        best = _best(runs, task, args)
        if best.failed:
            raise InputError(f"every run of the sweep failed; the first: {runs[0].results['failure']}")
        summary = _summary(runs, task, args)
        tables = _tables(summary, best)
        _keep_best_weights(output_dir, best)  # an interruption may have come in between
        _hand_over(output_dir, best)
        repository = _create_repository(output_dir, args) if args.push_to_hub else None
        write_card(task, model_args, output_dir, best.results, repository or args.hub_model_id, tables)
        write_results(output_dir, {**best.results, "sweep": summary}, tables)
        print(f"\n{tables}", flush=True)
        if repository is not None:
            HfApi(token=args.hub_token).upload_folder(
                repo_id=repository,
                folder_path=output_dir,
                ignore_patterns=["runs/*", PLAN, TRAINING_ARGS_NAME],
                commit_message="Best of a sweep",
            )


def list_settings(args: FineTuningArguments) -> list[Setting]:
    """The settings to run: the paper's grid, or the arguments' own.

    Raises:
        InputError: a batch of the grid is not a multiple of processes and accumulated batches.
    """
    at_once = args.world_size * args.gradient_accumulation_steps
    if args.sweep != "paper":
        return [Setting(args.per_device_train_batch_size * at_once, args.learning_rate, args.num_train_epochs)]
    for batch_size in BATCH_SIZES:
        if batch_size % at_once:
            raise InputError(
                f"--sweep paper: batches of {batch_size} cannot be divided among {args.world_size} processes with "
                f"--gradient_accumulation_steps {args.gradient_accumulation_steps}; their product must divide it."
            )
    return list(itertools.starmap(Setting, itertools.product(BATCH_SIZES, LEARNING_RATES, EPOCHS)))


def _make_arguments(args: FineTuningArguments, job: Job) -> FineTuningArguments:
    its = copy.copy(args)
    its.per_device_train_batch_size = job.setting.batch_size // (args.world_size * args.gradient_accumulation_steps)
    its.learning_rate, its.num_train_epochs, its.seed = job.setting.learning_rate, job.setting.epochs, job.seed
    its.output_dir, its.overwrite_output_dir, its.resume_from_checkpoint = str(job.folder), True, None
    its.push_to_hub, its.sweep, its.seeds = False, None, 1
    if not its.load_best_model_at_end:
        its.save_strategy = "no"  # type: ignore[assignment]
    return its


def _write_failure(job: Job, message: str) -> None:
    """Results without figures. The run would fail again, and the sweep has others."""
    job.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(job.folder / DONE, json.dumps({"failure": f"{job.name}: {message}"}))


# --- the output folder --------------------------------------------------------------------------------------------


def make_plan(model_args: FineTunedModelArguments, args: FineTuningArguments, data: dict[str, Any]) -> dict[str, Any]:
    """What must not change as long as something that was begun goes on, by the names of the arguments.

    Args:
        model_args: the model.
        args: settings of training.
        data: how the data are read.
    """
    plan = {
        **asdict(model_args),
        **data,
        **collect_settings(args, DECIDES),
        "seeds": args.seeds,
        "sweeps": args.sweeps,
    }
    plan = {name: _without_folder(value) for name, value in plan.items()}
    where = ("token", "cache_dir", "overwrite_cache", "preprocessing_num_workers")
    return json.loads(json.dumps({f"--{name}": value for name, value in plan.items() if name not in where}))


def _without_folder(value: Any) -> Any:
    """Shortens an absolute path to its last part and a digest, because a plan may be published."""
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    return f"{Path(value).name} ({hashlib.sha256(value.encode()).hexdigest()[:8]})"


def claim(plan: dict[str, Any], args: FineTuningArguments, folders: list[Path]) -> None:
    """Makes sure that what is in the output folder was begun with this plan, or removes it if that was asked for.

    There may be more seeds than before. Not fewer: the weights that were kept may be those of a seed that is left out.

    Args:
        plan: from [`make_plan`].
        args: the output folder, and whether to replace what is there.
        folders: the output folder, and a folder for each task of a suite. Replacing removes only what runs write.

    Raises:
        InputError: the folder holds something else, and to replace it was not asked for.
    """
    output_dir = Path(str(args.output_dir))
    file = output_dir / PLAN
    # A plan alone is that of a command that was refused before its first run began.
    begun = any(path != file for folder in folders for path in (*list_run_files(folder), *run_folders(folder)))
    remedy = "choose another folder or replace it (--overwrite_output_dir)."
    goes_on = begun and file.exists() and not args.overwrite_output_dir
    if goes_on:
        before = read_json(file)
        changed = [name for name in plan if plan[name] != before.get(name) and name != "--seeds"]
        if changed:
            # One run is no sweep of one seed: its model is in the output folder.
            changed = ["--seeds" if name == "--sweeps" else name for name in changed]
            raise InputError(f"--output_dir: {output_dir} was begun with other {', '.join(changed)}; {remedy}")
        if plan["--seeds"] < before["--seeds"]:
            raise InputError(f"--seeds: {output_dir} was begun with {before['--seeds']}; give as many, or {remedy}")
    elif begun and not args.overwrite_output_dir:
        raise InputError(f"--output_dir: {output_dir} already holds a run; {remedy}")
    PartialState().wait_for_everyone()  # all have looked at what was there before
    if args.should_save:
        if not goes_on:
            for folder in folders:
                _remove_runs(folder)
        output_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(plan, indent=1))
    PartialState().wait_for_everyone()


def run_folders(output_dir: Path) -> list[Path]:
    """The folders of a sweep's runs in `output_dir`."""
    return [path for path in (output_dir / "runs").glob("*") if RUN_FOLDER.fullmatch(path.name)]


def _remove_runs(output_dir: Path) -> None:
    remove_run(output_dir)
    remove_plots(output_dir)
    for folder in run_folders(output_dir):
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _examples(task: FineTuningTask) -> dict[str, str]:
    sets = {"train": task.train_features, **{s.name: s.features for s in task.evaluation_sets}}
    return {f"{name} examples": _digest(features) for name, features in sets.items() if features is not None}


def _digest(dataset: Dataset) -> str:
    """A name for the content of the columns of numbers."""
    table = dataset.with_format("arrow")[:]
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table[name].combine_chunks()
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            digest.update(pc.list_value_length(column).to_numpy(zero_copy_only=False).tobytes())
            column = pc.list_flatten(column)
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            digest.update(name.encode() + column.to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:16]


def _keep_best_weights(output_dir: Path, best: Run) -> None:
    for folder in run_folders(output_dir):
        if (folder / DONE).exists():
            weights = [file for file in folder.iterdir() if WEIGHTS.fullmatch(file.name)]
            for file in weights if folder.name != best.folder.name else []:
                file.unlink()
            for checkpoint in list_checkpoints(folder):
                shutil.rmtree(checkpoint)


def _hand_over(output_dir: Path, best: Run) -> None:
    """Puts the best run's files into the output folder: weights are moved, what is small is copied."""
    for path in best.folder.iterdir():
        if path.suffix == ".safetensors":
            path.replace(output_dir / path.name)
        elif path.is_file() and path.name not in (DONE, "results.md"):
            shutil.copy2(path, output_dir / path.name)


def _create_repository(output_dir: Path, args: FineTuningArguments) -> str:
    """On the Hub, if it is not there yet; its full name."""
    name = args.hub_model_id or output_dir.resolve().name
    return HfApi(token=args.hub_token).create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id


# --- results ----------------------------------------------------------------------------------------------------


def _summary(runs: list[Run], task: FineTuningTask, args: FineTuningArguments) -> dict[str, Any]:
    """Mean and standard deviation over seeds: of the score of every setting, of all figures of the best setting."""
    set_name, metric = _chooses(task, args)
    settings = []
    failures = [run.results["failure"] for run in runs if run.failed]
    runs = [run for run in runs if not run.failed]
    for setting in dict.fromkeys(run.setting for run in runs):
        scores = [run.figure(metric, set_name) for run in runs if run.setting == setting]
        settings.append({**setting._asdict(), "seeds": len(scores), "scores": scores, **_mean_and_deviation(scores)})
    sign = 1 if args.greater_is_better else -1
    best = max(settings, key=lambda row: np.nan_to_num(sign * row["mean"], nan=-np.inf))
    of_best = [run for run in runs if run.setting == Setting(*(best[name] for name in Setting._fields))]
    figures = {
        name: {m: _mean_and_deviation([run.figure(m, name) for run in of_best]) for m in values}
        for name, values in of_best[0].results["figures"].items()
    }
    chosen_by = f"{set_name}_{metric}"
    return {
        "chosen_by": chosen_by,
        "settings": settings,
        "best_setting": best,
        "figures": figures,
        "failures": failures,
    }


def _mean_and_deviation(values: list[float]) -> dict[str, float]:
    # Of a sample: the deviation of one seed is not known.
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan}


def _chooses(task: FineTuningTask, args: FineTuningArguments) -> tuple[str, str]:
    evaluation_set = scored(task)
    assert evaluation_set is not None  # `choose_metric` sees to it
    return evaluation_set.name, str(args.metric_for_best_model)


def _best(runs: list[Run], task: FineTuningTask, args: FineTuningArguments) -> Run:
    set_name, metric = _chooses(task, args)
    sign = 1 if args.greater_is_better else -1

    def worth(run: Run) -> tuple[bool, float]:
        return not run.failed, np.nan_to_num(sign * run.figure(metric, set_name), nan=-np.inf)

    return max(runs, key=worth)


def _tables(summary: dict[str, Any], best: Run) -> str:
    figures = []
    for set_name, values in summary["figures"].items():
        of_all, by_type = apart(values)
        rows = {**of_all, **{f"{kind}_f1": of_type["f1"] for kind, of_type in by_type.items()}}
        examples = split_name(set_name).replace("_", " ")
        figures += [{"examples": examples, "figure": name.replace("_", " "), **value} for name, value in rows.items()]
    best_setting = Setting(*(summary["best_setting"][name] for name in Setting._fields))
    failures = "".join(f"\n\nWithout a score: {escape(failure)}" for failure in summary["failures"])
    return (
        f"Chosen by {summary['chosen_by']}.\n\n"
        f"{means_table((*Setting._fields, 'seeds'), summary['settings'])}{failures}\n\n"
        f"Best setting: {best_setting.name}, over its seeds:\n\n"
        f"{means_table(('examples', 'figure'), figures)}\n\n"
        f"The model is that of the best run: {best.folder.name}."
    )
