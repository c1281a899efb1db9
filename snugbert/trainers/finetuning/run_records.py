"""What runs and sweeps record: settings, results, and values that must not change when a command continues.

`plan.json`, in the output folder of a sweep, lists everything that must be the same when the command is repeated. The
runs of a sweep are in the folder `runs`.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from accelerate import PartialState
from datasets import Dataset

from snugbert.card_snugbert import find_base_model
from snugbert.continuation import check_continuation, make_record
from snugbert.errors import InputError
from snugbert.files import hash_json, read_json, write_atomically
from snugbert.reports.cards import package_versions
from snugbert.reports.results import RunResults
from snugbert.reports.score_tables import set_title
from snugbert.storage.inputs import work_folder
from snugbert.storage.uploads import find_output
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.finetuning.finetuning_arguments import COMPARED_SETTINGS, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.settled_arguments import total_batch_size
from snugbert.trainers.finetuning.sweep_file import DISTILLATION_SETTINGS, TRAINING_FLAGS, SweepFile
from snugbert.trainers.run.folder import list_run_files, remove_run
from snugbert.trainers.run.processes import wait_for_all
from snugbert.trainers.run.run_settings import BEST_MODEL_SETTINGS, TRAINING_SETTINGS

# The training settings in results.json and in the model card.
SETTINGS = (*TRAINING_FLAGS, "gradient_accumulation_steps", "early_stopping_patience", "precision", "seed")
# All settings that affect the outcome. They must not change when a sweep continues.
OUTCOME_SETTINGS = (
    *SETTINGS,
    *TRAINING_SETTINGS,
    *BEST_MODEL_SETTINGS,
    *COMPARED_SETTINGS,
    *DISTILLATION_SETTINGS,
    "do_train",
    "do_eval",
    "do_predict",
    "pad_to_max_length",
)
PLAN = "plan.json"  # in the output folder
JOURNAL = "trials.jsonl"  # in the output folder of a sweep: Optuna's journal
BUDGET = ("--seeds", "runs")  # entries of a plan that may grow
NOT_COMPARED = ("token", "cache_dir")


def collect_settings(args: FineTuningArguments, names: tuple[str, ...] = SETTINGS) -> dict[str, Any]:
    """Returns the settings `names` and the number of processes, as JSON values."""
    values = {name: getattr(args, name) for name in names}
    values = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    del values["num_train_epochs" if args.max_steps > 0 else "max_steps"]  # max_steps overrides the epochs
    return {**values, "processes": args.world_size}


def collect_results(
    prepared: PreparedTask,
    args: FineTuningArguments,
    training: dict[str, float],
    metrics: dict[str, dict[str, float]],
    changes: Sequence[str] = (),
) -> RunResults:
    """Returns the content of `results.json`. `training` is empty without training. `changes` were made on resume."""
    config_name = prepared.model_args.config_name
    baselines = {s.name: s.baseline for s in prepared.evaluation_sets if s.baseline is not None}
    return {
        "task": prepared.task.name,
        "model": find_base_model(prepared.model_args.model_name_or_path)[1],
        "config": find_base_model(config_name)[1] if config_name else None,
        "metrics": metrics,
        "perfect_score": prepared.task.perfect_score,
        "baselines": {name: {"answer": answer, **scores} for name, (answer, scores) in baselines.items()},
        "examples": {s.name: s.split.num_examples for s in prepared.evaluation_sets},
        "data": {name: [source._asdict() for source in sources] for name, sources in prepared.data.items()},
        "copies": prepared.copies.sentences,
        "training": training,
        "settings": {
            **_list_student_settings(prepared),
            **prepared.settings,
            **({name: getattr(args, name) for name in DISTILLATION_SETTINGS} if prepared.soft_targets else {}),
            **(collect_settings(args) if training else {}),
            **({"changed_on_resume": "; ".join(changes)} if changes else {}),
        },
        "versions": package_versions(),
    }


def compared_settings(prepared: PreparedTask, args: FineTuningArguments, finished: bool = False) -> dict[str, Any]:
    """Returns further settings that must not change on resume. If `finished`, all that determine the results."""
    sets = prepared.evaluation_sets if finished else []
    if args.load_best_model_at_end and prepared.validation_set is not None and not finished:
        sets = [prepared.validation_set]
    settings = {
        "--model_name_or_path": find_base_model(prepared.model_args.model_name_or_path)[1],
        **{f"--{name}": value for name, value in _list_student_settings(prepared).items()},
        "batch": total_batch_size(args),
        "data": digest_examples(prepared, sets),
    }
    if finished:
        settings |= {"--num_train_epochs": args.num_train_epochs, "--max_steps": args.max_steps, **prepared.settings}
    return settings


def _list_student_settings(prepared: PreparedTask) -> dict[str, Any]:
    """Returns which layers of the checkpoint the model starts from. Empty: all."""
    names = ("num_student_layers", "student_layers") if prepared.student_layers is not None else ()
    return {name: getattr(prepared.model_args, name) for name in names}


def digest_examples(prepared: PreparedTask, sets: Sequence[EvaluationSet[Any]]) -> dict[str, str]:
    """Returns a digest of the training examples, of the examples of `sets`, and of the teacher."""
    data = {} if prepared.train_features is None else {"the training data": prepared.train_features}
    data |= {f"the {set_title(each.name)} data": each.features.inputs for each in sets}
    digests = {name: digest_features(features) for name, features in data.items()}
    if prepared.soft_targets is not None:
        digests["the teacher"] = prepared.soft_targets.teacher
    return digests


def digest_features(dataset: Dataset) -> str:
    """Returns a digest of the numeric columns, which changes if an example changes."""
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


# --- the plan of a sweep -----------------------------------------------------------------------------------


def make_plan(prepared: PreparedTask, args: FineTuningArguments, search: SweepFile) -> dict[str, Any]:
    """Returns the values that must not change when a command continues a sweep."""
    given = asdict(prepared.model_args) | prepared.settings | collect_settings(args, OUTCOME_SETTINGS)
    plan = {f"--{name}": _hide_folder(value) for name, value in given.items() if name not in NOT_COMPARED}
    plan |= {"--sweep": search.plan, "--seeds": args.seeds, "runs": search.size}
    return plan | digest_examples(prepared, prepared.evaluation_sets)


def check_plan(plan: dict[str, Any], output_dir: Path) -> bool:
    """Returns whether the command continues the sweep in the output folder. Changes no files.

    More seeds and runs than before are allowed. Fewer are refused, because the best weights may come from a run that
    would be left out.
    """
    file = output_dir / PLAN
    # A folder with only a plan comes from a command that failed before its first run.
    if not {*list_run_files(output_dir), *list_run_folders(output_dir)} - {file}:
        return False
    remedy = "Choose another folder, or replace the run (--overwrite_output_dir)."
    if not file.exists():
        raise InputError(f"--output_dir: {output_dir} already contains a run. {remedy}")
    record = read_json(file)
    before = record.get("settings", {})
    grown = {name: before[name] for name in BUDGET if before.get(name, math.inf) <= plan.get(name, 0)}
    check_continuation(record, "sweep", plan | grown, f"--output_dir: the run in {output_dir}", remedy)
    return True


def list_run_folders(output_dir: Path) -> list[Path]:
    """Returns the folders of a sweep's runs in `output_dir`. Leaves out other folders, such as TensorBoard's."""
    return list((output_dir / "runs").glob("batch-*_rate-*_epochs-*_seed-*"))


def prepare_folder(plan: dict[str, Any], output_dir: Path, continues: bool) -> None:
    """Removes an earlier run unless the command continues it, and writes the plan. Every process must call this."""
    wait_for_all()  # every process checks before the main process changes the folder
    if PartialState().is_main_process:
        if not continues:
            remove_run(output_dir)
            (output_dir / JOURNAL).unlink(missing_ok=True)
            for folder in list_run_folders(output_dir):
                shutil.rmtree(folder, ignore_errors=True)
        output_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(output_dir / PLAN, json.dumps(make_record("sweep", plan), indent=1))
        if (output := find_output(output_dir)) is not None:
            output.upload_run()  # so that another machine can continue with this plan
    wait_for_all()


def _hide_folder(value: Any) -> Any:
    """Cuts an absolute path to its last part and a digest, because a plan may be published.

    Local copies of a file in a store have the same digest on all machines, even in different folders.
    """
    if not isinstance(value, str) or not os.path.isabs(value):
        return value
    if Path(value).is_relative_to(work_folder()):
        value = str(Path(value).relative_to(work_folder()))
    return f"{Path(value).name} ({hash_json(value)[:8]})"
