"""Finds wrong labels (`snugbert glue --folds 5`): predicts each training example with a model that has not seen it.

    training examples -> folds -> a model for each fold, trained on the others -> predictions -> least likely labels

The predictions of a finished fold are in OUTPUT/folds/HASH, so an interrupted command continues with the next fold.
"""

import copy
import json
import logging
import shutil
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold

from snugbert.errors import InputError, format_count
from snugbert.files import dump_json, hash_json, write_atomically
from snugbert.storage.uploads import find_output
from snugbert.tasks.copies import hash_texts
from snugbert.tasks.evaluation_set import EvaluationSet
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import OUTCOME_SETTINGS, collect_settings, compared_settings
from snugbert.trainers.finetuning.settled_arguments import settle_arguments
from snugbert.trainers.finetuning.single_run import find_start, make_trainer
from snugbert.trainers.run.processes import ask_first_process, wait_for_all
from snugbert.trainers.run.stopping import raise_if_interrupted

PREDICTIONS, SUSPICIOUS = "out_of_fold_predictions.jsonl", "suspicious_labels.csv"  # in the output folder
COLUMNS = ("row", "label", "predicted_label", "label_probability", "copies", "rows_with_another_label")
MOST_LISTED = 5  # rows with another label

logger = logging.getLogger(__name__)


def run_folds(prepared: PreparedTask, args: FineTuningArguments) -> None:
    """Writes the out-of-fold predictions of all training examples, and the labels that are probably wrong."""
    task, split = prepared.task, prepared.train_split
    settle_arguments(prepared, args)
    texts, labels = task.list_texts(split)
    # Copies share a fold. Otherwise, a wrong label of a copy would be learned, and would not look wrong.
    copies: dict[int, list[int]] = defaultdict(list)
    for index, key in enumerate(hash_texts(texts, task.tokenizer)):
        copies[key].append(index)
    if not 2 <= (args.folds or 0) <= len(copies):
        raise InputError(f"--folds {args.folds} must be from 2 to {len(copies)}, the number of different texts.")
    groups = np.zeros(split.num_examples, np.int64)
    for number, indices in enumerate(copies.values()):
        groups[indices] = number
    folder = _name_folder(prepared, args)
    if args.overwrite_output_dir and args.should_save and str(args.resume_from_checkpoint).lower() != "true":
        shutil.rmtree(folder.parent, ignore_errors=True)
    wait_for_all()
    rows: dict[int, dict[str, Any]] = {}
    folds = GroupKFold(args.folds or 0, shuffle=True, random_state=args.seed).split(groups, groups=groups)
    for fold, (seen, held_out) in enumerate(folds, start=1):
        file = folder / f"{fold}.json"
        if not ask_first_process(file.exists):
            logger.info("fold %d of %d", fold, args.folds)
            _predict_fold(prepared, args, seen, held_out, file)
        if args.should_save:
            found = json.loads(file.read_text(encoding="utf-8"))
            rows |= {index: {"fold": fold, **row} for index, row in zip(held_out.tolist(), found, strict=True)}
    if args.should_save:
        for indices in copies.values():
            for index in indices:
                others = (rows[each]["row"] for each in indices if labels[each] != labels[index])
                rows[index] |= {"copies": len(indices) - 1, "rows_with_another_label": [*islice(others, MOST_LISTED)]}
        _write_rows([rows[index] for index in sorted(rows)], Path(str(args.output_dir)))


def _name_folder(prepared: PreparedTask, args: FineTuningArguments) -> Path:
    """Returns the folder of finished folds. Its name is a hash of the data, the model and the settings."""
    settings = collect_settings(args, OUTCOME_SETTINGS) | compared_settings(prepared, args, finished=True)
    weights = sorted(Path(str(prepared.model_args.model_name_or_path)).glob("*.safetensors"))
    versions = [file.stat().st_mtime_ns for file in weights]
    name = hash_json([settings, prepared.task.labels, versions, args.folds])[:16]
    return Path(str(args.output_dir)) / "folds" / name


def _predict_fold(
    prepared: PreparedTask, args: FineTuningArguments, seen: np.ndarray, held_out: np.ndarray, file: Path
) -> None:
    """Trains on the examples `seen`, and writes predictions of the examples `held_out` to a file."""
    task, split = prepared.task, prepared.train_split
    examples = EvaluationSet(task, task.select(split, held_out, "test"))
    part = replace(prepared, train_features=task.encode(task.select(split, seen, "train")).inputs)
    run_args = copy.copy(args)
    run_args.output_dir, run_args.folds = str(file.with_suffix("")), None
    run_args.overwrite_output_dir, run_args.resume_from_checkpoint, run_args.push_to_hub = True, "true", False
    trainer = make_trainer(part, run_args)
    trainer.train(find_start(run_args).checkpoint)
    raise_if_interrupted(trainer)
    output = trainer.predict(examples.features.inputs)
    rows = task.rate_labels(examples.split, output.predictions, examples.features)  # type: ignore[attr-defined]
    if args.should_save:
        write_atomically(file, dump_json(rows))
        shutil.rmtree(str(run_args.output_dir), ignore_errors=True)  # checkpoints
        if (output_dir := find_output(Path(str(args.output_dir)))) is not None:
            output_dir.upload_run()  # so that another machine can continue with the next fold
    wait_for_all()


def _write_rows(rows: list[dict[str, Any]], output_dir: Path) -> None:
    write_atomically(output_dir / PREDICTIONS, "".join(f"{dump_json(row)}\n" for row in rows))
    table = pd.DataFrame(rows)
    table["rows_with_another_label"] = [", ".join(map(str, row["rows_with_another_label"])) for row in rows]
    wrong = table["label"] != table["predicted_label"]
    listed = table[wrong | (table["rows_with_another_label"] != "")].sort_values("label_probability", kind="stable")
    texts = [name for name in table if name not in (*COLUMNS, "fold", "probabilities", "tags", "predicted_tags")]
    text = listed.to_csv(columns=[*COLUMNS, *texts], index=False, float_format="%.4f")
    write_atomically(output_dir / SUSPICIOUS, f"\ufeff{text}")  # the mark tells Excel the encoding
    print(
        f"\nOut-of-fold predictions differ from the labels of {wrong.sum():,} of {format_count(len(rows), 'example')} "
        f"({wrong.mean():.1%}).\n{output_dir / SUSPICIOUS}: the least likely labels first, "
        f"{format_count(len(listed), 'row')}\n{output_dir / PREDICTIONS}: all rows",
        flush=True,
    )
