"""The settings that determine the examples of every step. Checkpoints store them, and resuming compares them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerState

from snugbert.data.corpus.corpus import Corpus
from snugbert.data.corpus.part_files import DATASET, WORDS
from snugbert.data.sources import describe_dataset
from snugbert.errors import InputError
from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.examples import RECIPE_VERSION
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert.trainers.run.run_settings import describe_change, read_state

RECORD_NAME = "PretrainingTrainer"  # key in a checkpoint's `trainer_state.json`, for state that Trainer does not store


def collect_example_settings(
    corpus: Corpus, phases: Sequence[Phase], data_args: PretrainingDataArguments, training_args: PretrainingArguments
) -> dict[str, Any]:
    """Collects the data settings of a run of `snugbert pretrain`, as JSON values."""
    names = ("short_seq_prob", "mask_replace_prob", "random_replace_prob")
    first, last = data_args.mask_rates
    objectives = [phase.objective for phase in phases]
    settings: dict[str, Any] = {
        "text": {
            describe_dataset(name.removeprefix(DATASET)) if name.startswith(DATASET) else name: digest
            for name, digest in corpus.sources.items()
        },
        # The language of lines that are not split, and the stored words, do not change tokens.
        **{name: value for name, value in corpus.settings.items() if name not in ("lines_language", WORDS)},
        # A list only if phases differ, so that checkpoints written before `:mlm` existed can be resumed.
        "objective": objectives if len(set(objectives)) > 1 else data_args.dataset_objective,
        "recipe": RECIPE_VERSION,
        "seed": training_args.examples_seed,
        **{name: getattr(data_args, name) for name in names},
        "mlm_probability": first if first == last else f"{first}:{last}",
        "whole_word_mask": data_args.masking == "words",
        "lengths": [phase.max_seq_length for phase in phases],
        "batch": phases[0].batch_size,
    }
    if len(phases) > 1:  # the steps determine where a phase ends. A single phase may be extended
        settings["steps"] = [phase.steps for phase in phases]
    if len(corpus.blocks) > data_args.window_blocks:  # otherwise the order does not depend on it
        settings["window_blocks"] = data_args.window_blocks
    if data_args.masking == "spans":  # only then, so that runs from before this setting can resume
        settings["masking"] = "spans"
    return settings


def check_data_settings(checkpoint: str, settings: Mapping[str, Any]) -> None:
    """Checks that a resumed run gets the same examples as the run that wrote `checkpoint`.

    Args:
        checkpoint: the folder.
        settings: `data_settings` of [`PretrainingTrainer`]. `text` may be a dictionary from names to digests.

    Raises:
        InputError: settings changed. The message lists them, and the changed entries of `text`. Checkpoints of other
            trainers have no settings and are not compared.
    """
    if changes := compare_data_settings(checkpoint, settings):
        raise InputError(
            f"--resume_from_checkpoint: the training data changed since {checkpoint}: {'; '.join(changes)}. Restore "
            "the data, or pass --allow_changed_data."
        )


def compare_data_settings(checkpoint: str, settings: Mapping[str, Any]) -> list[str]:
    """Describes the data settings that changed since `checkpoint`. Arguments as in [`check_data_settings`]."""
    before, now = read_record(read_state(checkpoint)).get("data_settings"), json.loads(json.dumps(settings))
    if not before or not now:
        return []
    return [change for name in before | now for change in describe_change(name, before.get(name), now.get(name))]


def read_record(state: TrainerState) -> dict[str, Any]:
    """Returns the state that [`PretrainingTrainer`] added to a checkpoint. Empty for other trainers."""
    callbacks: Any = state.stateful_callbacks
    return callbacks.get(RECORD_NAME, {})
