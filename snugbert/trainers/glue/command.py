"""`snugbert glue`: fine-tune on labelled sentences or sentence pairs, score the model, predict.

    arguments -> data (glue_data.py) -> features -> metric (metrics/glue.py) -> one run or a sweep (finetuning/)

The flags are those of `TrainingArguments` and of transformers' `run_glue.py`: a command line for that works with this.
`--task_name all` does it for all tasks of GLUE, each in a folder of its own; begun again, it goes on where it was.
"""

from snugbert.command_line import parse_arguments
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.glue.arguments import GlueDataArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert glue` with the arguments `argv`.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, GlueDataArguments, FineTuningArguments), argv, "snugbert glue", __doc__ or ""
    )
    # Imported after parsing: datasets, evaluate and Trainer take seconds, and `--help` needs none of them.
    from snugbert.trainers.finetuning import sweep
    from snugbert.trainers.glue.suite import run_suite
    from snugbert.trainers.glue.task import make_task
    from snugbert.trainers.run_setup import set_up

    set_up(training_args)
    if data_args.task_name == "all":
        run_suite(model_args, data_args, training_args)
    else:
        sweep.run(make_task(model_args, data_args, training_args), model_args, training_args)
