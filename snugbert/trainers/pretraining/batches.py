"""The batches of a run: its phases, the order of their examples, and the share of each process.

A run has one phase or several, for example 90 % of the steps on short and the rest on long sequences (Devlin et al.,
2018, appendix A.2). The examples of all phases are numbered consecutively. A step is a fixed range of these numbers,
however many processes and accumulated batches share it. Order and randomness are functions of the seed and the example
number, so training can start at any step.
"""

import copy
import hashlib
import random
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from transformers import PreTrainedConfig
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from snugbert.errors import InputError, format_count
from snugbert.trainers.pretraining.block_windows import Window
from snugbert.trainers.pretraining.examples import PretrainingDataset, shuffle_position
from snugbert.trainers.pretraining.pretraining_arguments import PAIR_TASKS, Objective, PretrainingArguments
from snugbert.trainers.pretraining.training_log import count_batch
from snugbert.trainers.run.processes import wait_for_all

Batch = dict[str, Any]  # tensors by name, and `max_length_q`, which is an integer
Collator = Callable[[list[Any]], Batch]
PREFETCH_FACTOR = 2  # batches that a data worker reads ahead, torch's default
BATCH_COUNTS = "batch_counts"  # key in a batch, for the result of `count_batch`


@dataclass(frozen=True)
class Phase:
    """Consecutive steps on the examples of one dataset. Every epoch has a different order."""

    dataset: Any  # a list, a `torch.utils.data.Dataset` with a length, or a `datasets.Dataset`
    steps: int
    batch_size: int  # examples per step, over all processes and accumulated batches

    @property
    def max_seq_length(self) -> int | None:
        """Tokens of the longest possible example. None if the dataset does not specify it."""
        return getattr(self.dataset, "max_seq_length", None)

    @property
    def objective(self) -> Objective | None:
        """The pretraining objective of the examples. None if the dataset does not specify it."""
        return getattr(self.dataset, "objective", None)


def plan_phases(datasets: Sequence[Any], shares: Sequence[float], args: PretrainingArguments) -> list[Phase]:
    """Divides the steps of a run among datasets of different sequence lengths.

    A step has about the same number of tokens in every phase, so it has fewer examples if they are longer. The batch
    size of the first phase is `per_device_train_batch_size` x `gradient_accumulation_steps` x processes.

    Args:
        datasets: one for each phase. If there are several, each needs a `max_seq_length`, like [`PretrainingDataset`].
            Some datasets may have no sentence pairs.
        shares: share of the steps for each phase. They add up to 1.
        args: batch size and number of steps. If `max_steps` is not positive, `num_train_epochs` is the number of
            passes over the data.
    """
    if not all(map(len, datasets)):
        raise InputError("train_dataset is empty.")
    lengths = [getattr(dataset, "max_seq_length", None) for dataset in datasets]
    batch_sizes = choose_batch_sizes(lengths, args)
    steps = args.max_steps
    if steps <= 0:
        epochs_per_step = sum(
            share * batch_size / len(dataset)
            for dataset, share, batch_size in zip(datasets, shares, batch_sizes, strict=True)
        )
        steps = max(1, round(args.num_train_epochs / epochs_per_step))
    bounds = [0, *(round(steps * share) for share in accumulate(shares))]
    phases = [
        Phase(dataset, end - start, batch_size)
        for dataset, batch_size, (start, end) in zip(datasets, batch_sizes, pairwise(bounds), strict=True)
    ]
    for phase in phases:
        if not phase.steps:
            raise InputError(
                f"--phases: length {phase.max_seq_length} gets no steps (the run has {steps}). Increase its share."
            )
    return phases


