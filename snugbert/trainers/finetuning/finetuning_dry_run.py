"""`--dry_run` of fine-tuning commands: prints the plan of a run or a sweep, and estimates its time from some steps."""

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snugbert.data.packed_batches import count_tokens
from snugbert.errors import format_count, shorten
from snugbert.progress import format_duration
from snugbert.reports.score_tables import set_title
from snugbert.trainers.dry_run import (
    EVALUATED_BATCHES,
    TIMED_STEPS,
    as_dry_run,
    as_steps,
    describe_peak,
    describe_seconds,
    describe_steps,
    print_plan,
    seconds_since_start,
    time_steps,
)
from snugbert.trainers.finetuning.fine_tune import make_trainer
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments
from snugbert.trainers.finetuning.finetuning_trainer import FineTuningTrainer
from snugbert.trainers.finetuning.model_selection import MOST_EVALUATIONS
from snugbert.trainers.finetuning.prepare_task import PreparedTask, read_finished_run
from snugbert.trainers.finetuning.run_facts import compared_settings
from snugbert.trainers.run.checkpoints import step_of
from snugbert.trainers.run.folder import check_disk_space, check_output_dir
from snugbert.trainers.run.log import WARMUP_ON_GPU


def run_dry_fine_tuning(
    prepared: PreparedTask, args: FineTuningArguments, runs: Sequence[FineTuningArguments] = (), spent: float = 0.0
) -> float:
    """Checks a run, takes a few of its steps in memory, and prints its plan. Every process must call this.

    Args:
        prepared: the task and its examples.
        args: the arguments of the command.
        runs: the arguments of the runs of a sweep that are not finished. The first run is measured, and the time of
            all other runs is estimated from their epochs or steps. Empty: the command is a single run.
        spent: seconds that the finished runs of the sweep took. They count towards its `hours`.

    Returns:
        The expected seconds of all runs.

    Raises:
        InputError: the run itself could not start.
    """
    start, trains, first = seconds_since_start(), prepared.train_features is not None, (*runs, args)[0]
    checkpoint = None
    if trains and not runs:
        if read_finished_run(args) is not None:
            print_plan(args, {"training": "nothing to do, the run is finished"})
            return 0.0
        checkpoint = check_output_dir(args, args.overwrite_output_dir)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(prepared, as_dry_run(first, folder))
        rows, training, watches = _describe_data(prepared, trainer), 0.0, []
        evaluations = {each.name: 1 for each in prepared.evaluation_sets}
        if trains:
            trainer.run_settings.command_settings = compared_settings(prepared, first)
            trainer.compare_settings(checkpoint)
            steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
            check_disk_space(first, trainer.model.parameters())  # type: ignore[arg-type]
            left = steps if checkpoint is None else steps - step_of(Path(checkpoint))
            during = _count_evaluations(trainer.args, steps)
            if prepared.validation_set is not None:
                # With "epoch", the final scores use the predictions of the last evaluation. Choosing thresholds or a
                # temperature takes one more evaluation.
                repeats = prepared.task.chooses_decisions - (trainer.args.eval_strategy == "epoch")
                evaluations[prepared.validation_set.name] += during + repeats
            resumed = "" if checkpoint is None else f", {left:,} left after {checkpoint}"
            rows["training"] = (
                f"{format_count(steps, 'step')} of {_step_size(trainer)} inputs, "
                f"{_count_epochs(trainer, steps):.3g} epochs{resumed}"
            )
            seconds, watch = _time_training(trainer, steps)
            training, watches = seconds * left, [watch]
            rows |= describe_steps(trainer, first, steps)
        else:
            rows["memory"] = describe_peak(args.device)
        times = {name: f"{number} x {set_title(name)}" for name, number in evaluations.items()}
        rows["evaluation"] = ", ".join(times.values()) or "none"
        evaluation = sum(
            evaluations[s.name] * _time_evaluation(trainer, s.features.inputs) for s in prepared.evaluation_sets
        )
    rows["time"] = describe_seconds(start, training, evaluation, watches)
    total = training + evaluation
    if runs:
        assert args.search is not None
        number, size, hours = format_count(len(runs), "run"), args.search.size, args.search.hours
        one, total = total, total * sum(map(_relative_length, runs)) / _relative_length(first)
        if hours is not None and (size is None or spent + total > 3600 * hours):  # the first run may take longer
            number = f"{'as many as fit' if size is None else f'at most {number}'} (hours: {hours:g})"
            total = max(one, 3600 * hours - spent)
        rows["runs"] = f"{number}, about {format_duration(start + total)} together"
    print_plan(args, rows)
    return total


