"""Which examples a step sees, and the phases of a run."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import BatchSampler, Phase, parse_phases, plan_phases
from snugbert.trainers.pretraining.trainer import PretrainingArguments


def test_steps_have_their_examples_whoever_takes_them():
    """Every example once, in order, with any number of processes and accumulated batches; any step can be first."""

    class Examples(list):
        def make_ready(self, index):
            self[index]

    phases = [Phase(Examples(range(7 * 30)), 7, 30), Phase(Examples(range(3 * 11)), 3, 11)]
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


@pytest.mark.parametrize(
    "phases, message",
    [
        ("128", "'128' is not a length and its share"),
        ("128:90%,512:20%", "add up to 110 %, not to 100 %"),
        ("128:99%,512:1%", "length 512 has no step of 12"),
        ("24:50%,432:50%", r"has 1 sequences, fewer than processes x accumulation steps \(2\)"),
    ],
)
def test_phases_that_cannot_be(phases, message):
    class Lengths:
        def __init__(self, max_seq_length):
            self.max_seq_length, self.epoch_length = max_seq_length, 1000

    args = PretrainingArguments(
        max_steps=12, per_device_train_batch_size=9, gradient_accumulation_steps=2, use_cpu=True
    )
    with pytest.raises(InputError, match=message):
        lengths, shares = zip(*parse_phases(phases), strict=True)
        plan_phases([Lengths(length) for length in lengths], shares, args)
