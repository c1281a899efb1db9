"""Fine-tuning commands of tasks that need no arguments of their own, such as `snugbert swag`.

arguments -> examples -> features -> model -> answers -> metric (all in tasks/), one run or a sweep (finetuning/)
"""

from snugbert.card_heads_snugbert import HEADS
from snugbert.command_line import parse_arguments
from snugbert.data.sources import ExampleArguments
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments


def main(argv: list[str], name: str, head: str) -> None:
    """Runs a command with the arguments `argv`.

    Args:
        argv: the arguments after the name of the command.
        name: the name of the command.
        head: the head of its models, such as "ForMultipleChoice". It has a task.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    kind = str(HEADS[head].task).replace("-", " ")
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, ExampleArguments, FineTuningArguments),
        argv,
        prog=f"snugbert {name}",
        description=f"Fine-tunes a model for {kind}, evaluates it, and predicts.",
        example=f"snugbert {name} --model_name_or_path pretrained --train_file train.csv --validation_file dev.csv "
        f"--output_dir {name}",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks import find_task
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        run_command(find_task(head)(data_args), model_args, training_args)
