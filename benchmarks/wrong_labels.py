r"""How many planted wrong labels `--folds` finds, and how many cleanlab finds in the same predictions.

    pip install cleanlab
    python benchmarks/wrong_labels.py --task sst2 --model MINILM --data glue/SST-2/train.tsv.gz
    python benchmarks/wrong_labels.py --task conll --model MINILM --data conll2003/train.txt.gz

A text gets another label in `--share` of the rows, or a sentence another type of one entity. Then `snugbert glue` or
`snugbert ner` runs with `--folds 5`. With n planted errors, the table shows how many of the first n rows of each
ranking are planted. cleanlab ranks the same out-of-fold predictions. For sentences, its default score is the lowest
of a word. Ours is the lowest of a word with another prediction, if there is one. The data may contain further wrong
labels, which count as not found.
"""

import argparse
import csv
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cleanlab
import numpy as np
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores
from reporting import format_line
from side_by_side import describe_machine, positive, print_table

from snugbert.data.conll import read_conll

COLUMNS = ("seed", "planted", "in suspicious_labels.csv", "first n, ours", "first n, cleanlab's rankings", "minutes")
METHODS = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", required=True, choices=("sst2", "conll"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="SST-2's train.tsv.gz, or CoNLL-2003's train.txt.gz")
    parser.add_argument("--rows", type=positive, default=4000)
    parser.add_argument("--share", type=float, default=0.06)
    parser.add_argument("--seeds", type=positive, default=3)
    return parser.parse_args(argv)


def read_examples(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Reads texts with a label, or words with tags. Texts are from the whole file, because neighbors are similar."""
    with gzip.open(args.data, "rt", encoding="utf-8") as lines:
        if args.task == "conll":
            sentences = [each for each in read_conll(lines, args.data) if set(each.tags or ()) > {"O"}]
            return [{"tokens": each.words, "tags": each.tags} for each in sentences[: args.rows]]
        table = [line.rstrip("\n").split("\t") for line in lines][1:]
    chosen = random.Random(0).sample(sorted({tuple(row) for row in table}), args.rows)
    return [{"text": text.strip(), "label": ("negative", "positive")[int(label)]} for text, label in chosen]


def plant(row: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    """Returns an example with another label, or with another type of one entity."""
    if "label" in row:
        return row | {"label": {"negative": "positive", "positive": "negative"}[row["label"]]}
    first = generator.choice([i for i, tag in enumerate(row["tags"]) if tag.startswith("B-")])
    kind = generator.choice(sorted({"PER", "ORG", "LOC", "MISC"} - {row["tags"][first][2:]}))
    tags, index = [*row["tags"]], first
    while index == first or (index < len(tags) and tags[index].startswith("I-")):
        tags[index] = f"{tags[index][:2]}{kind}"
        index += 1
    return row | {"tags": tags}


def measure(args: argparse.Namespace, seed: int) -> str:
    """Plants errors, looks for them, and returns a row of the table."""
    generator = random.Random(seed)
    rows = read_examples(args)
    planted = set(generator.sample(range(len(rows)), round(args.share * len(rows))))
    data = [plant(row, generator) if index in planted else row for index, row in enumerate(rows)]
    command = "glue" if args.task == "sst2" else "ner"
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder) / "train.jsonl", Path(folder) / "out"
        file.write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
        start = time.monotonic()
        options = ["--model_name_or_path", args.model, "--folds", "5", "--seed", str(seed), "--save_strategy", "no"]
        program = [sys.executable, "-m", "snugbert", command, *options]
        subprocess.run([*program, "--train_file", str(file), "--output_dir", str(output)], check=True)
        minutes = (time.monotonic() - start) / 60
        found = [
            json.loads(line) for line in (output / "out_of_fold_predictions.jsonl").read_text("utf-8").splitlines()
        ]
        with (output / "suspicious_labels.csv").open(encoding="utf-8-sig", newline="") as table:
            listed = {int(row["row"]) - 1 for row in csv.DictReader(table)}
    order = np.argsort([row["label_probability"] for row in found], kind="stable")
    n = len(planted)
    theirs = "not computed for sentences"
    if args.task == "sst2":
        names = sorted({row["label"] for row in found})
        labels = np.array([names.index(row["label"]) for row in found])
        probabilities = np.array([[row["probabilities"][name] for name in names] for row in found])
        rankings = {
            name: np.argsort(get_label_quality_scores(labels, probabilities, method=name), kind="stable")
            for name in METHODS
        }
        issues = find_label_issues(labels, probabilities, return_indices_ranked_by="self_confidence")
        counts = {name: len(planted & set(ranking[:n].tolist())) for name, ranking in rankings.items()}
        theirs = (
            ", ".join(map(str, counts.values())) + f"; find_label_issues: {len(planted & set(issues.tolist()))} of "
        )
        theirs += f"{len(issues)} listed"
    ours = len(planted & set(order[:n].tolist()))
    cells = (
        f"{n}",
        f"{len(planted & listed)} of {len(listed)}",
        f"{ours} ({ours / n:.0%})",
        theirs,
        f"{minutes:.1f}",
    )
    return format_line([str(seed), *cells])


def main(argv: list[str]) -> None:
    """Prints a table with a row for each seed."""
    args = parse_arguments(argv)
    machine = describe_machine("cpu") | {"cleanlab": cleanlab.__version__}
    print_table(__file__, argv, machine, COLUMNS, (measure(args, seed) for seed in range(1, args.seeds + 1)))


if __name__ == "__main__":
    main(sys.argv[1:])
