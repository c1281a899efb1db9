"""`snugbert glue`: fine-tunes a classifier for texts or text pairs, scores it, and predicts.

    arguments -> data -> features -> model -> predictions -> metric (all in glue/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_glue.py`. A command line for `run_glue.py` works here.
`--task_name all` fine-tunes on all tasks of GLUE, each in its own folder. To continue, run the same command again.
"""

from snugbert.tasks.classification_arguments import GlueDataArguments


def run_glue(model_args, data_args: GlueDataArguments, training_args) -> None:
    """Runs the command."""
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.classification import make_task
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.finetuning.suite import run_suite
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        if data_args.task_name == "all":
            run_suite(model_args, data_args, training_args)
        else:
            run_command(make_task, model_args, data_args, training_args)
