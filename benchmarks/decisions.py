r"""Measures thresholds, calibration and abstaining on a test set. They are chosen on validation examples.

    python benchmarks/decisions.py --model_name_or_path minilm --data_dir data --bf16 --output_dir decisions

Tasks (`TASKS`), all fine-tuned with `--num_student_layers` layers of the checkpoint:

- MRPC: chosen on the dev set (408 pairs), tested on the labeled test set (1,725). Two thirds of the pairs are
  paraphrases.
- CoLA: chosen on the last 1,500 training sentences, tested on the dev set (1,043). 70 % of the sentences are
  acceptable.
- Entity types: which types of entities does a sentence of CoNLL-2003 contain? Zero to four labels. The model learns
  from the first 5,000 training sentences. Decisions are chosen on the validation set (3,250) and tested on the test
  set (3,453).

A step trains a model and stores its logits in float32, in OUTPUT/<task>-<seed>.npz. The same command continues after
an interruption, and skips finished steps. `--report` prints the tables of the finished steps.
"""

import argparse
import csv
import gzip
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef
from steps import check_settings, format_seeds, format_table, run_snugbert

from snugbert.errors import InputError
from snugbert.prediction.predictor import Predictor
from snugbert.tasks.decisions import (
    Decisions,
    choose_decisions,
    compute_calibration_error,
    compute_confidence,
    decide,
    read_coverage,
)
from snugbert.tasks.evaluation_set import make_evaluation_set

FIRST_SEED = 42
CHOOSING = 1500  # training sentences of CoLA that are left out
ENTITY_SENTENCES = 5000
SETTINGS = ("model_name_or_path", "data_dir", "num_student_layers", "num_train_epochs", "bf16")
CONFIDENCES = (0.6, 0.7, 0.8, 0.9, 0.95)
METRICS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy_score,
    "subset_accuracy": accuracy_score,
    "f1": f1_score,
    "matthews_correlation": matthews_corrcoef,
    "micro_f1": lambda correct, predicted: f1_score(correct, predicted, average="micro"),
    "macro_f1": lambda correct, predicted: f1_score(correct, predicted, average="macro", zero_division=0),
}
# Task -> the metrics to choose thresholds for.
TASKS = {
    "MRPC": ("f1", "accuracy"),
    "CoLA": ("matthews_correlation", "f1"),
    "entity types": ("macro_f1", "micro_f1", "subset_accuracy"),
}


