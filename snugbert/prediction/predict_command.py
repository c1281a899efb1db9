"""`snugbert predict`: predicts every row of a file of any size.

    snugbert predict --model_name_or_path sst2 --input_file rows.jsonl --output_file out.jsonl
    snugbert predict --model_name_or_path encoder --input_file texts.csv.gz --output_file out.jsonl --shard 1/4

docs/how-to/predict.md lists what each kind of model reads and writes.
"""

from transformers.utils import logging as transformers_logging

from snugbert.command_line import parse_arguments
from snugbert.prediction.prediction_arguments import PredictionArguments


def main(argv: list[str]) -> None:
    """Runs `snugbert predict` with the arguments `argv`.

    Raises:
        InputError: an argument, the model or the data cannot be used.
    """
    (args,) = parse_arguments(
        (PredictionArguments,),
        argv,
        prog="snugbert predict",
        description="Predicts every row of a file of any size, with a fine-tuned model or an embedding model.",
        example="snugbert predict --model_name_or_path sst2 --input_file rows.jsonl --output_file out.jsonl",
    )
    # Imported after parsing, so that `--help` and a wrong flag do not wait for datasets.
    from snugbert.prediction.predict_file import predict_file
    from snugbert.shared_cores import share_cores
    from snugbert.trainers.log_lines import set_up_logging

    set_up_logging()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()  # for reading weights
    share_cores()
    predict_file(args)
