"""The output folder of a sweep or suite: which runs it contains, and whether a command may continue them.

`plan.json` lists everything that must be the same when a command is repeated. The runs of a sweep are in the folder
`runs`.
"""

import hashlib
import json
import math
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import snugbert
from snugbert.errors import InputError
from snugbert.files import read_json, write_atomically
from snugbert.reports.score_plots import remove_plots
from snugbert.storage.inputs import work_folder
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_facts import OUTCOME_SETTINGS, collect_settings, digest_features
from snugbert.trainers.run.folder import list_run_files, remove_run
from snugbert.trainers.run.processes import wait_for_all

PLAN = "plan.json"  # in the output folder
VERSION = "version of snugbert"  # in a plan
BUDGET = ("--seeds", "--runs", "--winner_seeds")  # in a plan. These values may grow
RUN_FOLDER = re.compile(r"batch-\d+_rate-[\d.e+-]+_epochs-[\d.e+-]+(_[\w.+-]+)?_seed-\d+", re.ASCII)  # see `plan_run`


def make_plan(model_args: FineTunedModelArguments, args: FineTuningArguments, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that must not change when a command continues the runs in a folder, by flag.

    Args:
        model_args: the model.
        args: training settings.
        data: data settings, by argument name.
    """
    plan = {
        **asdict(model_args),
        **data,
        **collect_settings(args, OUTCOME_SETTINGS),
        "seeds": args.seeds,
        "sweeps": args.sweeps,
    }
    if args.search is not None:
        plan |= {"runs": args.search.runs, "winner_seeds": args.search.winner_seeds}
        plan |= {} if args.sweep is None else {"sweep": args.search.content}
    plan = {name: _hide_folder(value) for name, value in plan.items()}
    irrelevant = ("token", "cache_dir", "overwrite_cache", "preprocessing_num_workers")
    flags = {f"--{name}": value for name, value in plan.items() if name not in irrelevant}
    return json.loads(json.dumps(flags | {VERSION: snugbert.__version__}))


def digest_examples(prepared: PreparedTask) -> dict[str, str]:
    """Returns a digest of the features of each set, for the plan."""
    sets = {"train": prepared.train_features, **{s.name: s.features.inputs for s in prepared.evaluation_sets}}
    digests = {
        f"{name} examples": digest_features(features) for name, features in sets.items() if features is not None
    }
    if prepared.distillation is not None:
        digests["teacher weights"] = prepared.distillation.teacher
    return digests


def check_plan(plan: dict[str, Any], args: FineTuningArguments, folders: list[Path]) -> bool:
    """Returns whether the command continues the runs in the output folder. Changes no files.

    More seeds and runs than before are allowed. Fewer are refused, because the best weights may come from a run that
    would be left out.

    Args:
        plan: from [`make_plan`].
        args: `output_dir` and `overwrite_output_dir`.
        folders: the folders that may contain runs: the output folder and, in a suite, one folder per task.

    Raises:
        InputError: the output folder contains something else, and `overwrite_output_dir` is not set.
    """
    output_dir = Path(str(args.output_dir))
    file = output_dir / PLAN
    # A folder with only a plan comes from a command that failed before its first run.
    begun = any(path != file for folder in folders for path in (*list_run_files(folder), *list_run_folders(folder)))
    if not begun or args.overwrite_output_dir:
        return False
    remedy = "Choose another folder, or replace the run (--overwrite_output_dir)."
    if not file.exists():
        raise InputError(f"--output_dir: {output_dir} already contains a run. {remedy}")
    before = read_json(file)
    before.pop(VERSION, None)
    if not all(before.get(name) is None or type(before[name]) is int for name in BUDGET):
        raise InputError(f"--output_dir: {file} is damaged. {remedy}")
    # An earlier version may have stored fewer names. The two flags that set the length are always compared.
    compared = {*before, "--max_steps", "--num_train_epochs"} - set(BUDGET)
    changed = [name for name in plan if name in compared and plan[name] != before.get(name)]
    if changed:
        # A single run is not a sweep over one seed: its model is in the output folder.
        changed = ["--seeds" if name == "--sweeps" else name for name in changed]
        raise InputError(f"--output_dir: {output_dir} contains a run with different {', '.join(changed)}. {remedy}")
    for name in BUDGET:
        limit, limit_before = (math.inf if each.get(name, 1) is None else each.get(name, 1) for each in (plan, before))
        if limit < limit_before:
            where, noun = (name, "seeds") if name == "--seeds" else ("--sweep", name.removeprefix("--"))
            raise InputError(
                f"{where}: {noun} cannot decrease. The last command in {output_dir} used {noun}: "
                f"{before[name] or 'unlimited'}. {remedy}"
            )
    return True


def prepare_folders(plan: dict[str, Any], args: FineTuningArguments, folders: list[Path]) -> None:
    """Checks the output folder, removes earlier runs unless the command continues them, and writes the plan.

    Only files that runs write are removed. See [`check_plan`] for arguments and errors.
    """
    continues = check_plan(plan, args, folders)
    wait_for_all()  # every process checks before the main process changes the folder
    if args.should_save:
        if not continues:
            for folder in folders:
                _remove_runs(folder)
        output_dir = Path(str(args.output_dir))
        output_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(output_dir / PLAN, json.dumps(plan, indent=1))
    wait_for_all()


def list_run_folders(output_dir: Path) -> list[Path]:
    """Returns the folders of a sweep's runs in `output_dir`."""
    return [path for path in (output_dir / "runs").glob("*") if RUN_FOLDER.fullmatch(path.name)]


def _remove_runs(output_dir: Path) -> None:
    remove_run(output_dir)
    remove_plots(output_dir)
    for folder in list_run_folders(output_dir):
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _hide_folder(value: Any) -> Any:
    """Cuts an absolute path to its last part and a digest, because a plan may be published.

    Local copies of a file in a store have the same digest on all machines, even in different folders.
    """
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    if Path(value).is_relative_to(work_folder()):
        value = str(Path(value).relative_to(work_folder()))
    return f"{Path(value).name} ({hashlib.sha256(value.encode()).hexdigest()[:8]})"
