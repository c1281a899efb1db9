"""Several runs of a task: the paper's grid, several seeds; one table, the best by the validation examples.

Each run has a folder in OUTPUT/runs, and what is there to its end is not done again: a sweep that was interrupted goes
on with the run that it was at. Only the best run keeps its weights; when all are done its files go to OUTPUT.
"""

import copy
import hashlib
import itertools
import json
import logging
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

from snugbert.trainers.command_line import InputError
from snugbert.trainers.finetuning import report
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.run import Task, choose_metric, fine_tune, scored, settings_of, write_card
from snugbert.trainers.model_card import table

logger = logging.getLogger(__name__)

# Devlin et al. (2018), appendix A.3.
BATCH_SIZES = (16, 32)
LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
EPOCHS = (2.0, 3.0, 4.0)

PLAN = "sweep.json"  # in the output folder: what the runs have in common
DONE = "results.json"  # in a run's folder, written last


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
    seed: int
    folder: Path
    results: dict[str, Any]  # see `run.write_report`

    def figure(self, metric: str, set_name: str) -> float:
        """A figure; NaN where it was none, such as the correlation of a constant."""
        value = self.results["figures"][set_name].get(metric)
        return np.nan if value is None else value


def run(task: Task, model_args: FineTunedModelArguments, args: FineTuningArguments) -> None:
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
    settings = settings_of_sweep(args)
    _claim(output_dir, _plan(task, model_args, args), args)
    seeds = range(args.seed, args.seed + args.seeds)
    jobs = list(itertools.product(settings, seeds))
    runs: list[Run] = []
    for number, (setting, seed) in enumerate(jobs, start=1):
        folder = output_dir / "runs" / f"{setting.name}_seed-{seed}"
        if not (folder / DONE).exists():
            logger.info("run %d of %d: %s, seed %d", number, len(jobs), setting.name, seed)
            fine_tune(task, model_args, _arguments_of(args, setting, seed, folder))
            PartialState().wait_for_everyone()  # one process writes the results, all read them
        runs.append(Run(setting, seed, folder, json.loads((folder / DONE).read_text(encoding="utf-8"))))
        if args.should_save:
            _keep_best_weights(output_dir, _best(runs, task, args))
    if args.should_save:
        best = _best(runs, task, args)
        summary = _summary(runs, task, args)
        tables = _tables(summary, best)
        _hand_over(output_dir, best)
        write_card(task, output_dir, best.results, args, tables)
        report.write_results(output_dir, {**best.results, "sweep": summary}, tables)
        print(f"\n{tables}", flush=True)
        if args.push_to_hub:
            _push(output_dir, args)


def settings_of_sweep(args: FineTuningArguments) -> list[Setting]:
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
                f"--gradient_accumulation_steps {args.gradient_accumulation_steps}."
            )
    return list(itertools.starmap(Setting, itertools.product(BATCH_SIZES, LEARNING_RATES, EPOCHS)))


def _arguments_of(args: FineTuningArguments, setting: Setting, seed: int, folder: Path) -> FineTuningArguments:
    job = copy.copy(args)
    job.per_device_train_batch_size = setting.batch_size // (args.world_size * args.gradient_accumulation_steps)
    job.learning_rate, job.num_train_epochs, job.seed = setting.learning_rate, setting.epochs, seed
    job.output_dir, job.overwrite_output_dir, job.resume_from_checkpoint = str(folder), True, None
    job.push_to_hub, job.sweep, job.seeds = False, None, 1
    if not job.load_best_model_at_end:
        job.save_strategy = "no"  # type: ignore[assignment]
    return job


# --- the output folder --------------------------------------------------------------------------------------------


def _plan(task: Task, model_args: FineTunedModelArguments, args: FineTuningArguments) -> dict[str, Any]:
    """What a sweep must not change while it goes on. More seeds may be added."""
    features = {s.name: s.features for s in task.evaluation_sets}
    plan = {
        "task": task.name,
        "model": {**asdict(model_args), "token": None},
        "sweep": args.sweep,
        "settings": {**settings_of(args), "metric_for_best_model": args.metric_for_best_model},
        "examples": {name: _digest(data) for name, data in {"train": task.train_features, **features}.items() if data},
    }
    return json.loads(json.dumps(plan))


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