def _describe_data(prepared: PreparedTask, trainer: FineTuningTrainer) -> dict[str, str]:
    sets = {set_title(each.name): each.features.inputs for each in prepared.evaluation_sets}
    sets = ({} if prepared.train_features is None else {"training": prepared.train_features}) | sets
    rows = {}
    for name, features in sets.items():
        lengths = count_tokens(features)
        rows[f"{name} data"] = (
            f"{format_count(len(lengths), 'input')} of at most {lengths.max()} tokens, {lengths.sum():,} tokens in all"
        )
    if prepared.copies.sentences:
        rows["copies"] = " ".join(prepared.copies.sentences)
    if prepared.task.labels is not None:
        rows["labels"] = shorten(list(prepared.task.labels))
    parameters = trainer.model.num_parameters()  # type: ignore[union-attr,operator]
    rows["model"] = f"{parameters:,} parameters, from {prepared.model_args.model_name_or_path or 'random weights'}"
    return rows


def _count_evaluations(args: Any, steps: int) -> int:
    """Returns the number of evaluations during training."""
    if args.eval_strategy == "steps":
        return steps // as_steps(args.eval_steps, steps)
    if args.eval_strategy != "epoch":
        return 0
    epochs = math.ceil(args.num_train_epochs)
    every = math.ceil(epochs / MOST_EVALUATIONS) if args.chooses_evaluation else 1  # see `FewerEvaluations`
    return math.ceil(epochs / every)


def _step_size(trainer: FineTuningTrainer) -> int:
    return trainer.get_total_train_batch_size(trainer.args)


def _count_epochs(trainer: FineTuningTrainer, steps: int) -> float:
    if trainer.args.max_steps <= 0:
        return trainer.args.num_train_epochs
    return steps * _step_size(trainer) / len(trainer.train_dataset)  # type: ignore[arg-type]


def _time_training(trainer: FineTuningTrainer, steps: int) -> tuple[float, Any]:
    """Trains on a sample of the training examples, with the largest batch first. Returns the mean seconds per step.

    Batches are drawn at random as in training. Seconds are scaled by tokens, so few steps are enough.
    """
    dataset: Any = trainer.train_dataset
    lengths, size = count_tokens(dataset), _step_size(trainer)
    order = np.random.default_rng(0).permutation(len(lengths))
    if trainer.args.train_sampling_strategy == "group_by_length":
        order = np.argsort(lengths, kind="stable")
    full = len(lengths) // size
    batches = sorted(np.array_split(order[: full * size], full) if full else [order], key=lambda x: lengths[x].sum())
    places = np.linspace(0, len(batches) - 1, WARMUP_ON_GPU + TIMED_STEPS).round().astype(int)
    # In random order, so that the first steps already cover small and large batches.
    chosen = [batches[-1], *(batches[place] for place in np.random.default_rng(0).permutation(places))]
    rows, epochs = np.concatenate(chosen), _count_epochs(trainer, steps)
    trainer.train_dataset = dataset.select(rows)
    trainer.args.train_sampling_strategy, trainer.args.max_steps = "sequential", steps
    watch = time_steps(trainer)
    taken, timed = trainer.state.global_step, len(watch.seconds)
    timed_rows = np.arange((taken - timed) * size, taken * size) % len(rows)  # a small data set is read repeatedly
    tokens = lengths[rows[timed_rows]].sum()
    return sum(watch.seconds) / tokens * lengths.sum() * epochs / steps, watch


def _time_evaluation(trainer: FineTuningTrainer, features: Any) -> float:
    """Returns the seconds of the predictions for all `features`, from a sample of all lengths."""
    lengths = count_tokens(features)
    number = min(len(lengths), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
    sample = np.argsort(lengths, kind="stable")[np.linspace(0, len(lengths) - 1, number).round().astype(int)]
    begin = time.perf_counter()
    trainer.predict(features.select(sample))
    return (time.perf_counter() - begin) * lengths.sum() / lengths[sample].sum()


def _relative_length(args: FineTuningArguments) -> float:
    """Returns the length of a run relative to other runs of its sweep."""
    if args.max_steps > 0:
        return args.max_steps * args.train_batch_size * args.gradient_accumulation_steps
    return args.num_train_epochs
