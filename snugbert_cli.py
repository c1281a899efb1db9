"""The `snugbert` command line: the table of commands.

This module is not part of the package, because importing the package imports torch and transformers, which takes
seconds. So `snugbert --help` and a message about a mistyped command are fast. `snugbert/cli/main.py` runs a command.
"""

import os
import sys
from difflib import get_close_matches
from importlib.metadata import version
from typing import NamedTuple

# Whether this process only needs the arguments of a command. `import snugbert` then leaves the models for later.
is_reading_arguments = False


class Command(NamedTuple):
    """A command. Its arguments and its function are imported when it runs."""

    summary: str  # one sentence, for `snugbert --help` and for the command's own help
    example: str  # the arguments of a command line to copy
    # The dataclasses of the arguments. `--help` imports their modules, which import neither models nor datasets.
    arguments: tuple[str, ...]
    function: str  # runs the command. It is called with an instance of each dataclass
    options: dict[str, str] = {}  # other arguments of the function
    uploads: str = ""  # an argument. If its value is a URL, the output is uploaded after the function returns
    extra: str = "train"  # the command needs snugbert[extra]


def fine_tuning(
    summary: str,
    example: str,
    data: str,
    function: str = "trainers.finetuning.fine_tune.run_fine_tuning",
    **options: str,
) -> Command:
    """Makes the command of a task. `data`: the dataclass that selects and reads the data."""
    module = "trainers.finetuning.finetuning_arguments"
    arguments = (f"{module}.FineTunedModelArguments", data, f"{module}.FineTuningArguments")
    return Command(summary, example, arguments, function, options)


COMMANDS = {
    "vocabulary": Command(
        "Train a tokenizer on text, or extend one.",
        "--train_file 'corpus/*.txt.gz' --output_dir tokenizer",
        ("vocabulary.vocabulary_arguments.VocabularyArguments",),
        "vocabulary.train.train_vocabulary",
        uploads="output_dir",
    ),
    "prepare": Command(
        "Tokenize a corpus once, for many pretraining runs.",
        "--tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared",
        (
            "cli.model_arguments.TokenizerArguments",
            "data.data_arguments.PreparationArguments",
            "data.data_arguments.OutputArguments",
        ),
        "trainers.pretraining.prepare.run_preparation",
    ),
    "pretrain": Command(
        "Pretrain a model on a corpus. --objective chooses what it predicts.",
        "--config_name mini --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --max_steps 10000 "
        "--output_dir pretrained",
        (
            "trainers.pretraining.pretraining_arguments.PretrainingModelArguments",
            "trainers.pretraining.pretraining_arguments.PretrainingDataArguments",
            "trainers.pretraining.pretraining_arguments.PretrainingArguments",
        ),
        "trainers.pretraining.pretrain.pretrain",
    ),
    "glue": fine_tuning(
        "Fine-tune and score a classifier for texts or pairs, on GLUE or your own data.",
        "--model_name_or_path pretrained --task_name sst2 --output_dir sst2",
        "tasks.task_arguments.GlueDataArguments",
        "trainers.finetuning.suite.run_glue",
    ),
    "squad": fine_tuning(
        "Fine-tune and score question answering.",
        "--model_name_or_path pretrained --dataset_name squad --output_dir squad",
        "tasks.task_arguments.SquadDataArguments",
        head="ForQuestionAnswering",
    ),
    "ner": fine_tuning(
        "Fine-tune and score named-entity recognition.",
        "--model_name_or_path pretrained --train_file train.jsonl --validation_file dev.jsonl --output_dir ner",
        "tasks.task_arguments.NerDataArguments",
        head="ForTokenClassification",
    ),
    "swag": fine_tuning(
        "Fine-tune and score multiple choice.",
        "--model_name_or_path pretrained --train_file train.csv --validation_file dev.csv --output_dir swag",
        "data.sources.ExampleArguments",
        head="ForMultipleChoice",
    ),
    "predict": Command(
        "Predict every row of a file of any size, with a fine-tuned model or an embedding model.",
        "--model_name_or_path sst2 --input_file rows.jsonl --output_file out.jsonl",
        ("prediction.prediction_arguments.PredictionArguments",),
        "prediction.predict_file.predict_file",
    ),
    "evaluate": Command(
        "Score a masked language model on minimal pairs and held-out text, without fine-tuning.",
        "--model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz'",
        (
            "evaluation.evaluation_arguments.EvaluatedModelArguments",
            "evaluation.evaluation_arguments.EvaluationArguments",
            "evaluation.evaluation_arguments.HeldOutTextArguments",
        ),
        "evaluation.evaluate.evaluate_model",
        uploads="output_dir",
    ),
    "convert": Command(
        "Convert checkpoints of BERT and its relatives to SnugBERT, and back.",
        "bert-base-uncased snugbert-base --to snugbert",
        ("cli.model_arguments.ConversionArguments", "cli.model_arguments.HubArguments"),
        "families.conversion.run_conversion",
        uploads="output",
    ),
    "export": Command(
        "Export a model to ONNX Runtime, OpenVINO or stock BERT, and run it there.",
        "sst2 sst2-openvino --to openvino --dtype int8 --calibration_file train.csv",
        ("export.export_arguments.ExportArguments", "cli.model_arguments.HubArguments"),
        "export.export.run_export",
        uploads="output",
    ),
    "demo": Command(
        "Try a checkpoint on a web page.",
        "--model pretrained",
        ("demo.DemoArguments",),
        "demo.run_demo",
        extra="demo",
    ),
}


def format_usage() -> str:
    """Returns the text of `snugbert --help`."""
    return "\n".join(
        [
            "usage: snugbert <command> [arguments]",
            "",
            *(f"  {name:<12}{command.summary}" for name, command in COMMANDS.items()),
            "",
            "snugbert <command> --help   lists the arguments of a command",
            "snugbert --version          prints the version",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs `snugbert` with `argv` (default: `sys.argv[1:]`).

    Returns:
        The exit status. 0: done. 1: another process of the run is lost. 2: an error in the input. A status
        of 1 or 2 comes with one message. 130 and 143: stopped by SIGINT (Ctrl-C) or SIGTERM. 141: the reader of the
        output closed the pipe, for example `| head`.
    """
    if argv is not None:
        return _run_and_flush(argv)
    global is_reading_arguments
    is_reading_arguments = "snugbert" not in sys.modules
    status = _run_and_flush(sys.argv[1:])
    if status and "torch.distributed" in sys.modules:
        from snugbert.cli.main import abandon_process_group

        abandon_process_group(status)
    return status


def _run_and_flush(argv: list[str]) -> int:
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:  # None if it was closed before the process started
                sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes again on exit and would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(format_usage())
        return 0
    if arguments[0] == "--version":
        print(f"snugbert {version('snugbert')}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        similar = [command for command in COMMANDS if name in command] or get_close_matches(name, COMMANDS, n=1)
        hint = f" Did you mean {similar[0]}?" if similar else ""
        print(f"snugbert: error: unknown command {name!r}.{hint} Commands: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    try:
        from snugbert.cli.main import run_and_report

        return run_and_report(name, rest)
    except KeyboardInterrupt:
        print(
            f"\nsnugbert {name}: interrupted. Partial output was kept. Run the same command again to continue; "
            "for training add --resume_from_checkpoint true.",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main())
