"""The BERT family on MRPC: SnugBERT and transformers' classes with the same weights.

    python benchmarks/families.py --glue_dir glue

Each model has two rows: a fine-tuning step, and inference over the dev set. In training, SnugBERT gets packed batches.
The other side's batches are padded to their longest pair. In inference both get these padded batches, so SnugBERT's
time includes the removal of padding. Each pair of runs uses the next batches. `side_by_side.py` describes the
measurements.

The models have the sizes of the released checkpoints and random weights, because speed depends on sizes and lengths
only. All texts are tokenized with BERT's WordPiece vocabulary. The models' own tokenizers would give slightly
different lengths.

XLM-RoBERTa's word embeddings are 250,002 x 768. On both sides their gradient is dense: 768 MB that every step fills
with zeros first. DeBERTa's table has 128,100 rows. In transformers, DeBERTa has only eager attention.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
from finetuning import HEADS, glue_features, make_padding_collator
from side_by_side import (
    Work,
    argument_parser,
    default_checkpoint,
    examples_needed,
    make_batches,
    model_class,
    report,
)
from transformers import (
    CamembertConfig,
    DebertaV2Config,
    ElectraConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    RobertaConfig,
    XLMRobertaConfig,
)

from snugbert import SnugBertConfig
from snugbert.cli.model_arguments import TokenizerArguments
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.families.loading import load_tokenizer

TASK = "mrpc"
# The configurations of the released checkpoints, where they differ from their classes' defaults.
ROBERTA: dict[str, Any] = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DEBERTA: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
BASE = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
MODELS: dict[str, PreTrainedConfig] = {
    "roberta-base": RobertaConfig(vocab_size=50265, **ROBERTA),
    "xlm-roberta-base": XLMRobertaConfig(vocab_size=250002, **ROBERTA),
    "camembert-base": CamembertConfig(vocab_size=32005, **ROBERTA),
    "electra-small": ElectraConfig(),
    "electra-base": ElectraConfig(**BASE),
    "deberta-v3-base": DebertaV2Config(**DEBERTA),
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argument_parser(__doc__, trains=True)
    parser.set_defaults(pairs=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--glue_dir", required=True, help="folder with MRPC")
    parser.add_argument("--max_samples", type=int, help="use the first examples of the dev set only")
    return parser.parse_args(argv)


def make_works(args: argparse.Namespace) -> Iterator[Work]:
    """Yields two rows per model: a training step and inference."""
    tokenizer = load_tokenizer(TokenizerArguments(tokenizer_name=default_checkpoint()))
    train = glue_features(TASK, args.glue_dir, "train", tokenizer, examples_needed(args), args.seed)
    dev = glue_features(TASK, args.glue_dir, "validation", tokenizer, args.max_samples, seed=None)
    dev = [{name: value for name, value in feature.items() if name != "label"} for feature in dev]
    for name in args.models:
        yield make_work(f"{name}, step", MODELS[name], train, tokenizer, args, trains=True)
        yield make_work(f"{name}, inference", MODELS[name], dev, tokenizer, args, trains=False)


def make_work(
    name: str,
    stock_config: PreTrainedConfig,
    features: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    args: argparse.Namespace,
    trains: bool,
) -> Work:
    """Makes a row from the features of MRPC."""
    dropout = {"hidden_dropout_prob": args.dropout, "attention_probs_dropout_prob": args.dropout}
    stock_config = type(stock_config).from_dict({**stock_config.to_dict(), **dropout})
    # RoBERTa has one token type, DeBERTa none. RoBERTa's positions skip the padding id, 1, which must not be in the
    # text.
    if stock_config.type_vocab_size < 2:
        features = [{key: value for key, value in feature.items() if key != "token_type_ids"} for feature in features]
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(stock_config.pad_token_id)
    pad = make_padding_collator(TASK, tokenizer)
    batches = make_batches(
        features, args.batch_size, {"ours": SnugBertDataCollatorWithPacking() if trains else pad, "stock": pad}
    )
    work = Work(
        name=f"{name}, {args.dtype}",
        head=HEADS[TASK],
        config=SnugBertConfig.from_dict(stock_config.to_dict()),
        weights=None,
        # All pairs of inference together use the dev set once.
        steps=args.steps if trains else max(1, len(batches["batches"]["stock"]) // (args.warmup + args.pairs)),
        trains=trains,
        stock_config=stock_config,
        **batches,
    )
    torch.manual_seed(args.seed)
    work.weights = model_class(work, stock_config)(stock_config).state_dict()
    return work


def main(argv: list[str]) -> None:
    """Prints two rows per model."""
    args = parse_arguments(argv)
    report(__file__, argv, make_works(args), args)


if __name__ == "__main__":
    main(sys.argv[1:])
