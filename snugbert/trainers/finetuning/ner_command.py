"""`snugbert ner`: fine-tunes on words tagged with entities, scores whole entities, and predicts tags.

    arguments -> sentences -> windows -> model -> tags -> metric (all in ner/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_ner.py`. A command line for `run_ner.py` works here.
"""

from snugbert.tasks.tagging_arguments import NerDataArguments


def run_ner(model_args, data_args: NerDataArguments, training_args) -> None:
    """Runs the command."""
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.tagging import make_task
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        run_command(make_task, model_args, data_args, training_args)