def _claim(output_dir: Path, plan: dict[str, Any], args: FineTuningArguments) -> None:
    file = output_dir / PLAN
    if file.exists() and not args.overwrite_output_dir:
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [name for name in plan if plan[name] != before.get(name)]
        for name in ("settings", "model", "examples"):
            if name in changed:
                changed += [f"{name}.{key}" for key in plan[name] if plan[name][key] != before[name].get(key)]
                changed.remove(name)
        if changed:
            raise InputError(
                f"--output_dir: {output_dir} holds a sweep of other {', '.join(changed)}; choose another folder or "
                "replace it (--overwrite_output_dir)."
            )
        return
    if (output_dir / "config.json").exists() and not args.overwrite_output_dir:
        raise InputError(
            f"--output_dir: {output_dir} already holds a run that is no sweep; choose another folder or replace it "
            "(--overwrite_output_dir)."
        )
    if args.should_save:
        shutil.rmtree(output_dir / "runs", ignore_errors=True)
        output_dir.mkdir(parents=True, exist_ok=True)
        report.write_atomically(file, json.dumps(plan, indent=1))


def _keep_best_weights(output_dir: Path, best: Run) -> None:
    for weights in (output_dir / "runs").glob("*/*.safetensors"):
        folder = weights.parent
        if folder.name != best.folder.name and (folder / DONE).exists():
            weights.unlink()
    for checkpoint in (output_dir / "runs").glob("*/checkpoint-*"):
        if (checkpoint.parent / DONE).exists():
            shutil.rmtree(checkpoint)


def _hand_over(output_dir: Path, best: Run) -> None:
    """Puts the best run's files into the output folder: weights are moved, what is small is copied."""
    for path in best.folder.iterdir():
        if path.suffix == ".safetensors":
            path.replace(output_dir / path.name)
        elif path.name not in (DONE, "results.md"):
            shutil.copy2(path, output_dir / path.name)


def _push(output_dir: Path, args: FineTuningArguments) -> None:
    hub = HfApi(token=args.hub_token)
    name = args.hub_model_id or output_dir.resolve().name
    repository = hub.create_repo(name, private=args.hub_private_repo, exist_ok=True).repo_id
    hub.upload_folder(
        repo_id=repository, folder_path=output_dir, ignore_patterns=["runs/*"], commit_message="Best of a sweep"
    )


# --- results ----------------------------------------------------------------------------------------------------


def _summary(runs: list[Run], task: Task, args: FineTuningArguments) -> dict[str, Any]:
    """Mean and standard deviation over seeds: of the score of every setting, of all figures of the best setting."""
    set_name, metric = _chooses(task, args)
    settings = []
    for setting in dict.fromkeys(run.setting for run in runs):
        scores = [run.figure(metric, set_name) for run in runs if run.setting == setting]
        settings.append({**setting._asdict(), "scores": scores, **_mean_and_deviation(scores)})
    sign = 1 if args.greater_is_better else -1
    best = max(settings, key=lambda row: np.nan_to_num(sign * row["mean"], nan=-np.inf))
    of_best = [run for run in runs if run.setting == Setting(*(best[name] for name in Setting._fields))]
    figures = {
        name: {m: _mean_and_deviation([run.figure(m, name) for run in of_best]) for m in values}
        for name, values in of_best[0].results["figures"].items()
    }
    return {"chosen_by": f"{set_name}_{metric}", "settings": settings, "best_setting": best, "figures": figures}


def _mean_and_deviation(values: list[float]) -> dict[str, float]:
    # Of a sample: the deviation of one seed is not known.
    return {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan}


def _chooses(task: Task, args: FineTuningArguments) -> tuple[str, str]:
    evaluation_set = scored(task)
    assert evaluation_set is not None  # `choose_metric` sees to it
    return evaluation_set.name, str(args.metric_for_best_model)


def _best(runs: list[Run], task: Task, args: FineTuningArguments) -> Run:
    set_name, metric = _chooses(task, args)
    sign = 1 if args.greater_is_better else -1
    return max(runs, key=lambda run: np.nan_to_num(sign * run.figure(metric, set_name), nan=-np.inf))


def _tables(summary: dict[str, Any], best: Run) -> str:
    settings = report.sweep_table(list(Setting._fields), summary["settings"])
    figures = table(
        ("examples", "figure", "mean", "standard deviation"),
        [
            (set_name, metric, f"{value['mean']:.4f}", f"{value['std']:.4f}" if value["std"] == value["std"] else "-")
            for set_name, values in summary["figures"].items()
            for metric, value in values.items()
        ],
    )
    best_setting = Setting(*(summary["best_setting"][name] for name in Setting._fields))
    return (
        f"Chosen by {summary['chosen_by']}.\n\n{settings}\n\n"
        f"Best setting: {best_setting.name}, over its seeds:\n\n{figures}\n\n"
        f"The model is that of the best run: {best.folder.name}."
    )
