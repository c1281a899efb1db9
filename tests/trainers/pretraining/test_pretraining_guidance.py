"""Which recipe the log names, when a run near the frequency baseline gets a warning, and how much an epoch shows."""

import logging
from pathlib import Path

import pytest
import yaml
from transformers import TrainerState

import snugbert
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments
from snugbert.trainers.pretraining.pretraining_guidance import (
    EXPECTED_GAIN,
    GPU_RECIPE,
    describe_recipe,
    recipe_flags,
    warn_at_baseline,
)
from snugbert.trainers.pretraining.pretraining_guidance import SMALL_RECIPE as RECIPE

TOO_LARGE = "no recipe was measured for a model larger than 12 layers of width 384"
DEFAULTS = "The defaults are the BERT paper's settings, for much text and many steps."
FITS = (
    f"{RECIPE} (in SnugBERT's repository) fits the text and the model. With it, expect an MLM gain of 1.5 or more "
    "after 2,000,000 training tokens."
)


@pytest.mark.parametrize(
    ("size", "vocab_size", "corpus_tokens", "passes", "told"),
    [
        ("mini", 8_192, 11_987_654, 1, FITS),
        ("tiny", 30_522, 200_000_000, 10, FITS),
        ("small", 8_192, 900_000, 0.5, f"{FITS} This run has only 450,000, so expect less."),
        ("12x384", 16_384, 11_987_654, 10, FITS.replace(RECIPE, GPU_RECIPE)),
        ("tiny", 8_192, 200_000_001, 10, f"no recipe was measured for a text of 200,000,001 tokens. {DEFAULTS}"),
        ("medium", 8_192, 11_987_654, 3, f"{TOO_LARGE}. {DEFAULTS}"),
        ("mini", 30, 12_000_000, 1, f"no recipe was measured for a vocabulary of 30 tokens. {DEFAULTS}"),
        (
            *("large", 30_522, 3_300_000_000, 20),
            f"{TOO_LARGE}, a text of 3,300,000,000 tokens. {DEFAULTS}",
        ),
    ],
    ids=["fits", "long", "short", "one GPU", "too much text", "medium", "letters", "large"],
)
def test_the_recipe_fits_text_model_and_budget(size, vocab_size, corpus_tokens, passes, told):
    if size == "12x384":
        config = snugbert.SnugBertConfig(
            vocab_size=vocab_size, hidden_size=384, num_attention_heads=6, intermediate_size=1536
        )
    else:
        config = snugbert.SnugBertConfig.from_size(size, vocab_size=vocab_size)
    assert describe_recipe(config, corpus_tokens, passes) == told
    assert len(told.split()) <= 60


def warnings_of(caplog, size: str, gains: dict[int, float], max_steps=50, first=0, vocab_size=8_192) -> list[str]:
    """Logs a line for each million tokens, as training does. A resumed run begins with the line `first`."""
    config = snugbert.SnugBertConfig.from_size(size, vocab_size=vocab_size)
    state = TrainerState(max_steps=max_steps)
    caplog.clear()
    for number, (million, gain) in enumerate(gains.items()):
        state.log_history.append({"step": 5 * million, "tokens": million * 10**6, "mlm_gain": gain})
        if number >= first:
            warn_at_baseline(state, config)
        state.log_history.append({"step": 5 * million, "eval_mlm_gain": gain})
        warn_at_baseline(state, config)
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_a_run_near_the_baseline_is_warned_once_when_it_should_be_below_it(size, caplog):
    gain = EXPECTED_GAIN
    stuck = dict.fromkeys(range(2, 9), gain - 0.25)
    (warning,) = warnings_of(caplog, size, stuck)
    assert warning.startswith(f"MLM gain is {gain - 0.25:.2f} nats after 2,000,000 tokens, but the recipe {RECIPE} ")
    assert "Compare your bigram_init" in warning
    # Not in the first 10 % of the steps: before step 120 and step 30.
    assert not warnings_of(caplog, size, stuck, max_steps=1200)
    (warning,) = warnings_of(caplog, size, stuck, max_steps=300)
    assert "after 6,000,000 tokens" in warning
    # Only the first line after that counts, also if another process logged it before the run was resumed.
    assert warnings_of(caplog, size, stuck | {2: gain}) == []
    later = {1: gain - 0.25} | stuck  # 1 million tokens are too early
    assert len(warnings_of(caplog, size, later, first=1)) == 1 and warnings_of(caplog, size, later, first=2) == []


@pytest.mark.parametrize(("size", "vocab_size"), [("medium", 8_192), ("large", 8_192), ("mini", 30)])
def test_a_model_unlike_the_measured_ones_has_no_warning(size, vocab_size, caplog):
    assert warnings_of(caplog, size, dict.fromkeys(range(1, 9), 0.0), vocab_size=vocab_size) == []


def test_the_recipe_as_flags_equals_the_file():
    """Except the files, the validation, the checkpoints, the device, and the defaults of a flag."""
    yaml_file = Path(__file__).parents[3] / RECIPE
    recipe = yaml.load(yaml_file.read_text(), yaml.BaseLoader)
    rest = {"train_file", "validation_file", "tokenizer_name", "output_dir", "use_cpu", "bf16", "seed"}
    rest |= {name for name in recipe if "eval" in name or "save" in name}
    flags = recipe_flags(8_192, 12_000_000)
    assert flags == {name: value for name, value in recipe.items() if name not in rest | {"max_seq_length"}}
    assert PretrainingDataArguments(train_file=["text.txt"]).max_seq_length == int(recipe["max_seq_length"])
    assert recipe_flags(999, 12_000_000) == recipe_flags(8_192, 200_000_001) == {"config_name": "mini"}
