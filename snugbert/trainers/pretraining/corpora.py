"""The training and validation text of a run: corpora, their examples, and the settings that determine the examples."""

import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from transformers import PreTrainedTokenizerBase

from snugbert.data.corpus.corpus import Corpus, check_unknown_tokens, open_corpus
from snugbert.data.corpus.part_files import DATASET, WORDS
from snugbert.data.corpus.preparation import prepare_in_cache
from snugbert.data.data_arguments import TextArguments
from snugbert.data.sources import name_dataset
from snugbert.data.tokenizing import needs_words
from snugbert.errors import InputError, shorten
from snugbert.files import hash_json
from snugbert.storage.urls import hide_credentials
from snugbert.trainers.pretraining.batches import Phase
from snugbert.trainers.pretraining.examples import RECIPE_VERSION, PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import (
    PAIR_LABELS,
    Objective,
    PretrainingArguments,
    PretrainingDataArguments,
)

logger = logging.getLogger(__name__)

VALIDATION_SEED = 0  # independent of the run's seed, so that metrics of different runs are comparable


def open_prepared(
    data_args: PretrainingDataArguments, tokenizer: PreTrainedTokenizerBase, blocks_dir: Path
) -> Corpus | None:
    """Opens `--corpus`, if it is given. The blocks of a corpus in a bucket are cached in `blocks_dir`."""
    if data_args.corpus is None:
        return None
    corpus = open_corpus(data_args.corpus, tokenizer, blocks_dir, data_args.corpus_cache_gb)
    if data_args.masking != "tokens" and needs_words(tokenizer) and not corpus.has_words:
        raise InputError(
            f"--corpus: {hide_credentials(data_args.corpus)} lacks the word boundaries that --masking "
            f"{data_args.masking} needs. Run `snugbert prepare` again, with --store_words and --overwrite_output_dir."
        )
    return corpus


def load_corpora(
    data_args: PretrainingDataArguments,
    do_train: bool,
    do_eval: bool,
    cache_dir: str | None,
    tokenizer: PreTrainedTokenizerBase,
    prepared: Corpus | None = None,
) -> tuple[Corpus | None, Corpus | None]:
    """Prepares the training and the validation text. None: the run does not need this text.

    If the run only evaluates, the training text gives the baseline its token frequencies. Without validation files,
    evaluation holds out some of the training text. `prepared` is the corpus of [`open_prepared`].
    """
    has_text = bool(data_args.train_file or data_args.dataset_name)
    if not has_text and prepared is None and (do_train or not data_args.validation_file):
        raise InputError("no text. Pass --train_file, --dataset_name or --corpus.")
    hold_out = do_eval and not data_args.validation_file
    if hold_out and prepared is not None:
        raise InputError("--corpus: a prepared corpus cannot be split. Pass --validation_file for evaluation.")

    def prepare(name: str, text: TextArguments, **documents: Any) -> Corpus:
        corpus = prepare_in_cache(
            text,
            tokenizer,
            data_args.sentence_language,
            cache_dir,
            data_args.preprocessing_num_workers,
            deduplicate=data_args.deduplicate if text is data_args else None,
            store_words=data_args.masking != "tokens",
            **documents,
        )
        logger.info("%s: %s (%s)", name, corpus, corpus.folder)
        check_unknown_tokens(corpus, tokenizer, name)
        return corpus

    train, validation = prepared, None
    if data_args.validation_file:  # first, because the training text can take hours
        text = TextArguments(
            train_file=data_args.validation_file,
            text_column_name=data_args.text_column_name,
            on_bad_text=data_args.on_bad_text,
        )
        validation = prepare("validation text", text)
    if prepared is not None:
        logger.info("training text: %s", prepared)
        check_unknown_tokens(prepared, tokenizer, "training text")
    elif hold_out:
        percentage = data_args.validation_split_percentage

        def is_held_out(number: int) -> bool:
            """Whether a document is held out. Held-out documents are spread evenly, and are the same in every run."""
            return number * percentage // 100 != (number + 1) * percentage // 100

        others = {"documents": f"all but {percentage} %", "keeps": lambda number: not is_held_out(number)}
        train = prepare("training text", data_args, **others)
        name = f"held-out text ({percentage} % of the documents, --validation_split_percentage)"
        validation = prepare(name, data_args, documents=f"{percentage} %", keeps=is_held_out)
    elif has_text:
        train = prepare("training text", data_args)
    return train, validation


def make_dataset(
    corpus: Corpus,
    name: str,
    max_seq_length: int,
    data_args: PretrainingDataArguments,
    tokenizer: PreTrainedTokenizerBase,
    epochs_dir: Path,
    seed: int,
    objective: Objective | None = None,
) -> PretrainingDataset:
    """Makes the examples of a corpus, and logs their number. By default, uses the objective of the run."""
    objective = objective or data_args.dataset_objective
    logger.info("%s: making the examples of epoch 0", name)
    try:
        dataset = PretrainingDataset(
            corpus,
            tokenizer,
            max_seq_length,
            objective,
            data_args.short_seq_prob,
            seed,
            epochs_dir,
            data_args.window_blocks,
        )
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    labels = ""
    if dataset.next_share is not None:
        labels = f", {dataset.next_share:.1%} labeled 0 ({PAIR_LABELS[objective][0]})"
    logger.info("%s: %s examples of at most %s tokens%s", name, f"{len(dataset):,}", max_seq_length, labels)
    has_no_next = objective == "nsp" and corpus.num_sentences == corpus.num_documents
    if has_no_next or dataset.next_share in (0, 1):
        raise InputError(
            f"{name}: no sentence pairs to learn from. Put the sentences of a document on adjacent lines, with a "
            "blank line between documents, or pass --no_nsp."
        )
    return dataset


def collect_example_settings(
    corpus: Corpus, phases: Sequence[Phase], data_args: PretrainingDataArguments, training_args: PretrainingArguments
) -> dict[str, Any]:
    """Collects the settings that determine the examples of every step, as JSON values. Checkpoints store them."""
    names = ("short_seq_prob", "mask_replace_prob", "random_replace_prob")
    first, last = data_args.mask_rates
    settings: dict[str, Any] = {
        "text": corpus.sources,
        "order of the text": hash_json(list(corpus.sources.values())),
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


def list_sources(corpus: Corpus) -> str:
    """Returns the names of a corpus's files, without folders, or of its dataset, for results and cards."""
    names = (
        name_dataset(name.removeprefix(DATASET))[1] if name.startswith(DATASET) else PurePosixPath(name).name
        for name in corpus.sources
    )
    return shorten(sorted(names))
