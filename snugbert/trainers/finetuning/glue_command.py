"""`snugbert glue`: fine-tunes a classifier for texts or text pairs, scores it, and predicts.

    arguments -> data -> features -> model -> predictions -> metric (all in glue/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_glue.py`. A command line for `run_glue.py` works here.
`--task_name all` fine-tunes on all tasks of GLUE, each in its own folder. To continue, run the same command again.
"""

from snugbert.command_line import parse_arguments
from snugbert.tasks.classification_arguments import GlueDataArguments
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert glue` with the arguments `argv`.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, GlueDataArguments, FineTuningArguments),
        argv,
        prog="snugbert glue",
        description="Fine-tunes a text classifier on a GLUE task or on your own data, evaluates it, and predicts.",
        example="snugbert glue --model_name_or_path pretrained --task_name sst2 --output_dir sst2",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.classification import TextClassification
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.finetuning.suite import run_suite
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        if data_args.task_name == "all":
            run_suite(model_args, data_args, training_args)
        else:
            run_command(TextClassification(data_args), model_args, training_args)
