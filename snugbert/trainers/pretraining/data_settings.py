"""The settings that determine the examples of every step. Checkpoints store them, and resuming compares them."""

from collections.abc import Sequence
from typing import Any

from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import DATASET, WORDS
from snugbert.data.sources import describe_dataset
from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.examples import RECIPE_VERSION
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments


def collect_example_settings(
    corpus: Corpus, phases: Sequence[Phase], data_args: PretrainingDataArguments, training_args: PretrainingArguments
) -> dict[str, Any]:
    """Collects the data settings of a run of `snugbert pretrain`, as JSON values."""
    names = ("short_seq_prob", "mask_replace_prob", "random_replace_prob")
    first, last = data_args.mask_rates
    settings: dict[str, Any] = {
        "text": {
            describe_dataset(name.removeprefix(DATASET)) if name.startswith(DATASET) else name: digest
            for name, digest in corpus.sources.items()
        },
        # The language of lines that are not split, and the stored words, do not change tokens.
        **{name: value for name, value in corpus.settings.items() if name not in ("lines_language", WORDS)},
        "objective": [phase.objective for phase in phases],
        "recipe": RECIPE_VERSION,
        "seed": training_args.examples_seed,
        **{name: getattr(data_args, name) for name in names},
        "mlm_probability": first if first == last else f"{first}:{last}",
        "masking": data_args.masking,
        "lengths": [phase.max_seq_length for phase in phases],
        "batch": phases[0].batch_size,
    }
    if len(phases) > 1:  # the steps determine where a phase ends. A single phase may be extended
        settings["steps"] = [phase.steps for phase in phases]
    if len(corpus.blocks) > data_args.window_blocks:  # otherwise the order does not depend on it
        settings["window_blocks"] = data_args.window_blocks
    return settings
