r"""Ways to search for settings, with an equal number of settings: scores, time, and runs that were stopped early.

    python benchmarks/search.py --model_name_or_path minilm --data_dir data --output_dir search

The task is SST-2 with its first 400 training sentences. The model is the first two layers of MiniLM, with frozen
embeddings. The first 200 sentences of the dev set select the setting. The next 400 are the test set, which selects
nothing. Each method tries the same number of settings with `snugbert glue --sweep FILE.yaml`:

- `grid`: four learning rates, two numbers of epochs, two batch sizes
- `random`: ranges with the ends of the grid
- `tpe+prune`: the same ranges, and runs that are worse than the median of earlier runs are stopped
- `no search`: the defaults of the command

The grid has the same settings with each search seed. The best setting runs with three seeds. The columns show the best
validation score of the search, which is optimistic, the test score of the best setting (the mean over its seeds), and
the time of all runs. Intervals are over the search seeds.

Finished sweeps are kept in the output folder. The same command continues an interrupted benchmark.
"""

import argparse
import csv
import gzip
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from side_by_side import describe_machine, positive
from steps import format_seeds, format_table, run_snugbert

TRAINING, VALIDATION, TEST = 400, 200, 400
MAX_LENGTH, LAYERS, WINNER_SEEDS = 64, 2, 3
GRID = {
    "learning_rate": [3e-5, 1.5e-4, 6e-4, 3e-3],
    "num_train_epochs": [1, 4],
    "per_device_train_batch_size": [16, 32],
}
RANGES = {
    "learning_rate": {"low": 3e-5, "high": 3e-3, "log": True},
    "num_train_epochs": {"low": 1, "high": 4, "step": 1},
    "per_device_train_batch_size": [16, 32],
}
METHODS = ("grid", "random", "tpe+prune", "no search")
COLUMNS = ("method", "settings", "stopped early", "best validation score", "test score", "seconds", "learning rates")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--runs", type=positive, default=16, help="settings of each sweep")
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 11, 21], help="search seeds")
    parser.add_argument("--max_train_samples", type=positive, default=TRAINING)
    return parser.parse_args(argv)


def write_data(data_dir: Path, folder: Path) -> None:
    """Writes the training sentences and the halves of the dev set as CSV files."""
    files = {name: data_dir / "glue/SST-2" / name for name in ("train.tsv.gz", "dev.tsv")}
    with gzip.open(files["train.tsv.gz"], "rt", encoding="utf-8") as stream:
        train = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    with files["dev.tsv"].open(encoding="utf-8") as stream:
        dev = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    splits = {"train": train, "validation": dev[:VALIDATION], "test": dev[VALIDATION : VALIDATION + TEST]}
    for name, rows in splits.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, ["sentence", "label"])
            writer.writeheader()
            writer.writerows({"sentence": row["sentence"], "label": row["label"]} for row in rows)


def run_search(method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Runs a sweep, and returns the numbers of a row. A finished sweep is read."""
    name, _, prune = method.partition("+")
    folder = args.output_dir / f"{method.replace(' ', '_')}-{seed}"
    file = args.output_dir / f"{folder.name}.yaml"
    search = {"method": name, "runs": args.runs, "prune": bool(prune), "settings": GRID if name == "grid" else RANGES}
    if method == "no search":
        search = {"settings": {}}
    file.write_text(yaml.safe_dump(search | {"winner_seeds": WINNER_SEEDS}))
    data = {f"{split}_file": args.output_dir / f"{split}.csv" for split in ("train", "validation", "test")}
    settings = {
        "model_name_or_path": args.model_name_or_path,
        **data,
        "max_train_samples": args.max_train_samples,
        "max_seq_length": MAX_LENGTH,
        "num_student_layers": LAYERS,
        "freeze_embeddings": True,
        "seed": seed,
        "sweep": file,
        "use_cpu": True,
        "output_dir": folder,
    }
    if not (folder / "results.json").exists():
        flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        run_snugbert(["glue", *flags], args.output_dir / f"{folder.name}.log")
    sweep = json.loads((folder / "results.json").read_text())["sweep"]
    runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/results.json")]
    return {
        "settings": len(sweep["settings"]) + len(sweep.get("stopped", [])),
        "stopped": len(sweep.get("stopped", [])),
        "validation": 100 * max(row["scores"][0] for row in sweep["settings"]),
        "test": 100 * sweep["metrics"]["predict"]["accuracy"]["mean"],
        "seconds": sum(run["seconds"] for run in runs),
        "learning_rate": sweep["best_setting"]["learning_rate"],
    }


def make_table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Returns a Markdown table: means and standard deviations over the search seeds."""
    lines: list[Sequence[str]] = [COLUMNS]
    for method, results in rows.items():
        settings, stopped = (f"{mean(result[name] for result in results):.1f}" for name in ("settings", "stopped"))
        scores = [format_seeds([result[name] for result in results], 1) for name in ("validation", "test", "seconds")]
        rates = ", ".join(f"{result['learning_rate']:.1e}" for result in results)
        lines.append((method, settings, stopped, *scores, rates))
    return format_table(lines)


def main(argv: list[str]) -> None:
    """Runs all missing sweeps, and prints the table."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_data(args.data_dir, args.output_dir)
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in args.methods}
    for seed in args.seeds:
        for method in args.methods:
            rows[method].append(run_search(method, seed, args))
            print(method, seed, rows[method][-1], file=sys.stderr, flush=True)
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items())
    text = f"{machine}\n\n    python benchmarks/search.py {shlex.join(argv)}\n\n{make_table(rows)}\n"
    (args.output_dir / "search.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
