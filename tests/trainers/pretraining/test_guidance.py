"""Which recipe the log names, and when a run at the frequency baseline gets a warning."""

import logging

import pytest
from transformers import TrainerState

import snugbert
from snugbert.trainers.pretraining.guidance import describe_recipe, find_expectation, warn_at_baseline


@pytest.mark.parametrize(
    ("size", "corpus_tokens", "passes", "text"),
    [
        (
            "mini",
            11_987_654,
            1,
            "examples/pretrain_small_corpus.yaml fits 12,000,000 tokens of text, a model with 3,100,000 parameters in "
            "its layers, and 12,000,000 training tokens (1.0 passes). With it, the MLM loss of every measured run was "
            "at least 0.5 nats below the frequency baseline (MLM gain) after 3,000,000 tokens.",
        ),
        ("small", 2_000_000, 1, "This run is shorter. Expect it to end near the baseline."),
        (
            "tiny",
            3e9,
            1,
            "small_corpus.yaml fits 3,000,000,000 tokens of text, a model with 390,000 parameters in its",
        ),
        ("tiny", 3e9, 1, "training tokens (1.0 passes). No run of more than 120,000,000 tokens was measured."),
        ("base", 3.3e9, 10, "the BERT paper's settings, which are the defaults, fit 3,300,000,000 tokens of text, a"),
        ("large", 3.3e9, 20, "66,000,000,000 training tokens (20.0 passes). No run of this size was measured."),
        ("base", 11_987_654, 3, "none was measured for 12,000,000 tokens of text, a model with 85,000,000 parameters"),
        (
            "medium",
            3.3e9,
            0.01,
            "On little text, examples/pretrain_small_corpus.yaml fits models up to the size 'small'.",
        ),
    ],
    ids=["fits", "short", "small model, much text", "", "base", "large", "base, little text", "medium, few steps"],
)
def test_the_recipe_fits_text_model_and_budget(size, corpus_tokens, passes, text):
    # The size of the vocabulary changes nothing.
    for vocab_size in (8_192, 30_522):
        config = snugbert.SnugBertConfig.from_size(size, vocab_size=vocab_size)
        assert text in describe_recipe(int(corpus_tokens), passes, config)


def warnings_of(caplog, size: str, gains: dict[int, float], max_steps: int = 100, first: int = 0) -> list[str]:
    """Logs a line for each million tokens, as training does. A resumed run begins with the line `first`."""
    config, state = snugbert.SnugBertConfig.from_size(size), TrainerState(max_steps=max_steps)
    caplog.clear()
    for number, (million, gain) in enumerate(gains.items()):
        state.log_history.append({"step": 5 * million, "tokens": million * 10**6, "mlm_gain": gain})
        if number >= first:
            warn_at_baseline(state, config)
        state.log_history.append({"step": 5 * million, "eval_mlm_gain": gain})
        warn_at_baseline(state, config)
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("size", ["tiny", "mini", "small"])
def test_a_run_at_the_baseline_is_warned_once_when_measured_runs_had_left_it(size, caplog):
    gain = find_expectation(snugbert.SnugBertConfig.from_size(size)).gain
    stuck = dict.fromkeys(range(1, 9), gain - 0.25)
    (warning,) = warnings_of(caplog, size, stuck)
    assert warning.startswith(f"MLM gain is {gain - 0.25:.2f} nats after 3,000,000 tokens: ")
    assert "examples/pretrain_small_corpus.yaml" in warning and "higher learning rate" in warning
    # A run of 1,200 steps still warms up at step 15, and 10 % are over at step 120, which it does not log.
    assert not warnings_of(caplog, size, stuck, max_steps=1200)
    (warning,) = warnings_of(caplog, size, stuck, max_steps=300)
    assert "after 6,000,000 tokens" in warning
    # A line after the first one in question: another million tokens, or a resumed run.
    assert warnings_of(caplog, size, stuck | {3: gain}) == []
    assert len(warnings_of(caplog, size, stuck, first=2)) == 1 and warnings_of(caplog, size, stuck, first=3) == []


def test_a_size_that_was_not_measured_has_no_warning(caplog):
    for size in ("medium", "base", "large"):
        assert warnings_of(caplog, size, dict.fromkeys(range(1, 9), 0.0)) == []
