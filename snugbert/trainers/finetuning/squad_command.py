"""`snugbert squad`: fine-tunes on questions about paragraphs, scores the model, and predicts answers.

    arguments -> questions -> windows -> model -> answers -> metric (all in squad/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_qa.py`. A command line for `run_qa.py` works here.
"""

from snugbert.tasks.question_answering_arguments import SquadDataArguments


def run_squad(model_args, data_args: SquadDataArguments, training_args) -> None:
    """Runs the command."""
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.question_answering import make_task
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        run_command(make_task, model_args, data_args, training_args)
