"""`--dry_run` of `snugbert pretrain`: prints the plan of a run, and times the first steps of each phase."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

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
from snugbert.trainers.pretraining.batches import Phase, describe_phases
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.run.checkpoint_files import step_of


def run_dry_pretraining(
    make_trainer: Callable[..., PretrainingTrainer],
    args: PretrainingArguments,
    phases: Sequence[Phase],
    corpus: Corpus | None,
    checkpoint: str | None,
) -> None:
    """Takes the first steps of each phase in memory, and prints the plan of the run. Every process must call this.

    `phases` is empty if the run only evaluates. `checkpoint` is the folder to resume from.
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
        for number, (phase, text) in enumerate(zip(phases, describe_phases(phases), strict=True)):
            trainer = make_trainer(args=as_dry_run(args, f"{folder}/{number}"), phases=[phase])
            watches.append(time_steps(trainer))
            left = max(phase.steps - skipped, 0)
            skipped = max(skipped - phase.steps, 0)
            training += left * mean(watches[-1].seconds)
            rows["training" if len(phases) == 1 else f"phase {number + 1}"] = text + (
                "" if checkpoint is None else f", {left:,} left after {checkpoint}"
            )
        rows |= describe_steps(trainer, args, steps) if phases else {"memory": describe_peak(args.device)}
        evaluation = 0.0
        dataset: Any = trainer.eval_dataset
        if dataset is not None:
            rows["evaluation"] = f"{evaluations} x {format_count(len(dataset), 'example')}"
            number = min(len(dataset), EVALUATED_BATCHES * trainer.args.eval_batch_size * trainer.args.world_size)
            begin = time.perf_counter()
            trainer.evaluate(Subset(dataset, range(number)))
            evaluation = evaluations * (time.perf_counter() - begin) * len(dataset) / number
    rows["time"] = describe_seconds(start, training, evaluation, watches)
    print_plan(args, rows)
