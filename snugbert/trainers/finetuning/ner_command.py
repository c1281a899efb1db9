"""`snugbert ner`: fine-tunes on words tagged with entities, scores whole entities, and predicts tags.

    arguments -> sentences -> windows -> model -> tags -> metric (all in ner/), one run or a sweep (finetuning/)

Takes the flags of `TrainingArguments` and of transformers' `run_ner.py`. A command line for `run_ner.py` works here.
"""

from snugbert.command_line import parse_arguments
from snugbert.tasks.tagging_arguments import NerDataArguments
from snugbert.trainers.finetuning.finetuning_arguments import FineTunedModelArguments, FineTuningArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert ner` with the arguments `argv`.

    Raises:
        InputError: an argument or the data cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (FineTunedModelArguments, NerDataArguments, FineTuningArguments),
        argv,
        prog="snugbert ner",
        description="Fine-tunes a model for named-entity recognition, evaluates it, and predicts.",
        example="snugbert ner --model_name_or_path pretrained --train_file train.jsonl --validation_file dev.jsonl "
        "--output_dir ner",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets, evaluate and Trainer.
    from snugbert.tasks.tagging import Tagging
    from snugbert.trainers.finetuning.distillation import run_command
    from snugbert.trainers.processes import set_up
    from snugbert.trainers.run_lock import lock_output_dir

    set_up(training_args)
    with lock_output_dir(training_args):
        run_command(Tagging(data_args), model_args, training_args)
