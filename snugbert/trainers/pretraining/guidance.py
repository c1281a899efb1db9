"""Which recipe fits a run, what to expect of it, and a warning if it stays near the frequency baseline."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedConfig, PreTrainedModel, TrainerState

from snugbert.trainers.pretraining.batches import Phase, count_epochs
from snugbert.trainers.pretraining.examples import PretrainingDataset

logger = logging.getLogger(__name__)

SMALL_RECIPE = "examples/pretrain_small_corpus.yaml"


@dataclass(frozen=True)
class Expectation:
    """What a run of a size should reach with [`SMALL_RECIPE`].

    Attributes:
        largest: parameters in the layers of the largest model that this applies to, see [`count_layer_parameters`].
        tokens: tokens seen.
        gain: nats by which the masked token loss should be below the frequency baseline.
    """

    largest: int
    tokens: int
    gain: float


# In order of size. Every measured run of mini gained more than 2.0, and a run of tiny 1.9. No run of small was
# measured.
EXPECTATIONS = (
    Expectation(largest=400_000, tokens=1_000_000, gain=1.5),  # tiny
    Expectation(largest=3_200_000, tokens=1_000_000, gain=1.5),  # mini
    Expectation(largest=12_600_000, tokens=1_000_000, gain=1.5),  # small
)
WARMUP = 0.1  # share of the steps without a warning: the longer the run, the longer its warmup


def count_layer_parameters(config: PreTrainedConfig) -> int:
    """Returns the number of weights in the matrices of the layers, which does not depend on the vocabulary."""
    H, inner = config.hidden_size, config.intermediate_size
    return config.num_hidden_layers * (4 * H * H + 2 * H * inner)


def find_expectation(config: PreTrainedConfig) -> Expectation | None:
    """Returns what to expect of a model. None if it is larger than the measured ones."""
    size = count_layer_parameters(config)
    return next((expected for expected in EXPECTATIONS if size <= expected.largest), None)


def log_recipe(phases: Sequence[Phase], model: PreTrainedModel) -> None:
    """Logs which recipe fits a run from random weights, and what to expect of it. Does nothing without text."""
    if phases and isinstance(dataset := phases[0].dataset, PretrainingDataset):
        passes = count_epochs(phases, sum(phase.steps for phase in phases))
        logger.info(
            "recipe: %s", describe_recipe(model.config, model.num_parameters(), dataset.corpus.num_tokens, passes)
        )


def describe_recipe(config: PreTrainedConfig, parameters: int, corpus_tokens: int, passes: float) -> str:
    """Describes the recipe that fits a run, and what to expect of it.

    Args:
        config: configuration of the model.
        parameters: number of its parameters.
        corpus_tokens: number of tokens in the training text.
        passes: number of passes over it.
    """
    tokens, expected = passes * corpus_tokens, find_expectation(config)
    run = (
        f"{_round(corpus_tokens)} tokens of text, a model with {_round(parameters)} parameters, and {_round(tokens)} "
        f"training tokens ({passes:,.2f} passes)"
    )
    if expected is None:
        return (
            f"none was measured for {run}. The defaults are the BERT paper's settings, which need much text and many "
            f"steps. {SMALL_RECIPE} fits models up to the size 'small'."
        )
    text = (
        f"{SMALL_RECIPE} fits {run}. With it, expect an MLM loss at least {expected.gain} nats below the frequency "
        f"baseline (MLM gain) after {expected.tokens:,} tokens."
    )
    return text if tokens >= expected.tokens else f"{text} This run is shorter, so expect less."


def warn_at_baseline(state: TrainerState, config: PreTrainedConfig) -> None:
    """Warns once if a run is closer to the frequency baseline than expected.

    Args:
        state: state of the run. The last line of its log is new.
        config: configuration of the model.
    """
    expected = find_expectation(config)
    lines = [line for line in state.log_history if "mlm_gain" in line]
    if expected is None or not lines or lines[-1] is not state.log_history[-1]:
        return

    def is_due(line: dict[str, float]) -> bool:
        return line["tokens"] >= expected.tokens and line["step"] >= WARMUP * state.max_steps

    line = lines[-1]
    if is_due(line) and not any(map(is_due, lines[-2:-1])) and line["mlm_gain"] < expected.gain:
        logger.warning(
            "MLM gain is %.2f nats after %s tokens. With %s, expect at least %s after %s tokens. Start again with its "
            "settings: --bigram_init, --optim muon, smaller batches and more steps, a higher learning rate, shorter "
            "examples, and no dropout.",
            line["mlm_gain"],
            f"{line['tokens']:,}",
            SMALL_RECIPE,
            expected.gain,
            f"{expected.tokens:,}",
        )


def _round(count: float) -> str:
    """Rounds to two digits: 11,987,654 is 12,000,000."""
    return f"{float(f'{count:.2g}'):,.0f}"
