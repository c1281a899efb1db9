"""`snugbert evaluate`: scores a masked language model on minimal pairs and held-out text.

    snugbert evaluate --model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz' --output_dir scores
    snugbert evaluate --model_name_or_path pretrained --validation_file held_out.txt

Any masked language model of transformers can be scored, so that models can be compared.
"""

from transformers.utils import logging as transformers_logging


def run_evaluation(model_args, pairs_args, text_args, args) -> None:
    """Runs `snugbert evaluate`."""
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets and accelerate.
    from snugbert.evaluation.evaluate import run
    from snugbert.shared_cores import share_cores
    from snugbert.trainers.log_lines import set_up_logging

    set_up_logging()
    transformers_logging.disable_progress_bar()  # for reading weights
    share_cores()
    run(model_args, pairs_args, text_args, args)
