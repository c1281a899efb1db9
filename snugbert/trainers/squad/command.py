"""`snugbert squad`: fine-tune on questions about paragraphs, score the model, answer.

    arguments -> questions (squad_data.py) -> windows (squad_windows.py) -> training and scores of tokens (finetuning/)
    -> answers (squad_answers.py) -> exact match and F1 (metrics/squad.py)

The flags are those of `TrainingArguments` and of transformers' `run_qa.py`: a command line for that works with this.
"""

from snugbert.command_line import parse_arguments
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments
from snugbert.trainers.squad.arguments import SquadDataArguments, SquadTrainingArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert squad` with the arguments `argv`.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, SquadDataArguments, SquadTrainingArguments), argv, "snugbert squad", __doc__ or ""
    )
    # Imported after parsing: datasets, evaluate and Trainer take seconds, and `--help` needs none of them.
    from snugbert.trainers.finetuning import sweep
    from snugbert.trainers.run_setup import set_up
    from snugbert.trainers.squad.task import make_task

    set_up(training_args)
    sweep.run(make_task(model_args, data_args, training_args), model_args, training_args)
