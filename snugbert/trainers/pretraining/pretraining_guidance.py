"""What a run logs besides its metrics: the recipe that fits, and what to expect.

A run that stays near the frequency baseline also gets one warning.
"""

import logging
from collections.abc import Sequence

from transformers import PreTrainedConfig, PreTrainedModel, TrainerState

from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.trainers.pretraining.batches import Phase, count_epochs
from snugbert.trainers.pretraining.examples import PretrainingDataset

logger = logging.getLogger(__name__)

SMALL_RECIPE, GPU_RECIPE = "examples/pretrain_small_corpus.yaml", "examples/pretrain_small_corpus_1_gpu.yaml"
# Settings of the small recipe as flags of `snugbert pretrain`, because the package does not contain the recipe's file.
# Settings of evaluation, device and checkpoints are left out, and so are settings that equal a default.
SMALL_RECIPE_FLAGS = {
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "bigram_init": "true",
    "phases": "64:80%:mlm,128:20%",
    "mlm_probability": "0.3",
    "num_train_epochs": "8",
    "per_device_train_batch_size": "128",
    "optim": "muon",
    "learning_rate": "2e-3",
    "warmup_steps": "0.05",
    "weight_decay": "0.1",
    "adam_beta2": "0.98",
}
SUGGESTED_SIZE = "mini"  # the size of the recipe, which other commands suggest

# Expected gain (frequency baseline minus masked token loss, in nats) after this many tokens. Every measured run gained
# more than 1.9.
EXPECTED_GAIN, EXPECTED_AFTER = 1.5, 2_000_000
LARGEST_TEXT = 200_000_000  # tokens: about 100 million words of a language that needs two tokens per word
# Number of weights in the matrices of all layers: of size `small`, and of 12 layers of width 384. Embeddings do not
# count.
LARGEST_MODELS = {SMALL_RECIPE: 12_600_000, GPU_RECIPE: 21_300_000}
SMALLEST_VOCABULARY = 1_000  # with a smaller vocabulary, such as letters, the frequency baseline is already low
WARMUP = 0.1  # share of the steps without a warning: the longer the run, the longer its warmup


def find_recipe(config: PreTrainedConfig) -> str | None:
    """Returns the recipe that was measured with models of this size or larger, or None."""
    H, inner = config.hidden_size, config.intermediate_size
    weights = config.num_hidden_layers * (4 * H * H + 2 * H * inner)
    return next((recipe for recipe, largest in LARGEST_MODELS.items() if weights <= largest), None)


def list_unmeasured(config: PreTrainedConfig, corpus_tokens: float = 0) -> list[str]:
    """Lists how a run differs from the measured runs: a larger model, a smaller vocabulary or a larger text."""
    reasons = []
    if find_recipe(config) is None:
        reasons.append("a model larger than 12 layers of width 384")
    if config.vocab_size < SMALLEST_VOCABULARY:
        reasons.append(f"a vocabulary of {config.vocab_size:,} tokens")
    if corpus_tokens > LARGEST_TEXT:
        reasons.append(f"a text of {corpus_tokens:,} tokens")
    return reasons


def recipe_flags(vocab_size: int, corpus_tokens: float) -> dict[str, str]:
    """Returns the flags of `snugbert pretrain` that suggest a new model, with the small recipe if that fits."""
    unmeasured = list_unmeasured(SnugBertConfig.from_size(SUGGESTED_SIZE, vocab_size=vocab_size), corpus_tokens)
    return {"config_name": SUGGESTED_SIZE, **({} if unmeasured else SMALL_RECIPE_FLAGS)}


def log_recipe(phases: Sequence[Phase], model: PreTrainedModel) -> None:
    """Logs which recipe fits a run from random weights, and what to expect of it. Does nothing without text."""
    if phases and isinstance(dataset := phases[0].dataset, PretrainingDataset):
        passes = count_epochs(phases, sum(phase.steps for phase in phases))
        logger.info("recipe: %s", describe_recipe(model.config, dataset.corpus.num_tokens, passes))


def describe_recipe(config: PreTrainedConfig, corpus_tokens: int, passes: float) -> str:
    """Names the recipe that fits a run of some `passes` over the text and what to expect, or why no recipe fits."""
    if reasons := list_unmeasured(config, corpus_tokens):
        return (
            f"no recipe was measured for {', '.join(reasons)}. The defaults are the BERT paper's settings, for much "
            "text and many steps."
        )
    expected = f"an MLM gain of {EXPECTED_GAIN} or more after {EXPECTED_AFTER:,} training tokens"
    tokens = round(passes * corpus_tokens)
    shorter = "" if tokens >= EXPECTED_AFTER else f" This run has only {tokens:,}, so expect less."
    return (
        f"{find_recipe(config)} (in SnugBERT's repository) fits the text and the model. With it, expect {expected}."
        f"{shorter}"
    )


def warn_at_baseline(state: TrainerState, config: PreTrainedConfig) -> None:
    """Warns once if a run is closer to the frequency baseline than expected, just after a line was logged."""
    lines = [line for line in state.log_history if "mlm_gain" in line]
    if list_unmeasured(config) or not lines or lines[-1] is not state.log_history[-1]:
        return

    def is_due(line: dict[str, float]) -> bool:
        return line["tokens"] >= EXPECTED_AFTER and line["step"] >= WARMUP * state.max_steps

    line = lines[-1]
    if is_due(line) and not any(map(is_due, lines[-2:-1])) and line["mlm_gain"] < EXPECTED_GAIN:
        logger.warning(
            "MLM gain is %.2f nats after %s tokens, but the recipe %s reaches %s. Compare your bigram_init, optim, "
            "learning_rate, per_device_train_batch_size, phases and config_overrides (dropout) with that recipe. If "
            "your settings are the same, check the text and the tokenizer (--show).",
            line["mlm_gain"],
            f"{line['tokens']:,}",
            find_recipe(config),
            EXPECTED_GAIN,
        )
