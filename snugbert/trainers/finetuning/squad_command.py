"""`snugbert squad`: fine-tunes on questions about paragraphs, scores the model, and predicts answers.

    arguments -> questions -> windows -> model -> answers -> metric (all in squad/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_qa.py`. A command line for `run_qa.py` works here.
"""

from snugbert.command_line import parse_arguments
from snugbert.tasks.question_answering_arguments import SquadDataArguments
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert squad` with the arguments `argv`.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, SquadDataArguments, FineTuningArguments),
        argv,
        prog="snugbert squad",
        description="Fine-tunes a model for question answering, evaluates it, and predicts.",
        example="snugbert squad --model_name_or_path pretrained --dataset_name squad --output_dir squad",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.question_answering import QuestionAnswering
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        run_command(QuestionAnswering(data_args), model_args, training_args)
