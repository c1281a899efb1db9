"""The arguments of pretraining."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.pretraining.pretraining_arguments import (
    PretrainingArguments,
    PretrainingDataArguments,
    parse_mask_rates,
    parse_phases,
)


@pytest.mark.parametrize(("name", "value"), [("auto_find_batch_size", True), ("label_smoothing_factor", 0.1)])
def test_unsupported_arguments_are_refused(name, value):
    with pytest.raises(InputError, match=f"--{name} is not supported in pretraining"):
        PretrainingArguments(use_cpu=True, **{name: value})


def test_phases_are_parsed():
    assert parse_phases("128:90%, 512:10%", "nsp") == [(128, 0.9, "nsp"), (512, 0.1, "nsp")]
    assert parse_phases("64:80%:mlm, 128:20%", "sop") == [(64, 0.8, "mlm"), (128, 0.2, "sop")]
    assert PretrainingDataArguments(max_seq_length=64).parsed_phases == [(64, 1.0, "nsp")]
    for objective in ("mlm", "electra"):  # without pairs, `:mlm` changes nothing
        args = PretrainingDataArguments(objective=objective, phases="64:50%:mlm,128:50%:mlm")
        assert args.parsed_phases == [(64, 0.5, "mlm"), (128, 0.5, "mlm")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": "128:0%,512:100%"}, "--phases: expected a length and its share .*, not '128:0%'"),
        ({"phases": "64:80%:nsp,128:20%"}, "--phases: expected a length and its share .*, not '64:80%:nsp'"),
        ({"phases": "64:80%:mlm,128:20%:mlm"}, "--phases: no phase of .* has sentence pairs. Use --objective mlm"),
        ({"phases": "128:90%,512:20%"}, "--phases: the shares of .* add up to 110 %, not to 100 %"),
        ({"no_nsp": True, "sentence_order": True}, "--no_nsp and --sentence_order cannot be combined"),
        ({"no_nsp": True, "objective": "mlm+nsp"}, r"--objective mlm\+nsp and --no_nsp cannot be combined"),
        ({"objective": "clm"}, "--objective: unknown value 'clm'. Did you mean mlm"),
        ({"objective": "electra", "generator_size": 1.1}, "--generator_size 1.1 must be above 0 and at most 1"),
        ({"corpus": "a", "train_file": ["b"]}, "--corpus cannot be combined with --train_file or --dataset_name"),
        ({"mlm_probability": "0.3:"}, "--mlm_probability: expected a share, or the first and the last share"),
        ({"mlm_probability": "0.3:0.2:0.1"}, "--mlm_probability: expected a share"),
        ({"mlm_probability": "0.3:1.5"}, "--mlm_probability: expected a share"),
        ({"masking": "span"}, "--masking: unknown value 'span'"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(InputError, match=f"^{message}"):
        PretrainingDataArguments(**arguments)


def test_the_masks_of_each_objective():
    """ELECTRA's generator never reads random tokens."""
    for objective, masks in ((None, (0.8, 0.1)), ("mlm", (0.8, 0.1)), ("electra", (0.85, 0.0))):
        args = PretrainingDataArguments(objective=objective)
        assert (args.mask_replace_prob, args.random_replace_prob) == masks
    assert PretrainingDataArguments(objective="electra", mask_replace_prob=1.0).mask_replace_prob == 1


def test_rates_of_masks_are_parsed():
    assert parse_mask_rates("0.3:0.15") == (0.3, 0.15) and parse_mask_rates(0.2) == (0.2, 0.2)
