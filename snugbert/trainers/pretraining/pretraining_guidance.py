"""Which recipe fits a run, what to expect of it, and a warning if it stays near the frequency baseline."""

import logging
from collections.abc import Sequence

from transformers import PreTrainedConfig, PreTrainedModel, TrainerState

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.pretraining.batches import Phase, count_epochs
from snugbert.trainers.pretraining.examples import PretrainingDataset

logger = logging.getLogger(__name__)

SMALL_RECIPE = "examples/pretrain_small_corpus.yaml"
# Its settings as flags of `snugbert pretrain`, because the package has no examples. Settings of evaluation, device and
# checkpoints are left out, and so are settings that equal a default.
SMALL_RECIPE_FLAGS = {
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "bigram_init": "true",
    "phases": "64:90%,128:10%",
    "mlm_probability": "0.3",
    "num_train_epochs": "1",
    "per_device_train_batch_size": "64",
    "optim": "muon",
    "learning_rate": "4e-3",
    "warmup_steps": "0.05",
    "adam_beta2": "0.98",
}
SUGGESTED_SIZE = "mini"  # the size of the recipe, which other commands suggest

# Nats by which the masked token loss should be below the frequency baseline after some tokens. Every measured run of
# mini and small gained more than 2.0, and a run of tiny 1.9.
EXPECTED_GAIN, EXPECTED_AFTER = 1.5, 1_000_000
LARGEST_TEXT = 200_000_000  # tokens: about 100 million words of a language that needs two tokens per word
LARGEST_MODEL = 12_600_000  # parameters in the layers of small, see [`count_layer_parameters`]
SMALLEST_VOCABULARY = 1_000  # with few tokens, such as letters, the baseline itself is low
WARMUP = 0.1  # share of the steps without a warning: the longer the run, the longer its warmup


def count_layer_parameters(config: PreTrainedConfig) -> int:
    """Returns the number of weights in the matrices of the layers, which does not depend on the vocabulary."""
    H, inner = config.hidden_size, config.intermediate_size
    return config.num_hidden_layers * (4 * H * H + 2 * H * inner)


def has_expectation(config: PreTrainedConfig) -> bool:
    """Whether a model is like the measured ones: not larger than small, and with a vocabulary of words or pieces."""
    return count_layer_parameters(config) <= LARGEST_MODEL and config.vocab_size >= SMALLEST_VOCABULARY


def recipe_flags(size: str, vocab_size: int, corpus_tokens: float) -> dict[str, str]:
    """Returns the flags of `snugbert pretrain` for a new model: its size, and the small recipe if that fits.

    Args:
        size: a named size.
        vocab_size: number of tokens in the vocabulary.
        corpus_tokens: number of tokens in the training text.
    """
    config = SnugBertConfig.from_size(size, vocab_size=vocab_size)
    fits = has_expectation(config) and corpus_tokens <= LARGEST_TEXT
    return {"config_name": size, **(SMALL_RECIPE_FLAGS if fits else {})}


def log_recipe(phases: Sequence[Phase], model: PreTrainedModel) -> None:
    """Logs which recipe fits a run from random weights, and what to expect of it. Does nothing without text."""
    if phases and isinstance(dataset := phases[0].dataset, PretrainingDataset):
        passes = count_epochs(phases, sum(phase.steps for phase in phases))
        logger.info("recipe: %s", describe_recipe(model.config, dataset.corpus.num_tokens, passes))


def describe_recipe(config: PreTrainedConfig, corpus_tokens: int, passes: float) -> str:
    """Names the recipe that fits a run and what to expect of it, or why no recipe was measured.

    Args:
        config: configuration of the model.
        corpus_tokens: number of tokens in the training text.
        passes: number of passes over it.
    """
    reasons = []
    if count_layer_parameters(config) > LARGEST_MODEL:
        reasons.append("a model larger than small")
    if config.vocab_size < SMALLEST_VOCABULARY:
        reasons.append(f"a vocabulary of {config.vocab_size:,} tokens")
    if corpus_tokens > LARGEST_TEXT:
        reasons.append(f"a text of {corpus_tokens:,} tokens")
    if reasons:
        return (
            f"none was measured for {', '.join(reasons)}. The defaults are the BERT paper's settings, for much "
            "text and many steps."
        )
    expected = f"an MLM gain of {EXPECTED_GAIN} or more after {EXPECTED_AFTER:,} training tokens"
    tokens = round(passes * corpus_tokens)
    shorter = "" if tokens >= EXPECTED_AFTER else f" This run has only {tokens:,}, so expect less."
    return (
        f"{SMALL_RECIPE} (in SnugBERT's repository) fits the text and the model. With it, expect {expected}.{shorter}"
    )


def warn_at_baseline(state: TrainerState, config: PreTrainedConfig) -> None:
    """Warns once if a run is closer to the frequency baseline than expected.

    Args:
        state: state of the run. The last line of its log is new.
        config: configuration of the model.
    """
    lines = [line for line in state.log_history if "mlm_gain" in line]
    if not has_expectation(config) or not lines or lines[-1] is not state.log_history[-1]:
        return

    def is_due(line: dict[str, float]) -> bool:
        return line["tokens"] >= EXPECTED_AFTER and line["step"] >= WARMUP * state.max_steps

    line = lines[-1]
    if is_due(line) and not any(map(is_due, lines[-2:-1])) and line["mlm_gain"] < EXPECTED_GAIN:
        logger.warning(
            "MLM gain is %.2f nats after %s tokens, but %s reaches %s. Compare bigram_init, optim, learning_rate, "
            "per_device_train_batch_size, phases and config_overrides (dropout). If they are the same, check the text "
            "and the tokenizer (--show).",
            line["mlm_gain"],
            f"{line['tokens']:,}",
            SMALL_RECIPE,
            EXPECTED_GAIN,
        )
