"""The `snugbert` command line: runs the command that was typed.

This module is not part of the package, because importing the package imports torch and transformers, which takes
seconds. So `snugbert --help`, shell completion, and messages about mistyped commands and flags are fast.
"""

import errno
import functools
import gc
import os
import re
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, NamedTuple

from snugbert_arguments import HELP_FLAGS, did_you_mean, find_mistake, read_flags


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
    """Makes the command of a task.

    Args:
        head: the head of the models, such as "ForTokenClassification". It determines the task, see `tasks/`.
        what: what the model is fine-tuned for.
        example: see [`Command`].
        arguments: the dataclass that selects and reads the data.
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
            "tasks.classification_arguments.GlueDataArguments",
            "trainers.finetuning.finetuning_arguments.FineTuningArguments",
        ),
        function="trainers.finetuning.suite.run_glue",
    ),
    "squad": fine_tuning(
        "ForQuestionAnswering",
        "question answering",
        "--model_name_or_path pretrained --dataset_name squad --output_dir squad",
        "tasks.question_answering_arguments.SquadDataArguments",
    ),
    "ner": fine_tuning(
        "ForTokenClassification",
        "named-entity recognition",
        "--model_name_or_path pretrained --train_file train.jsonl --validation_file dev.jsonl --output_dir ner",
        "tasks.tagging_arguments.NerDataArguments",
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
        summary="export a model to ONNX, OpenVINO, CTranslate2 or BERT",
        description="Exports a model to ONNX Runtime, OpenVINO, CTranslate2 or stock BERT, and runs it there.",
        example="sst2 sst2-onnx --to onnx --dtype int8 --validation_file dev.csv",
        arguments=("export.export_arguments.ExportArguments", "cli.model_arguments.HubArguments"),
        function="export.export.run_export",
        uploads="output",
    ),
    "demo": Command(
        summary="try a checkpoint on a web page",
        description="Serves a web page for trying a checkpoint.",
        example="--model pretrained",
        arguments=("demo.serve.DemoArguments",),
        function="demo.serve.run_demo",
        extra="demo",
    ),
}

# The modules that the extras `train` and `demo` install.
EXTRA_MODULES = (
    "accelerate",
    "datasets",
    "evaluate",
    "gradio",
    "joblib",
    "matplotlib",
    "psutil",
    "pyarrow",
    "scipy",
    "sentencex",
    "seqeval",
    "sklearn",
    "starlette",
    "tqdm",
)


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
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if argv is not None:
        return _run_and_flush(argv)
    argv = sys.argv[1:]
    if "snugbert" not in sys.modules:
        _make_package(argv)
    try:
        status = _run_and_flush(argv)
    except Exception:
        if not _is_one_of_several():
            raise
        traceback.print_exc()
        status = 1
    if status and _is_one_of_several():
        # At exit, gloo could make this process and the other processes wait for each other forever.
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(status)
    return status


def _run_and_flush(argv: list[str]) -> int:
    try:
        try:
            return _run(argv)
        finally:
            if sys.stdout is not None:  # None if it was closed before the process started
                sys.stdout.flush()
    except OSError as error:
        # Python flushes again on exit and would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        return _fail("snugbert", f"cannot write the output: {error.strerror}.")


def _make_package(argv: list[str]) -> None:
    """Makes the module of the package without running its `__init__`, which imports the models and takes seconds.

    Modules with arguments can then be imported. [`run_command`] runs `__init__` after it has read the arguments. Only
    for a process that ends with the command: after `--help` or an error, the module stays empty.
    """
    spec = find_spec("snugbert")
    assert spec is not None
    sys.modules["snugbert"] = module_from_spec(spec)
    if HELP_FLAGS & set(argv):
        # `TrainingArguments` imports peft if it is installed. That takes longer than all other imports of `--help`.
        sys.modules["peft"] = None  # type: ignore[assignment]  # makes Python treat it as not installed


def _complete() -> None:
    """Completes commands, flags and file names for the shell, and exits. docs/reference/command-line.md sets it up."""
    import argparse

    import argcomplete

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for name, command in COMMANDS.items():
        arguments = commands.add_parser(name, add_help=False)
        for flag in read_flags(command.arguments):
            arguments.add_argument(flag, nargs="*")
        arguments.add_argument("paths", nargs="*")
    argcomplete.autocomplete(parser)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(format_usage())
        return 0
    if arguments[0] == "--version":
        print(f"snugbert {read_version()}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        return _fail("snugbert", f"unknown command {name!r}.{hint} Commands: {', '.join(COMMANDS)}.")
    try:
        return _run_command(name, rest)
    except KeyboardInterrupt:
        print(
            f"\nsnugbert {name}: interrupted. Partial output was kept. Run the same command again to continue; "
            "for training add --resume_from_checkpoint true.",
            file=sys.stderr,
        )
        return 130


def _run_command(name: str, arguments: list[str]) -> int:
    if sys.stderr is None or not sys.stderr.isatty():  # no progress bars in log files
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

    program = f"snugbert {name}"
    if mistake := find_mistake(COMMANDS[name].arguments, arguments):
        help_hint = f" `{program} --help` lists the arguments." if mistake.startswith("unknown argument") else ""
        return _fail(program, mistake + help_hint)
    # These take seconds to import.
    from huggingface_hub.utils import httpx
    from safetensors import SafetensorError

    from snugbert.errors import COMMAND, InputError, RunStopped, join_lines
    from snugbert.storage.inputs import show_urls

    os.environ[COMMAND] = name
    try:
        run_command(name, arguments)
        _leave_process_group()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in EXTRA_MODULES:
            raise
        install = f"pip install 'snugbert[{COMMANDS[name].extra}]'"
        return _fail(program, f"the package {error.name} is not installed. Run: {install}")
    # SafetensorError: probably a full disk. TransportError: the network failed.
    except (InputError, OSError, SafetensorError, httpx.TransportError) as error:
        if isinstance(error, BrokenPipeError) and sys.stdout is not None:
            sys.stdout.flush()  # raises again if stdout is the closed pipe
        # Hub errors have lines of no use here. The lines of our own errors are a table.
        message = str(error) if isinstance(error, InputError) else join_lines(error)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            message = "a disk is full. Free some space, and run the same command again."
        return _fail(program, show_urls(message))
    except RuntimeError as error:
        if (explanation := _explain_lost_process(error)) is None:
            raise
        return _fail(program, explanation, status=1)
    except RunStopped as stop:
        _leave_process_group()
        return 128 + stop.number
    return 0


def run_command(name: str, arguments: list[str]) -> None:
    """Reads the arguments of a command, and runs it. Only [`main`] turns errors into messages.

    Args:
        name: a key of `COMMANDS`.
        arguments: the arguments after the name of the command.

    Raises:
        InputError: an argument, a model or data cannot be used.
        SystemExit: with `--help`.
    """
    from snugbert.cli.parser import list_inputs, parse_arguments
    from snugbert.storage.inputs import showing_urls
    from snugbert.storage.uploads import find_output, write_output

    command = COMMANDS[name]
    program = f"snugbert {name}"
    types = [_import(dataclass_name) for dataclass_name in command.arguments]
    # If a flag of help is among the arguments, show help only: peft then counts as not installed (`_make_package`).
    arguments = [argument for argument in arguments if argument in HELP_FLAGS] or arguments
    example = f"{program} {command.example}"
    instances = parse_arguments(types, arguments, program, command.description, example, command.opens)
    package = sys.modules["snugbert"]
    if not hasattr(package, "__version__"):  # see `_make_package`
        package.__spec__.loader.exec_module(package)  # type: ignore[union-attr]
    run = functools.partial(_import(command.function), *instances, **command.options)
    values = {name: value for each in instances for name, value in vars(each).items()}
    output = find_output(values.get(command.uploads))  # None: the folder is local
    with showing_urls():
        run() if output is None else write_output(output, [*instances, list_inputs(instances)], run)


def _import(name: str) -> Any:
    """Imports a class or function by its name in the package."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"snugbert.{module}"), attribute)


def _explain_lost_process(error: RuntimeError) -> str | None:
    if "torch.distributed" not in sys.modules:
        return None
    from snugbert.trainers.run.processes import explain_lost_process

    return explain_lost_process(error)


def _fail(program: str, message: str, status: int = 2) -> int:
    print(f"{program}: error: {message}", file=sys.stderr)
    return status


def _is_one_of_several() -> bool:
    """Whether this process belongs to a process group of torch."""
    if "torch.distributed" not in sys.modules:
        return False
    import torch.distributed

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _leave_process_group() -> None:
    """Ends the threads that connect the processes of a run. Without this, some processes abort on exit."""
    if _is_one_of_several():
        import torch.distributed

        gc.collect()  # frees the model first, because DDP's threads use the group
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