def as_one_epoch(args: PretrainingArguments, phases: Sequence[Phase]) -> PretrainingArguments:
    """Returns a copy of `args` for Trainer, which treats the whole run as one epoch.

    Sets `max_steps` to the number of all steps, and turns "once per epoch" into a number of steps.
    """
    args = copy.copy(args)
    if phases:
        args.max_steps = sum(phase.steps for phase in phases)
        steps_per_epoch = max(1, round(len(phases[0].dataset) / phases[0].batch_size))
        for name in ("logging", "eval", "save"):
            if getattr(args, f"{name}_strategy") == "epoch":
                strategy = SaveStrategy.STEPS if name == "save" else IntervalStrategy.STEPS
                setattr(args, f"{name}_strategy", strategy)
                setattr(args, f"{name}_steps", steps_per_epoch)
    return args


def choose_batch_sizes(lengths: Sequence[Any], args: PretrainingArguments) -> list[int]:
    """Returns the number of examples per step for each phase. With one phase, its length may be None."""
    parts = args.gradient_accumulation_steps * args.world_size
    batch_sizes = [args.per_device_train_batch_size * parts]
    batch_sizes += [max(1, round(batch_sizes[0] * lengths[0] / length)) for length in lengths[1:]]
    for length, batch_size in zip(lengths, batch_sizes, strict=True):
        if batch_size < parts:
            raise InputError(
                f"--phases: the batch size for length {length} is {batch_size}, less than processes x accumulation "
                f"steps ({parts}). Use a larger batch or fewer --gradient_accumulation_steps."
            )
    return batch_sizes


def check_processes(phases: Sequence[Phase]) -> None:
    """Checks that all processes have the same examples. Each machine may have prepared the text itself."""
    examples = [len(phase.dataset) for phase in phases]
    tables = (each.dataset.open_table(Window(0, 0)) for each in phases if isinstance(each.dataset, PretrainingDataset))
    examples += [zlib.crc32(table.data) for table in tables]
    wait_for_all()  # some machines may take longer to make their tables
    everywhere = gather_object([examples])
    for rank, others in enumerate(everywhere):
        if others != everywhere[0]:
            raise InputError(
                f"Processes 0 and {rank} have different training examples. Use the same text and the same version of "
                "SnugBERT on all machines."
            )


def describe_phases(phases: Sequence[Phase]) -> list[str]:
    """Describes the steps of each phase, with a remark if only other phases have sentence pairs."""
    has_pairs = any(phase.objective in PAIR_TASKS for phase in phases)
    texts = []
    for phase in phases:
        length = "" if phase.max_seq_length is None else f" of at most {phase.max_seq_length} tokens"
        remark = ", no sentence pairs" if has_pairs and phase.objective == "mlm" else ""
        epochs = phase.steps * phase.batch_size / len(phase.dataset)
        steps = format_count(phase.steps, "step")
        texts.append(f"{steps} of {phase.batch_size:,} examples{length}{remark}, {epochs:.3g} epochs")
    return texts


def interpolate_rate(rates: tuple[float, float], step: int, steps: int) -> float:
    """Returns the share of tokens to mask in `step`, counted from 0: linear from the first to the last of `steps`."""
    first, last = rates
    return first + (last - first) * step / max(steps - 1, 1)


def count_epochs(phases: Sequence[Phase], steps: int) -> float:
    """Returns the number of passes over the data in the first `steps` steps."""
    epochs = 0.0
    for phase in phases:
        epochs += min(steps, phase.steps) * phase.batch_size / len(phase.dataset)
        steps = max(steps - phase.steps, 0)
    return epochs


