"""`snugbert pretrain`: pretrains on text, with masked tokens, sentence pairs, or ELECTRA's replaced tokens."""

from snugbert.command_line import parse_arguments
from snugbert.trainers.pretraining.pretraining_arguments import (
    PretrainingArguments,
    PretrainingDataArguments,
    PretrainingModelArguments,
)


def main(argv: list[str]) -> None:
    """Runs `snugbert pretrain` with the arguments `argv`.

    Raises:
        InputError: an argument or a file cannot be used.
    """
    model_args, data_args, training_args = parse_arguments(
        (PretrainingModelArguments, PretrainingDataArguments, PretrainingArguments),
        argv,
        prog="snugbert pretrain",
        description="Pretrains a model on text. --objective chooses what it predicts.",
        example="snugbert pretrain --config_name mini --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' "
        "--max_steps 10000 --output_dir pretrained",
    )
    # Imported after parsing, because datasets, pyarrow and Trainer take seconds and `--help` does not need them.
    from snugbert.trainers.pretraining.pretrain import run

    run(model_args, data_args, training_args)
