"""`--dry_run` of `snugbert pretrain`: prints the plan of a run, and times the first steps of each phase."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

from snugbert.data.corpus.corpus import Corpus
from snugbert.errors import format_count
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
from snugbert.trainers.pretraining.batches import Phase, note_missing_pairs
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.run.checkpoints import step_of


def run_dry_pretraining(
    make_trainer: Callable[..., PretrainingTrainer],
    args: PretrainingArguments,
    phases: Sequence[Phase],
    corpus: Corpus | None,
    checkpoint: str | None,
) -> None:
    """Takes the first steps of each phase in memory, and prints the plan of the run. Every process must call this.

    Args:
        make_trainer: makes a trainer from `args` and `phases`.
        args: the arguments of the run.
        phases: the phases of the run. Empty if the run only evaluates.
        corpus: the training text.
        checkpoint: the folder to resume from. None if the run starts at step 0.
    """
    start, steps, rows = seconds_since_start(), sum(phase.steps for phase in phases), dict[str, str]()
    skipped = 0 if checkpoint is None else step_of(Path(checkpoint))
    training, watches = 0.0, []
    if corpus is not None:
        rows["text"] = str(corpus)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args=as_dry_run(args, folder), phases=phases)
        rows["model"] = f"{sum(parameter.numel() for parameter in trainer.model.parameters()):,} parameters"
        interval = as_steps(trainer.args.eval_steps or 1, steps)  # of the whole run
        evaluations = 1 + (steps // interval if trainer.args.eval_strategy == "steps" else 0)
        for number, (phase, remark) in enumerate(zip(phases, note_missing_pairs(phases), strict=True)):
            trainer = make_trainer(args=as_dry_run(args, f"{folder}/{number}"), phases=[phase])
            watches.append(time_steps(trainer))
            left = max(phase.steps - skipped, 0)
            skipped = max(skipped - phase.steps, 0)
            seconds = watches[-1].seconds
            training += left * sum(seconds) / len(seconds)
            name = "training" if len(phases) == 1 else f"phase {number + 1}"
            rows[name] = (
                f"{format_count(phase.steps, 'step')} of {phase.batch_size:,} examples of at most "
                f"{phase.max_seq_length} tokens{remark}, "
                f"{phase.steps * phase.batch_size / len(phase.dataset):.3g} epochs"
            ) + ("" if checkpoint is None else f", {left:,} left after {checkpoint}")
        rows |= describe_steps(trainer, args, steps) if phases else {"memory": describe_peak(args.device)}
        evaluation = evaluations * _time_evaluation(trainer)
    if trainer.eval_dataset is not None:
        rows["evaluation"] = f"{evaluations} x {format_count(len(trainer.eval_dataset), 'example')}"  # type: ignore[arg-type]
    rows["time"] = describe_seconds(start, training, evaluation, watches)
    print_plan(args, rows)


def _time_evaluation(trainer: PretrainingTrainer) -> float:
    """Returns the seconds of an evaluation, estimated from a sample of the examples."""
    dataset: Any = trainer.eval_dataset
    if dataset is None:
        return 0.0
    number = min(len(dataset), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
    places = torch.linspace(0, len(dataset) - 1, number).round().int().tolist()
    begin = time.perf_counter()
    trainer.evaluate(Subset(dataset, places))
    return (time.perf_counter() - begin) * len(dataset) / number