@dataclass(eq=False)
class BatchSampler(torch.utils.data.Sampler[list[int]]):
    """Yields the example numbers of this process's batches, one accumulated batch at a time.

    The examples of a step are split as evenly as possible over processes and accumulated batches. Skipping to
    `first_step` costs nothing. When a batch is yielded, data workers may be `prefetched_batches` batches behind.
    """

    phases: Sequence[Phase]
    accumulation_steps: int = 1
    num_processes: int = 1
    process_index: int = 0
    first_step: int = 0
    prefetched_batches: int = 0

    def __len__(self) -> int:
        """Number of batches of this process in the whole run. Trainer computes its steps from this number."""
        return sum(phase.steps for phase in self.phases) * self.accumulation_steps

    def __iter__(self) -> Iterator[list[int]]:
        parts = self.num_processes * self.accumulation_steps
        own_parts = range(parts)[self.process_index * self.accumulation_steps :][: self.accumulation_steps]
        first_example = first_step = 0
        # One additional step, because other processes can be a step late.
        steps_ahead = -(-self.prefetched_batches // self.accumulation_steps) + 1
        for phase in self.phases:
            for step in range(max(self.first_step - first_step, 0), phase.steps):
                if isinstance(phase.dataset, PretrainingDataset):  # once here, not in each data worker
                    first, last = step * phase.batch_size, (step + 1) * phase.batch_size - 1
                    end = phase.steps * phase.batch_size
                    phase.dataset.prepare(first, last, steps_ahead * phase.batch_size, end)
                start = first_example + step * phase.batch_size
                for part in own_parts:
                    first, last = part * phase.batch_size // parts, (part + 1) * phase.batch_size // parts
                    yield list(range(start + first, start + last))
            first_example += phase.steps * phase.batch_size
            first_step += phase.steps


@dataclass(eq=False)
class RunBatches(torch.utils.data.Dataset):
    """Makes the batches of a run from the example numbers that [`BatchSampler`] yields.

    The order of an epoch is a function of the seed and the epoch. A dataset or collator may use the global random
    state of Python, NumPy or torch. The random numbers for a batch are the same in any data worker
    and after resuming. A labeled batch contains the counts that divide the losses, under the key `BATCH_COUNTS`, see
    [`count_batch`]. A [`PretrainingDataset`] has its own seed. The `mlm_probability` of each example is the share of
    tokens to mask in its step, between the two `mask_rates`. If these are None, the collator's share applies.
    """

    phases: Sequence[Phase]
    collator: Collator
    seed: int
    config: PreTrainedConfig
    generator: PreTrainedConfig | None = None
    teacher: PreTrainedConfig | None = None
    mask_rates: tuple[float, float] | None = None

    def __post_init__(self):
        self._ends = list(accumulate(phase.steps * phase.batch_size for phase in self.phases))

    def __len__(self) -> int:
        """Number of examples in the run, over all epochs."""
        return self._ends[-1]

    def __getitem__(self, numbers: list[int]) -> Batch:
        index = bisect_right(self._ends, numbers[0])
        start = self._ends[index - 1] if index else 0
        with seed_random_state(f"{self.seed} {numbers[0]}"):
            examples = self._get_examples(self.phases[index].dataset, [number - start for number in numbers])
            if self.mask_rates is not None:
                step = sum(phase.steps for phase in self.phases[:index])
                step += (numbers[0] - start) // self.phases[index].batch_size
                rate = interpolate_rate(self.mask_rates, step, sum(phase.steps for phase in self.phases))
                examples = [example | {"mlm_probability": rate} for example in examples]
            batch = self.collator(examples)
        if "labels" in batch:
            batch[BATCH_COUNTS] = count_batch(batch, self.config, self.generator, self.teacher)
        return batch

    def _get_examples(self, dataset: Any, numbers: list[int]) -> list[Any]:
        places = [divmod(number, len(dataset)) for number in numbers]
        if isinstance(dataset, PretrainingDataset):
            return [dataset.get_example(epoch, position) for epoch, position in places]
        indices = [shuffle_position(position, len(dataset), f"{self.seed} {epoch}") for epoch, position in places]
        if hasattr(dataset, "__getitems__"):  # a datasets.Dataset reads many rows faster in one call
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]


@contextmanager
def seed_random_state(key: str) -> Iterator[None]:
    """Seeds Python, NumPy and torch (on the CPU) with `key`, and restores their states after the block.

    Otherwise, dropout would change, because it uses torch's state.
    """
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also change GPUs
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
