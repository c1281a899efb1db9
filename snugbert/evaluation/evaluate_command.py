"""`snugbert evaluate`: scores a masked language model on minimal pairs and held-out text.

    snugbert evaluate --model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz' --output_dir scores
    snugbert evaluate --model_name_or_path pretrained --validation_file held_out.txt

Any masked language model of transformers can be scored, so that models can be compared.
"""

from transformers.utils import logging as transformers_logging

from snugbert.command_line import parse_arguments
from snugbert.evaluation.evaluation_arguments import (
    EvaluatedModelArguments,
    EvaluationArguments,
    HeldOutTextArguments,
    PairsArguments,
)


def main(argv: list[str]) -> None:
    """Runs `snugbert evaluate` with the arguments `argv`.

    Raises:
        InputError: an argument, the model or the data cannot be used.
    """
    model_args, pairs_args, text_args, args = parse_arguments(
        (EvaluatedModelArguments, PairsArguments, HeldOutTextArguments, EvaluationArguments),
        argv,
        prog="snugbert evaluate",
        description="Scores a masked language model on minimal pairs and held-out text, without fine-tuning.",
        example="snugbert evaluate --model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz'",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets and accelerate.
    from snugbert.evaluation.evaluate import run
    from snugbert.shared_cores import share_cores
    from snugbert.trainers.log_lines import set_up_logging

    set_up_logging()
    transformers_logging.disable_progress_bar()  # for reading weights
    share_cores()
    run(model_args, pairs_args, text_args, args)
