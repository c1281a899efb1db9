"""`snugbert pretrain --show`: prints masked examples, as the model sees them."""

import shutil
import tempfile
import textwrap
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from snugbert.errors import InputError
from snugbert.trainers.pretraining.collator import ELECTRA_LEGEND, LEGEND, SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import load_corpora, log_first_epoch, make_dataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments


def show_examples(
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    cache_dir: str | None,
    tokenizer: PreTrainedTokenizerBase,
    collator: SnugBertDataCollatorForPretraining,
) -> None:
    """Prints the first training examples with their masks.

    Raises:
        InputError: there is no training text.
    """
    data_args.validation_file = []
    corpus, _ = load_corpora(data_args, do_train=True, do_eval=False, cache_dir=cache_dir, tokenizer=tokenizer)
    if corpus is None:
        raise InputError("--show: there is no training text. Give --train_file, --dataset_name or --corpus.")
    (length, _), *_ = data_args.lengths_and_shares
    log_first_epoch("training text")
    with tempfile.TemporaryDirectory() as epochs_dir:
        dataset = make_dataset(
            corpus, "training text", length, data_args, tokenizer, Path(epochs_dir), training_args.examples_seed
        )
        legend = ELECTRA_LEGEND if data_args.objective == "electra" else LEGEND
        print(f"\n{textwrap.fill(legend, shutil.get_terminal_size().columns)}")
        for index in range(min(data_args.show, len(dataset))):
            example = collator.describe(dataset[index], dataset.objective, dataset.find_cuts(index))
            print(f"\n{index + 1}. {example}")
