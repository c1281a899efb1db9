"""A pretraining step of SnugBERT and stock BERT: masked tokens and next sentences.

    python benchmarks/pretraining_step.py --train_file 'corpus/*.txt.gz' --size base --max_seq_length 128

The weights are random. A step is zero_grad, forward and backward under autocast. `side_by_side.py` describes the
measurements.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from side_by_side import (
    Work,
    argument_parser,
    default_checkpoint,
    examples_needed,
    make_batches,
    report,
)
from transformers import PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import SIZES, SnugBertConfig
from snugbert.data.corpus.preparation import prepare_corpus
from snugbert.errors import InputError
from snugbert.evaluation.held_out_text import pad_batch
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.examples import PretrainingDataset


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argument_parser(__doc__, trains=True)
    parser.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
    parser.add_argument("--tokenizer_name", help="tokenizer folder; default: BERT uncased")
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument(
        "--short_seq_prob", type=float, default=0.1, help="share of short pairs; more means more padding"
    )
    return parser.parse_args(argv)


def make_work(args: argparse.Namespace) -> Iterator[Work]:
    """Yields the row of this benchmark."""
    dropout = f"hidden_dropout_prob={args.dropout},attention_probs_dropout_prob={args.dropout}"
    model_args = ModelArguments(
        config_name=args.size,
        config_overrides=dropout,
        tokenizer_name=args.tokenizer_name or default_checkpoint(),
    )
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    assert isinstance(config, SnugBertConfig)  # all named sizes are
    if not 5 <= args.max_seq_length <= config.max_position_embeddings:
        raise InputError(f"--max_seq_length must be from 5 to {config.max_position_embeddings}.")
    collate = SnugBertDataCollatorForPretraining(tokenizer)
    collators = {"ours": collate, "stock": lambda examples: pad_batch(collate(examples), tokenizer.pad_token_id)}
    batches = make_batches(read_examples(args, tokenizer), args.batch_size, collators)
    transformers.set_seed(args.seed)
    yield Work(
        name=f"{args.size}, length {args.max_seq_length}, {args.dtype}, dropout {args.dropout:g}",
        head="PreTraining",
        config=config,
        weights=load_model(transformers.AutoModelForPreTraining, model_args, config).state_dict(),
        steps=args.steps,
        trains=True,
        **batches,
    )


def read_examples(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Returns sentence pairs of `--train_file`. Their masks do not depend on the batch or the side."""
    needed = examples_needed(args)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = PretrainingDataset(
            prepare_corpus(args.train_file, tokenizer, folder, show_progress=False),
            tokenizer,
            max_seq_length=args.max_seq_length,
            short_seq_prob=args.short_seq_prob,
            seed=args.seed,
        )
        if len(dataset) < needed:
            raise InputError(f"--train_file: {len(dataset)} sentence pairs, but {needed} are needed. Add text.")
        return [dataset[index] for index in range(needed)]


def main(argv: list[str]) -> None:
    """Prints the row."""
    args = parse_arguments(argv)
    report(__file__, argv, make_work(args), args)


if __name__ == "__main__":
    main(sys.argv[1:])
