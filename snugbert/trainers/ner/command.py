"""`snugbert ner`: fine-tune on words that are tagged with entities, score the model entity by entity, tag.

    arguments -> sentences (ner_data.py) -> windows -> model -> metric (metrics/ner.py) -> finetuning/

The flags are those of `TrainingArguments` and of transformers' `run_ner.py`: a command line for that works with this.
"""

from snugbert.command_line import parse_arguments
from snugbert.trainers.finetuning.arguments import FineTunedModelArguments, FineTuningArguments
from snugbert.trainers.ner.arguments import NerDataArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert ner` with the arguments `argv`.

    Raises:
        InputError: something that the user gave cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, NerDataArguments, FineTuningArguments), argv, "snugbert ner", __doc__ or ""
    )
    # Imported after parsing: datasets, evaluate and Trainer take seconds, and `--help` needs none of them.
    from snugbert.trainers.finetuning import sweep
    from snugbert.trainers.ner.task import make_task
    from snugbert.trainers.run_setup import set_up

    set_up(training_args)
    sweep.run(make_task(model_args, data_args, training_args), model_args, training_args)
