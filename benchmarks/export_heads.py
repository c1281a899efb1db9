r"""Every head in every engine: the largest difference on real text, and scores in int8.

    python benchmarks/export_heads.py --checkpoints sst2=SST-2/dev.tsv conll=valid.txt squad=dev.json \
        encoder=STS-B/dev.tsv mini --task_name sst2 --text_file texts.txt

`snugbert export` exports each checkpoint to each engine in float32. It runs original and export on the lines of
`--text_file` and on built-in text of all lengths. A checkpoint with a validation file, after `=`, is also exported in
int8, and both are scored.
"""

import argparse
import shlex
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from side_by_side import describe_machine
from transformers.utils import logging as transformers_logging

from snugbert.errors import InputError
from snugbert.export.export import Export, export_model
from snugbert.families.reading import read_checkpoint
from snugbert.families.sentence_transformers_files import find_model_folder

TARGETS = ("onnx", "openvino")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", nargs="+", required=True, help="folders, with =FILE for validation files")
    parser.add_argument("--text_file", required=True, help="a text per line")
    parser.add_argument("--task_name", help="GLUE task of the sequence classifier's validation file")
    return parser.parse_args(argv)


def measure(folder: Path, file: str, to: str, args: argparse.Namespace) -> str:
    """Returns a row of the table."""
    head = read_checkpoint(find_model_folder(folder)).head
    done: dict[str, Export] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for dtype in ("float32", "int8") if file else ("float32",):
            done[dtype] = export_model(
                folder,
                Path(temporary) / dtype,
                to,
                dtype=dtype,  # type: ignore[arg-type]
                text_file=Path(args.text_file),
                validation_file=Path(file) if file else None,
                task_name=args.task_name if head == "ForSequenceClassification" else None,
            )
    score = "" if not file else choose_score(done)
    int8 = f"{done['int8'].difference:.1e}" if file else ""
    return f"| {head} | {to} | {done['float32'].num_texts:,} | {done['float32'].difference:.1e} | {int8} | {score} |"


def choose_score(done: dict[str, Export]) -> str:
    """Formats the main score: of the original, in float32 and in int8."""
    names = ("f1", "accuracy", "spearman")
    name = next(name for name in names if name in done["int8"].scores)
    before, float32 = done["float32"].scores[name]
    return f"{name}: {before:.4f}, {float32:.4f}, {done['int8'].scores[name][1]:.4f}"


def main(argv: list[str]) -> None:
    """Prints a table with a row for each checkpoint and engine."""
    args = parse_arguments(argv)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    packages = ("onnx", "onnxruntime", "openvino", "nncf")
    machine = describe_machine("cpu") | {name: version(name) for name in packages}
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"\n    python benchmarks/export_heads.py {shlex.join(argv)}\n")
    print("| head | engine | texts | difference, float32 | difference, int8 | score: original, float32, int8 |")
    print("|" + " --- |" * 6, flush=True)
    for checkpoint in args.checkpoints:
        folder, _, file = checkpoint.partition("=")
        for to in TARGETS:
            try:
                print(measure(Path(folder), file, to, args), flush=True)
            except InputError as error:
                raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
