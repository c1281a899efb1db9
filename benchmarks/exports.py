r"""`snugbert predict` with every engine next to transformers' pipeline with stock BERT, on labeled data.

    snugbert export sst2 sst2-int8 --to openvino --dtype int8 --calibration_file sentences.txt
    python benchmarks/exports.py --task sst2 --model sst2 --exports sst2-int8 --glue_dir glue

Each side reads a JSON-lines file, predicts it and writes JSON lines, as in prediction.py. `--model` runs in torch, in
float32 and bfloat16. Its stock BERT, converted by `snugbert convert`, is the baseline. The sides alternate. A ratio is
stock's time / a side's time in the same round, after one round of warmup. Labels: the share of rows with stock's
answer. Score: accuracy, or F1 of entities (conll).

`--others` are files with the predictions of other programs, `{"predicted_label": ...}` per line, and `seconds` in the
last line. They are scored in the same way.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from prediction import Rows, make_ours, make_stock
from reporting import format_line, format_median
from seqeval.metrics import f1_score
from side_by_side import describe_machine, positive, print_table
from transformers import pipeline

from snugbert.data.conll import read_conll
from snugbert.data.tables import read_rows
from snugbert.data.text_lines import read_text_lines
from snugbert.families.conversion import convert_model

COLUMNS = ("model", "MB", "rows/s", "ratio: median (min-max)", "same labels", "score")
LABELS = {"sst2": ("negative", "positive"), "mrpc": ("not_equivalent", "equivalent")}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, choices=("sst2", "mrpc", "conll"))
    parser.add_argument("--model", required=True, help="fine-tuned model")
    parser.add_argument("--exports", nargs="*", default=[], help="folders that `snugbert export` wrote from the model")
    parser.add_argument("--others", nargs="*", default=[], help="files with predictions of other programs")
    parser.add_argument("--glue_dir", help="folder with SST-2 and MRPC")
    parser.add_argument("--conll_file", help="CoNLL-2003's valid.txt")
    parser.add_argument("--max_rows", type=positive, help="use the first rows only")
    parser.add_argument("--batch_size", type=positive, default=32, help="of the pipeline")
    parser.add_argument("--rounds", type=positive, default=5)
    return parser.parse_args(argv)


def read_examples(args: argparse.Namespace) -> tuple[Rows, list[Any]]:
    """Returns the rows to predict, and the right answers: labels, or tags of words that are joined by spaces."""
    if args.task == "conll":
        sentences = list(read_conll(read_text_lines(Path(args.conll_file)), "conll"))[: args.max_rows]
        return [{"text": " ".join(each.words)} for each in sentences], [(each.words, each.tags) for each in sentences]
    folder, *texts, label = {
        "sst2": ("SST-2", "sentence", "label"),
        "mrpc": ("MRPC", "#1 String", "#2 String", "Quality"),
    }[args.task]
    values = [row for _, row in read_rows(Path(args.glue_dir) / folder / "dev.tsv")]
    columns = ("text", "text_pair")
    rows = [{columns[i]: row[name].strip() for i, name in enumerate(texts)} for row in values[: args.max_rows]]
    return rows, [LABELS[args.task][int(row[label])] for row in values[: args.max_rows]]


# --- the sides --------------------------------------------------------------------------------------------------


def make_stock_side(args: argparse.Namespace, folder: Path, rows: Path, output: Path) -> Callable[[], Rows]:
    """Makes a function that predicts the rows with a pipeline of transformers."""
    if args.task != "mrpc":
        task = "text-classification" if args.task == "sst2" else "token-classification"
        return make_stock(task, folder, rows, output, args.batch_size)
    classify = pipeline("text-classification", str(folder), device="cpu", batch_size=args.batch_size, truncation=True)

    def run() -> Rows:
        with rows.open() as source, output.open("w") as target:
            for found in classify(json.loads(line) for line in source):
                target.write(json.dumps({"prediction": found}) + "\n")
        return [json.loads(line) for line in output.read_text().splitlines()]

    return run


def list_answers(task: str, rows: Rows) -> list[Any]:
    """Returns the predicted labels, or the entities as (label, start, end)."""
    if task != "conll":
        return [row["predicted_label"] if "predicted_label" in row else row["prediction"]["label"] for row in rows]
    answers = []
    for row in rows:
        found = row["entities"] if "entities" in row else row["prediction"]
        answers.append([(each.get("label") or each["entity_group"], each["start"], each["end"]) for each in found])
    return answers


def score(task: str, answers: list[Any], right: list[Any]) -> float:
    """Returns the accuracy, or the F1 of entities. A word has the tag of its first character."""
    if task != "conll":
        return float(np.mean([found == expected for found, expected in zip(answers, right, strict=True)]))
    predictions = []
    for found, (words, _) in zip(answers, right, strict=True):
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        tags = ["O"] * len(words)
        for label, first, end in found:
            inside = [i for i, start in enumerate(starts) if first < start + len(words[i]) and start < end]
            for i in inside:
                tags[i] = f"{'B' if i == inside[0] else 'I'}-{label}"
        predictions.append(tags)
    return float(f1_score([tags for _, tags in right], predictions))


def size(folder: Path) -> float:
    """Returns the megabytes of the weights."""
    files = [each for each in folder.rglob("*") if each.suffix in (".safetensors", ".onnx", ".xml", ".bin", ".data")]
    return sum(file.stat().st_size for file in files if "checkpoint" not in str(file.parent)) / 1e6


def main(argv: list[str]) -> None:
    """Prints a table with a row for each model."""
    args = parse_arguments(argv)
    rows, right = read_examples(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        convert_model(Path(args.model), folder / "stock", "bert")
        source = folder / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sides = {"transformers' pipeline": make_stock_side(args, folder / "stock", source, folder / "stock.jsonl")}
        sizes = {"transformers' pipeline": size(folder / "stock")}
        models = {"SnugBERT, float32": (args.model, False), "SnugBERT, bfloat16": (args.model, True)}
        models |= {f"predict, {Path(each).name}": (each, False) for each in args.exports}
        for name, (model, bf16) in models.items():
            sides[name] = make_ours(model, source, folder / f"{len(sides)}.jsonl", bf16)
            sizes[name] = size(Path(model))
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        answers: dict[str, list[Any]] = {}
        for number in range(1 + args.rounds):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                found = sides[name]()
                seconds[name].append(time.perf_counter() - start)
                answers[name] = list_answers(args.task, found)
    for file in args.others:
        *found, last = [json.loads(line) for line in Path(file).read_text().splitlines()]
        name = Path(file).stem
        seconds[name], sizes[name], answers[name] = last["seconds"], last["megabytes"], list_answers(args.task, found)
    stock = "transformers' pipeline"

    def lines():
        for name, times in seconds.items():
            ratios = [theirs / mine for mine, theirs in zip(times[1:], seconds[stock][1:], strict=False)]
            same = np.mean([mine == theirs for mine, theirs in zip(answers[name], answers[stock], strict=True)])
            cells = (f"{sizes[name]:.1f}", f"{len(rows) / median(times[1:]):,.0f}", format_median(ratios))
            yield format_line([name, *cells, f"{same:.1%}", f"{100 * score(args.task, answers[name], right):.2f}"])

    print_table(__file__, argv, describe_machine("cpu"), COLUMNS, lines())


if __name__ == "__main__":
    main(sys.argv[1:])
