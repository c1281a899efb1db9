"""The `snugbert` command line: the table of commands.

This module is not part of the package, because importing the package imports torch and transformers, which takes
seconds. So `snugbert --help` and a message about a mistyped command are fast. `snugbert/cli/main.py` runs a command.
"""

import os
import re
import sys
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Whether this process only needs the arguments of a command. `import snugbert` then leaves the models for later.
is_reading_arguments = False


class Command(NamedTuple):
    """A command. Its arguments and its function are imported when it runs.

    Attributes:
        summary: for `snugbert --help`.
        description: one sentence about the command, for its own help.
        example: the arguments of a command line to copy.
        arguments: the dataclasses of the arguments, by their names in the package. `--help` imports their modules,
            which import neither models nor datasets.
        function: runs the command. It is called with an instance of each dataclass.
        options: other arguments of the function.
        opens: names of the arguments whose URLs the function opens. For other URLs, the function gets local copies.
        uploads: name of the argument whose folder is uploaded after the function if it is a URL.
        extra: the extra that the command needs: snugbert[extra].
    """

    summary: str
    description: str
    example: str
    arguments: tuple[str, ...]
    function: str
    options: dict[str, str] = {}
    opens: tuple[str, ...] = ()
    uploads: str = ""
    extra: str = "train"


def fine_tuning(head: str, what: str, example: str, arguments: str = "data.sources.ExampleArguments") -> Command:
    """Makes the command of the task that the head of the models determines, see `tasks/`.

    `what`: what the model is fine-tuned for. `arguments`: the dataclass that selects and reads the data.
    """
    module = "trainers.finetuning.finetuning_arguments"
    return Command(
        summary=f"fine-tune and score {what}",
        description=f"Fine-tunes a model for {what}, evaluates it, and predicts.",
        example=example,
        arguments=(f"{module}.FineTunedModelArguments", arguments, f"{module}.FineTuningArguments"),
        function="trainers.finetuning.fine_tune.run_fine_tuning",
        options={"head": head},
    )


COMMANDS = {
    "vocabulary": Command(
        summary="train a tokenizer on text, or extend one",
        description="Learns a tokenizer from text, or adds tokens to one.",
        example="--train_file 'corpus/*.txt.gz' --output_dir tokenizer",
        arguments=("vocabulary.vocabulary_arguments.VocabularyArguments",),
        function="vocabulary.train.train_vocabulary",
        opens=("train_file",),
        uploads="output_dir",
    ),
    "prepare": Command(
        summary="tokenize a corpus once, for many runs",
        description="Tokenizes text once, for any number of pretraining runs.",
        example="--tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --output_dir prepared",
        arguments=(
            "cli.model_arguments.TokenizerArguments",
            "data.data_arguments.PreparationArguments",
            "data.data_arguments.OutputArguments",
        ),
        function="trainers.pretraining.prepare.run_preparation",
        opens=("train_file", "output_dir"),
    ),
    "pretrain": Command(
        summary="pretrain a model on a corpus",
        description="Pretrains a model on text. --objective chooses what it predicts.",
        example="--config_name mini --tokenizer_name tokenizer --train_file 'corpus/*.txt.gz' --max_steps 10000 "
        "--output_dir pretrained",
        arguments=(
            "trainers.pretraining.pretraining_arguments.PretrainingModelArguments",
            "trainers.pretraining.pretraining_arguments.PretrainingDataArguments",
            "trainers.pretraining.pretraining_arguments.PretrainingArguments",
        ),
        function="trainers.pretraining.pretrain.pretrain",
        opens=("train_file", "validation_file", "corpus"),
    ),
    "glue": Command(
        summary="fine-tune and score a classifier for texts or pairs",
        description="Fine-tunes a text classifier on a GLUE task or on your own data, evaluates it, and predicts.",
        example="--model_name_or_path pretrained --task_name sst2 --output_dir sst2",
        arguments=(
            "trainers.finetuning.finetuning_arguments.FineTunedModelArguments",
            "tasks.task_arguments.GlueDataArguments",
            "trainers.finetuning.finetuning_arguments.FineTuningArguments",
        ),
        function="trainers.finetuning.suite.run_glue",
    ),
    "squad": fine_tuning(
        "ForQuestionAnswering",
        "question answering",
        "--model_name_or_path pretrained --dataset_name squad --output_dir squad",
        "tasks.task_arguments.SquadDataArguments",
    ),
    "ner": fine_tuning(
        "ForTokenClassification",
        "named-entity recognition",
        "--model_name_or_path pretrained --train_file train.jsonl --validation_file dev.jsonl --output_dir ner",
        "tasks.task_arguments.NerDataArguments",
    ),
    "swag": fine_tuning(
        "ForMultipleChoice",
        "multiple choice",
        "--model_name_or_path pretrained --train_file train.csv --validation_file dev.csv --output_dir swag",
    ),
    "predict": Command(
        summary="predict every row of a file of any size",
        description="Predicts every row of a file of any size, with a fine-tuned model or an embedding model.",
        example="--model_name_or_path sst2 --input_file rows.jsonl --output_file out.jsonl",
        arguments=("prediction.prediction_arguments.PredictionArguments",),
        function="prediction.predict_file.predict_file",
    ),
    "evaluate": Command(
        summary="score a masked language model without fine-tuning",
        description="Scores a masked language model on minimal pairs and held-out text, without fine-tuning.",
        example="--model_name_or_path pretrained --pairs_file 'blimp/*.jsonl.gz'",
        arguments=(
            "evaluation.evaluation_arguments.EvaluatedModelArguments",
            "evaluation.evaluation_arguments.PairsArguments",
            "evaluation.evaluation_arguments.HeldOutTextArguments",
            "evaluation.evaluation_arguments.EvaluationArguments",
        ),
        function="evaluation.evaluate.evaluate_model",
        opens=("train_file", "validation_file"),
        uploads="output_dir",
    ),
    "convert": Command(
        summary="convert checkpoints of BERT and its relatives, and back",
        description="Converts checkpoints of the BERT family and TensorFlow's BERT to SnugBERT, and back.",
        example="bert-base-uncased snugbert-base --to snugbert",
        arguments=(
            "cli.model_arguments.ConversionArguments",
            "cli.model_arguments.HubArguments",
        ),
        function="families.conversion.run_conversion",
        uploads="output",
    ),
    "export": Command(
        summary="export a model to ONNX, OpenVINO or BERT",
        description="Exports a model to ONNX Runtime, OpenVINO or stock BERT, and runs it there.",
        example="sst2 sst2-onnx --to onnx --dtype int8 --validation_file dev.csv",
        arguments=("export.export_arguments.ExportArguments", "cli.model_arguments.HubArguments"),
        function="export.export.run_export",
        uploads="output",
    ),
    "demo": Command(
        summary="try a checkpoint on a web page",
        description="Serves a web page for trying a checkpoint.",
        example="--model pretrained",
        arguments=("demo.DemoArguments",),
        function="demo.run_demo",
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


def read_version() -> str:
    """Reads `snugbert.__version__` from the file, without importing the package."""
    package = find_spec("snugbert")
    assert package is not None and package.origin is not None
    match = re.search(r'^__version__ = "(.+)"', Path(package.origin).read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


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
        print(f"snugbert {read_version()}")
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
