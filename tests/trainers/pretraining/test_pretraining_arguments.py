"""The arguments of pretraining."""

import pytest

from snugbert.errors import InputError
from snugbert.trainers.pretraining.pretraining_arguments import (
    PretrainingArguments,
    PretrainingDataArguments,
    parse_mask_rates,
    parse_phases,
)


@pytest.mark.parametrize(
    ("name", "value"), [("auto_find_batch_size", True), ("label_smoothing_factor", 0.1), ("deepspeed", "nofile.json")]
)
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
    ("phases", "message"),
    [
        ("128:0%,512:100%", "'128:0%,512:100%' has a phase with 0 % of the steps"),
        ("64:80%:nsp,128:20%", "expected a length and its share .* without pairs, not '64:80%:nsp'"),
        ("64:80%:mlm,128:20%:mlm", "no phase of '64:80%:mlm,128:20%:mlm' has sentence pairs. Use --objective mlm"),
    ],
)
def test_phases_that_cannot_be_used_are_refused(phases, message):
    with pytest.raises(InputError, match=f"^--phases: {message}"):
        PretrainingDataArguments(objective="mlm+order", phases=phases)


def test_the_masks_of_each_objective():
    """ELECTRA's generator never reads random tokens."""
    for objective, masks in ((None, (0.8, 0.1)), ("mlm", (0.8, 0.1)), ("electra", (0.85, 0.0))):
        args = PretrainingDataArguments(objective=objective)
        assert (args.mask_replace_prob, args.random_replace_prob) == masks
    assert PretrainingDataArguments(objective="electra", mask_replace_prob=1.0).mask_replace_prob == 1


def test_mask_rates_are_parsed():
    assert parse_mask_rates("0.3:0.15") == (0.3, 0.15) and parse_mask_rates(0.2) == (0.2, 0.2)
    for text in ("0.3:", "0.3:0.2:0.1", "15%"):
        with pytest.raises(InputError, match="--mlm_probability: expected a share, or the first and the last share"):
            parse_mask_rates(text)
    with pytest.raises(InputError, match=r"^--mlm_probability 1\.5 must be above 0 and at most 1"):
        parse_mask_rates("0.3:1.5")


def test_the_short_form_of_whole_words():
    assert PretrainingDataArguments().masking == "tokens"
    assert PretrainingDataArguments(whole_word_mask=True).masking == "words"
    with pytest.raises(InputError, match="--masking spans and --whole_word_mask cannot be combined"):
        PretrainingDataArguments(masking="spans", whole_word_mask=True)
    with pytest.raises(InputError, match="span"):
        PretrainingDataArguments(masking="span")
