"""Which examples a step of training sees, and which of them a process takes: arithmetic on their numbers.

A run has one phase or several: 90 % of the steps on short sequences, the rest on long ones (Devlin et al., 2018,
appendix A.2). The examples of all phases stand in one row, and step `s` of a run is a fixed range of it, however many
processes and accumulated batches share it. Nothing is drawn and nothing remembered: any step can be the first.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from snugbert.errors import InputError


@dataclass
class Phase:
    """Consecutive steps on examples of one length.

    Attributes:
        dataset: a [`PretrainingDataset`] of `steps` x `batch` examples; `max_seq_length` says how long they are,
            `epoch_length` how many make a pass over the corpus.
        steps: of the optimizer.
        batch: sequences of a step, over all processes and accumulated batches.
    """

    dataset: Any
    steps: int
    batch: int


def parse_phases(text: str) -> list[tuple[int, float]]:
    """The lengths and shares of `--phases`: "128:90%,512:10%" -> [(128, 0.9), (512, 0.1)].

    Raises:
        InputError: another form, or shares that do not add up to 100 %.
    """
    phases = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+(?:\.\d+)?)\s*%\s*", part)
        if match is None:
            raise InputError(f"--phases: {part.strip()!r} is not a length and its share of steps, such as 128:90%.")
        phases.append((int(match[1]), float(match[2]) / 100))
    total = sum(share for _, share in phases)
    if abs(total - 1) > 1e-9:
        raise InputError(f"--phases: the shares of {text!r} add up to {100 * total:g} %, not to 100 %.")
    return phases


def plan_phases(datasets: Sequence[Any], shares: Sequence[float], args: Any) -> list[Phase]:
    """Gives each length its steps and its batch, and each dataset exactly the examples of its steps.

    A step has the same number of tokens in every phase, so long sequences are fewer. The first phase's batch is
    `per_device_train_batch_size` x `gradient_accumulation_steps` x processes.

    Args:
        datasets: a [`PretrainingDataset`] for each phase; `num_examples` is set.
        shares: of the steps, for each phase; together 1.
        args: [`PretrainingArguments`]; with `max_steps` below 1, `num_train_epochs` counts passes over the corpus.

    Raises:
        InputError: a phase without a step, or without a sequence for every process and accumulated batch.
    """
    parts = args.gradient_accumulation_steps * args.world_size
    batch, first_length = args.train_batch_size * parts, datasets[0].max_seq_length
    batches = [max(1, round(batch * first_length / dataset.max_seq_length)) for dataset in datasets]
    steps = args.max_steps
    if steps <= 0:
        passes_of_step = sum(
            share * batch / dataset.epoch_length
            for dataset, share, batch in zip(datasets, shares, batches, strict=True)
        )
        steps = max(1, round(args.num_train_epochs / passes_of_step))
    bounds = [0, *(round(steps * share) for share in accumulate(shares))]
    phases = []
    for dataset, batch, (start, end) in zip(datasets, batches, pairwise(bounds), strict=True):
        if start == end:
            raise InputError(f"--phases: length {dataset.max_seq_length} has no step of {steps}; raise its share.")
        if batch < parts:
            raise InputError(
                f"--phases: a batch of length {dataset.max_seq_length} has {batch} sequences, fewer than processes x "
                f"accumulation steps ({parts}); use a larger batch or fewer --gradient_accumulation_steps."
            )
        dataset.num_examples = (end - start) * batch
        phases.append(Phase(dataset, end - start, batch))
    return phases


def find_phase(phases: Sequence[Phase], step: int) -> Phase:
    """The phase that `step` (from 0) belongs to."""
    for phase, end in zip(phases, accumulate(phase.steps for phase in phases), strict=True):
        if step < end:
            return phase
    raise IndexError(step)


def passes_over_corpus(phases: Sequence[Phase], steps: int) -> float:
    """The epochs that the first `steps` steps make."""
    passes = 0.0
    for phase in phases:
        passes += min(steps, phase.steps) * phase.batch / phase.dataset.epoch_length
        steps = max(steps - phase.steps, 0)
    return passes


class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """The examples of this process's batches, accumulated ones one after the other, step by step.

    The numbers are those of a `ConcatDataset` of the phases' datasets. A step's examples are split over processes and
    accumulated batches as evenly as possible.

    Args:
        phases: of the run.
        accumulation_steps: batches of a step that this process accumulates.
        num_processes, process_index: how many share a step, and which of them this is.
        first_step: the step to begin with; none before it costs anything.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        accumulation_steps: int = 1,
        num_processes: int = 1,
        process_index: int = 0,
        first_step: int = 0,
    ):
        self.phases = phases
        self.accumulation_steps = accumulation_steps
        self.num_processes = num_processes
        self.process_index = process_index
        self.first_step = first_step

    def __len__(self) -> int:
        """Batches of this process in the whole run, `first_step` or not: Trainer counts its steps by it."""
        return sum(phase.steps for phase in self.phases) * self.accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        parts = self.num_processes * self.accumulation_steps
        mine = range(self.process_index * self.accumulation_steps, (self.process_index + 1) * self.accumulation_steps)
        first_example = first_step = 0
        for phase in self.phases:
            for step in range(max(self.first_step - first_step, 0), phase.steps):
                phase.dataset.make_ready((step + 1) * phase.batch - 1)  # here, not in each data worker
                start = first_example + step * phase.batch
                for part in mine:
                    first, last = part * phase.batch // parts, (part + 1) * phase.batch // parts
                    yield list(range(start + first, start + last))
            first_example += len(phase.dataset)
            first_step += phase.steps
