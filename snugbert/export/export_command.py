"""`snugbert export`: writes a model for another engine, runs it there, and reports the difference.

    snugbert export sst2 sst2-onnx --to onnx --dtype int8 --validation_file dev.csv
    snugbert export sentence-encoder sentence-encoder-openvino --to openvino

docs/how-to/serve.md explains how to run the result.
"""

from pathlib import Path

from transformers.utils import logging as transformers_logging

from snugbert.checkpoints.reading import fetch_checkpoint
from snugbert.command_line import ArgumentParser, get_hub_arguments
from snugbert.export.engine import DTYPES, TARGETS

# Arguments for reading the validation file.
VALIDATION_ARGUMENTS = (
    "task_name",
    "text_column_names",
    "label_column_name",
    "max_seq_length",
    "version_2_with_negative",
)


def main(argv: list[str]) -> None:
    """Runs `snugbert export`, and prints a summary.

    Raises:
        InputError: bad arguments, files or folders, see [`export`].
    """
    parser = ArgumentParser(
        prog="snugbert export",
        usage="[arguments] input output",
        description="Exports a model to ONNX Runtime, OpenVINO, CTranslate2 or stock BERT, and runs it there.",
        example="snugbert export sst2 sst2-onnx --to onnx --dtype int8 --validation_file dev.csv",
    )
    parser.add_argument("input", help="Checkpoint: a folder or a Hub name.")
    parser.add_argument("output", help="Folder to write.")
    parser.add_argument("--to", required=True, choices=TARGETS, help="Target engine.")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="Dtype of the weights. Default: float32.")
    parser.add_argument(
        "--calibration_file", help="Text to calibrate int8 activations on, a text per line. Default: no calibration."
    )
    parser.add_argument(
        "--text_file", help="Extra text for comparing outputs, a text per line. Default: only built-in text."
    )
    parser.add_argument(
        "--validation_file",
        help="Labeled examples to score the model and its export on, as for the fine-tuning commands. For an "
        "embedding model: sentence1, sentence2, score.",
    )
    parser.add_argument("--task_name", help="GLUE task of --validation_file. Default: your own data.")
    parser.add_argument("--text_column_names", help="Text columns of --validation_file, for sequence classification.")
    parser.add_argument("--label_column_name", help="Label column of --validation_file.")
    parser.add_argument(
        "--max_seq_length",
        type=int,
        help="Maximum tokens for --validation_file. Default: as in the fine-tuning command.",
    )
    parser.add_argument(
        "--version_2_with_negative", action="store_true", help="--validation_file has questions without an answer."
    )
    parser.add_argument("--overwrite_output_dir", action="store_true", help="Replace the model in the output folder.")
    parser.add_hub_arguments()
    args = parser.parse_args(argv)
    # Imported after parsing, because datasets and scikit-learn take seconds and `--help` does not need them.
    from snugbert.export.export import export

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    files = {
        name: None if getattr(args, name) is None else Path(getattr(args, name))
        for name in ("calibration_file", "text_file", "validation_file")
    }
    done = export(
        fetch_checkpoint(args.input, **get_hub_arguments(args)),
        Path(args.output),
        args.to,
        dtype=args.dtype,
        overwrite_output_dir=args.overwrite_output_dir,
        source_name=args.input,
        **{name: getattr(args, name) for name in VALIDATION_ARGUMENTS},
        **files,
    )
    print(f"Exported {args.input} to {args.output} for {done.engine}")
    print(f"Weights: {done.dtype}, {done.size / 1e6:,.1f} MB")
    for note in done.notes:
        print(f"Note: {note}")
    print(f"Check: outputs differ by at most {done.difference:.1e} on {done.num_texts:,} texts")
    for metric, (before, after) in done.scores.items():
        print(f"Score: {metric} {after:.4f}, before export {before:.4f}")
