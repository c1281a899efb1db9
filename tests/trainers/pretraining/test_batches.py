"""The examples of each step, and the phases of a run."""

import os
import time

import numpy as np
import pytest
from forked import run
from synthetic import RandomExamples, make_trainer

from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import BatchSampler, Phase, RunBatches, plan_phases
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, parse_phases


def test_the_examples_of_a_step_do_not_depend_on_the_processes():
    """Every example once, in order, with any number of processes and accumulated batches; any step can be first."""
    phases = [Phase(range(50), 7, 30), Phase(range(60), 3, 11)]
    for processes, accumulation in ((1, 1), (1, 4), (2, 1), (3, 3), (11, 1)):
        samplers = [BatchSampler(phases, accumulation, processes, rank) for rank in range(processes)]
        steps = [[] for _ in range(10)]
        for sampler in samplers:
            batches = list(sampler)
            assert len(batches) == len(sampler) == 10 * accumulation
            for number, batch in enumerate(batches):
                assert len(batch) - (30 if number < 7 * accumulation else 11) // (processes * accumulation) in (0, 1)
                steps[number // accumulation] += batch
            late = BatchSampler(phases, accumulation, processes, sampler.process_index, first_step=8)
            assert list(late) == batches[8 * accumulation :]
        assert steps == [list(range(30 * step, 30 * step + 30)) for step in range(7)] + [
            list(range(210 + 11 * step, 221 + 11 * step)) for step in range(3)
        ]


def test_a_late_step_is_reached_at_once():
    sampler, start = BatchSampler([Phase(range(10**12), 2 * 10**9, 30)], first_step=10**9), time.perf_counter()
    assert next(iter(sampler)) == list(range(30 * 10**9, 30 * 10**9 + 30))
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "phases, message",
    [
        ("128:99%,512:1%", r"length 512 gets no steps \(the run has 12\)"),
        ("24:50%,432:50%", r"the batch size for length 432 is 1, less than processes x accumulation steps \(2\)"),
    ],
)
def test_invalid_phases_are_errors(phases, message):
    batches = {"max_steps": 12, "per_device_train_batch_size": 9, "gradient_accumulation_steps": 2}
    lengths, shares, _ = zip(*parse_phases(phases, "nsp"), strict=True)
    datasets = [RandomExamples(1000) for _ in lengths]
    for dataset, length in zip(datasets, lengths, strict=True):
        dataset.max_seq_length = length
    with pytest.raises(InputError, match=message):
        plan_phases(datasets, shares, PretrainingArguments(use_cpu=True, **batches))


def train_on(folder, sizes) -> None:
    make_trainer(folder, size=sizes[int(os.environ["RANK"])], max_steps=1, save_strategy="no").train()


def test_processes_with_different_examples_stop(tmp_path):
    result = run(train_on, tmp_path, [1000, 999], processes=2)
    assert result.returncode != 0
    assert "Processes 0 and 1 have different training examples." in result.stderr


def test_the_masking_rate_is_a_function_of_the_step():
    """Linear over all steps of two phases, with any number of processes and accumulated batches, from any step on."""
    phases = [Phase([{"number": number} for number in range(50)], 7, 30), Phase([{}] * 60, 4, 11)]
    run = {"collator": lambda examples: {"rates": [each["mlm_probability"] for each in examples]}, "seed": 0}
    batches = RunBatches(phases, config=None, mask_rates=(0.3, 0.15), **run)
    expected = np.linspace(0.3, 0.15, 11)
    for processes, accumulation, first in ((1, 1, 0), (1, 4, 0), (2, 1, 8), (3, 3, 5)):
        for rank in range(processes):
            sampler = BatchSampler(phases, accumulation, processes, rank, first_step=first)
            for number, batch in enumerate(sampler):
                step = first + number // accumulation
                assert batches[batch]["rates"] == pytest.approx([expected[step]] * len(batch))