def read_rows(task: str, split: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a split: train, validation or test."""
    if task == "entity types":
        name = {"validation": "valid"}.get(split, split)
        with gzip.open(folder / f"conll2003/{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for number, row in enumerate(map(json.loads, lines)):
                if split != "train" or number < ENTITY_SENTENCES:
                    types = sorted({tag[2:] for tag in row["ner_tags"] if tag != "O"})
                    yield {"sentence": " ".join(row["tokens"]), "label": types}
    elif task == "MRPC":
        name = {"validation": "dev", "test": "test_labelled"}.get(split, split)
        for row in read_tsv(folder / f"glue/MRPC/{name}.tsv")[1:]:
            yield {"sentence1": row[3], "sentence2": row[4], "label": row[0]}
    else:
        rows = read_tsv(folder / f"glue/CoLA/{'dev' if split == 'test' else 'train'}.tsv")
        parts = {"train": rows[:-CHOOSING], "validation": rows[-CHOOSING:], "test": rows}
        for row in parts[split]:
            yield {"sentence": row[3], "label": row[1]}


def read_tsv(file: Path) -> list[list[str]]:
    """Returns the cells of each line."""
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def run_step(task: str, seed: int, file: Path, args: argparse.Namespace) -> None:
    """Trains a model and stores its logits and the correct labels."""
    folder = file.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "validation", "test"):
        lines = [json.dumps(row) + "\n" for row in read_rows(task, split, Path(args.data_dir))]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    names = ("model_name_or_path", "num_student_layers", "num_train_epochs", "bf16")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"train_file": folder / "train.jsonl", "do_regression": False, "seed": seed, "use_cpu": True}
    settings |= {"output_dir": folder / "model", "overwrite_output_dir": True}
    run_snugbert(["glue", *as_flags(settings)], folder / "log.txt")
    predictor = Predictor(folder / "model", device="cpu")
    config: Any = predictor.model.config
    arrays = {}
    for split in ("validation", "test"):
        sources = {"validation": [folder / f"{split}.jsonl"]}
        examples = make_evaluation_set(predictor.task, config, predictor.tokenizer, sources)
        arrays[f"{split}_logits"] = predictor.run(examples.features)
        arrays[f"{split}_references"] = examples.split.references.astype(np.int64)
    np.savez(folder / "logits.npz", **arrays)
    (folder / "logits.npz").replace(file)
    shutil.rmtree(folder)


# --- report -----------------------------------------------------------------------------------------------------


def report(output_dir: Path) -> str:
    """Makes the tables of the finished steps.

    Raises:
        SystemExit: no step is finished.
    """
    thresholds, calibration, abstaining = [], [], []
    for task, metrics in TASKS.items():
        runs = [dict(np.load(file)) for file in sorted(output_dir.glob(f"{step_name(task)}-*.npz"))]
        if runs:
            thresholds += [make_threshold_row(task, metric, runs) for metric in metrics]
            calibration.append(make_calibration_row(task, runs))
            abstaining += make_abstaining_rows(task, runs)
    if not thresholds:
        raise SystemExit(f"error: --report: {output_dir} has no finished step.")
    machine = json.loads((output_dir / "settings.json").read_text())["machine"]
    titles = (
        "Thresholds, chosen on the validation examples. Their score is measured on the same examples, cross-fitted, "
        "and on the test set.",
        "Temperature. ECE: expected calibration error with 15 bins. NLL: negative log-likelihood of a label, in nats.",
        "Abstaining: share of examples with a label, and share of them that is correct, as promised by the validation "
        "examples, and on the test set.",
    )
    headers = (
        "task | metric | seeds | validation, 0.5 | the same examples | cross-fitted | test, 0.5 | test, thresholds",
        "task | temperature | dev ECE before | cross-fitted | test ECE before | after | test NLL before | after",
        "task | confidence | promised coverage | test coverage | promised accuracy | test accuracy",
    )
    parts = [", ".join(f"{name} {value}" for name, value in machine.items())]
    for title, header, rows in zip(titles, headers, (thresholds, calibration, abstaining), strict=True):
        parts += [title, format_table([header.split(" | "), *rows])]
    parts.append("In percent (except NLL and temperature): mean ± standard deviation over the seeds (95 % interval).")
    return "\n\n".join(parts)


def step_name(task: str) -> str:
    """Returns the beginning of the names of a task's files."""
    return task.replace(" ", "_")


def choose(run: dict[str, np.ndarray], metric: str | None = None) -> Decisions:
    """Chooses temperature and thresholds on the validation examples of a run."""
    return choose_decisions(run["validation_logits"], run["validation_references"], True, metric)


def make_threshold_row(task: str, metric: str, runs: list[dict[str, np.ndarray]]) -> list[str]:
    """Scores decisions with and without thresholds."""
    scores: list[list[float]] = [[] for _ in range(5)]
    for run in runs:
        decisions = choose(run, metric)
        several = run["test_references"].ndim == 2
        temperature, thresholds = decisions.rule

        def answer(split: str, chosen: dict[int, float], temperature: float = temperature, run: Any = run) -> Any:
            return decide(run[f"{split}_logits"].astype(np.float64) / temperature, several, chosen).values  # noqa: B023

        answers = [
            ("validation", decisions.plain.values),
            ("validation", answer("validation", thresholds)),
            ("validation", decisions.fitted.values),
            ("test", answer("test", {})),
            ("test", answer("test", thresholds)),
        ]
        for column, (split, values) in zip(scores, answers, strict=True):
            column.append(100 * METRICS[metric](run[f"{split}_references"], values))
    return [task, metric.replace("_", " "), str(len(runs)), *(format_seeds(column, 1) for column in scores)]


def make_calibration_row(task: str, runs: list[dict[str, np.ndarray]]) -> list[str]:
    """Measures probabilities with and without the temperature."""
    columns: list[list[float]] = [[] for _ in range(7)]
    for run in runs:
        decisions = choose(run)
        facts, references = decisions.describe_calibration(), run["test_references"]
        several = references.ndim == 2
        values = [decisions.rule.temperature, 100 * facts["ece_before"], 100 * facts["ece_after"]]
        tested = []
        for temperature in (1.0, decisions.rule.temperature):
            answers = decide(run["test_logits"].astype(np.float64) / temperature, several, {})
            on_test = decisions._replace(references=references)
            error = compute_calibration_error(*on_test.list_confidences(answers))
            probabilities: Any = answers.probabilities
            loss = log_loss(references.reshape(-1), probabilities.reshape(-1)) if several else 0
            tested.append((100 * error, loss if several else log_loss(references, probabilities)))
        (before, loss_before), (after, loss_after) = tested
        for column, value in zip(columns, [*values, before, after, loss_before, loss_after], strict=True):
            column.append(value)
    digits = (2, 1, 1, 1, 1, 3, 3)
    return [task, *(format_seeds(column, number) for column, number in zip(columns, digits, strict=True))]


def make_abstaining_rows(task: str, runs: list[dict[str, np.ndarray]]) -> list[list[str]]:
    """Compares coverage and accuracy with what the model stores about the validation examples."""
    rows = []
    for least in CONFIDENCES:
        columns: list[list[float]] = [[] for _ in range(4)]
        for run in runs:
            decisions, references = choose(run), run["test_references"]
            promised = read_coverage(decisions.describe_calibration(), least)
            logits = run["test_logits"].astype(np.float64) / decisions.rule.temperature
            answers = decide(logits, references.ndim == 2, {})
            kept = compute_confidence(answers) >= least
            correct = (answers.values == references).reshape(len(references), -1).all(axis=1)
            values = (promised[0], kept.mean(), promised[1], correct[kept].mean() if kept.any() else np.nan)
            for column, value in zip(columns, values, strict=True):
                column.append(100 * value)
        # A model may have no example with such a confidence.
        cells = (format_seeds(column, 1) if np.isfinite(column).all() else "-" for column in columns)
        rows.append([task, f"{least:g}", *cells])
    return rows


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="folder of a BERT checkpoint")
    parser.add_argument("--data_dir", help="folder with glue/ and conll2003/")
    parser.add_argument("--seeds", type=positive, default=3, help="number of seeds, from 42 on; default: 3")
    parser.add_argument("--num_student_layers", type=positive, default=3)
    parser.add_argument("--num_train_epochs", type=float, default=3.0)
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the tables of the finished steps")
    args = parser.parse_args(argv)
    missing = [f"--{name}" for name in ("model_name_or_path", "data_dir") if getattr(args, name) is None]
    if missing and not args.report:
        parser.error(f"{', '.join(missing)} missing. Give them, or --report.")
    return args


def main(argv: list[str]) -> None:
    """Runs the benchmark with the arguments `argv`."""
    args = parse_arguments(argv)
    try:
        if not args.report:
            settings = {name: getattr(args, name) for name in SETTINGS}
            check_settings(args.output_dir, settings | {"machine": describe_machine("cpu")})
            for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
                for task in TASKS:
                    file, start = args.output_dir / f"{step_name(task)}-{seed}.npz", time.monotonic()
                    if not file.exists():
                        run_step(task, seed, file, args)
                        minutes = (time.monotonic() - start) / 60
                        print(f"{file.stem}: finished after {minutes:.1f} minutes", file=sys.stderr, flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir))


if __name__ == "__main__":
    main(sys.argv[1:])
