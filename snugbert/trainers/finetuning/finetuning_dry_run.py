"""`--dry_run` of fine-tuning commands: prints the plan of a run or a sweep, and estimates its time from some steps."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from snugbert.data.packed_batches import count_tokens
from snugbert.errors import format_count, shorten
from snugbert.progress import format_duration
from snugbert.reports.score_tables import set_title
from snugbert.trainers.dry_run import (
    EVALUATED_BATCHES,
    as_dry_run,
    as_steps,
    describe_peak,
    describe_seconds,
    describe_steps,
    print_plan,
    seconds_since_start,
    time_steps,
)
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.prepare_task import PreparedTask
from snugbert.trainers.finetuning.run_records import compared_settings
from snugbert.trainers.finetuning.single_run import make_trainer
from snugbert.trainers.run.checkpoints import step_of
from snugbert.trainers.run.folder import check_disk_space


def run_dry_fine_tuning(
    prepared: PreparedTask,
    args: FineTuningArguments,
    checkpoint: str | None = None,
    number: int | None = 1,
    seconds: float | None = None,
) -> float:
    """Checks a run, takes a few of its steps in memory, prints a plan, and returns the expected seconds of all runs.

    Every process must call this. In a sweep, `args` are the first run's. `number` of runs and `seconds` are what is
    left. None: no limit. The first run may take longer than `seconds`.
    """
    total, rows = 0.0, {"training": "nothing to do, the run is finished"}
    if number != 0:
        rows, one = _measure(prepared, args, checkpoint)
        total = math.inf if number is None else number * one
        total = total if seconds is None else min(total, max(one, seconds))
        if number != 1 or seconds is not None:
            rows["runs"] = (
                f"{number or 'as many as fit'}, about {format_duration(total)} if all are as long as this one"
            )
    print_plan(str(args.output_dir), rows)
    return total


def make_dry_trainer(prepared: PreparedTask, args: FineTuningArguments, folder: str) -> FineTuningTrainer:
    """Returns a trainer that writes into a temporary `folder` and reports nowhere."""
    return make_trainer(prepared, as_dry_run(args, folder))


def _measure(
    prepared: PreparedTask, args: FineTuningArguments, checkpoint: str | None
) -> tuple[dict[str, str], float]:
    """Takes a few steps of a run. Returns the rows of its plan, and its expected seconds."""
    begin, training, watches = seconds_since_start(), 0.0, []
    evaluations = {each.name: 1 for each in prepared.evaluation_sets}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_dry_trainer(prepared, args, folder)
        rows = _describe_data(trainer)
        if prepared.train_features is None:
            rows["memory"] = describe_peak(trainer.args.device)
        else:
            check_disk_space(trainer.args, trainer.model.parameters(), Path(str(args.output_dir)))
            trainer.run_settings.command_settings = compared_settings(prepared, trainer.args)
            trainer.compare_settings(checkpoint)
            steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
            left = steps if checkpoint is None else steps - step_of(Path(checkpoint))
            if prepared.validation_set is not None:
                evaluations[prepared.validation_set.name] = _count_evaluations(trainer.args, steps)
            resumed = "" if checkpoint is None else f", {left:,} left after {checkpoint}"
            batch = trainer.get_total_train_batch_size(trainer.args)
            epochs = steps * batch / len(prepared.train_features) if args.max_steps > 0 else args.num_train_epochs
            rows["training"] = f"{format_count(steps, 'step')} of {batch} inputs, {epochs:.3g} epochs{resumed}"
            watches = [time_steps(trainer)]
            training = left * float(np.mean(watches[0].seconds))
            rows |= describe_steps(trainer.args, steps)
        times = [f"{number} x {set_title(name)}" for name, number in evaluations.items()]
        rows["evaluation"] = ", ".join(times) or "none"
        evaluation = sum(
            evaluations[s.name] * _time_evaluation(trainer, s.features.inputs) for s in prepared.evaluation_sets
        )
    rows["time"] = describe_seconds(begin, training, evaluation, watches)
    return rows, training + evaluation


def _describe_data(trainer: FineTuningTrainer) -> dict[str, str]:
    prepared = trainer.prepared
    sets = {set_title(each.name): each.features.inputs for each in prepared.evaluation_sets}
    sets = ({} if prepared.train_features is None else {"training": prepared.train_features}) | sets
    rows = {}
    for name, features in sets.items():
        lengths = count_tokens(features)
        rows[f"{name} data"] = (
            f"{format_count(len(lengths), 'input')} of at most {lengths.max()} tokens, {lengths.sum():,} tokens in all"
        )
    if prepared.task.labels is not None:
        rows["labels"] = shorten(list(prepared.task.labels))
    parameters = trainer.model.num_parameters()  # type: ignore[union-attr,operator]
    rows["model"] = f"{parameters:,} parameters, from {prepared.model_args.model_name_or_path or 'random weights'}"
    return rows


def _count_evaluations(args: Any, steps: int) -> int:
    """Returns the number of evaluations. After the last step, the scores are often known."""
    if args.eval_strategy == "steps":
        return math.ceil(steps / as_steps(args.eval_steps, steps))
    return math.ceil(args.num_train_epochs) if args.eval_strategy == "epoch" else 1


def _time_evaluation(trainer: FineTuningTrainer, features: Any) -> float:
    """Returns the seconds of the predictions for all `features`, estimated from a sample."""
    number = min(len(features), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
    sample = features.select(np.linspace(0, len(features) - 1, number).round().astype(int))
    begin = time.perf_counter()
    trainer.predict(sample)
    return (time.perf_counter() - begin) * len(features) / number
