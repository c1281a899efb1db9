r"""Fine-tuning with few labels: the defaults, `--sweep stable`, SetFit, and logistic regression on embeddings.

    python benchmarks/few_labels.py --model_name_or_path MODEL --data_dir data --use_cpu --output_dir few

Tasks:

- CoLA, MRPC and RTE with all their labels, scored on the dev sets.
- SST-2 with 16, 64 and 256 labels, scored on the dev set.
- Packages with 16, 64 and 256 labels: which of ten packages of Python's standard library a docstring is from. 1,500
  other docstrings are scored.

Every seed draws its own labels, the same for all methods. The classes are balanced: their numbers differ by at most
one.

Methods:

- `default`: `snugbert glue` with its defaults.
- `stable`: `--sweep stable`.
- `reinit`: `--sweep stable --reinit_layers 1`.
- `logistic`: logistic regression on the mean of the last hidden states, scaled to length 1. Two texts: both means,
  their absolute difference and their product. MODEL is not trained. scikit-learn's default settings.
- `setfit`: the package setfit with the 20 iterations of its paper (Tunstall et al., 2022, section 4.1) and its
  defaults. Only for 16, 64 and 256 labels.

The last two methods need a sentence encoder. Each run has its own result, such as few/stable/sst2-16/42.json. The same
command skips finished runs. `--only` selects runs, and `--report` prints the table of the finished ones.
"""

import argparse
import csv
import json
import os
import random
import shutil
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from pretraining_ladder import as_flags, run_process
from side_by_side import describe_machine, positive
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import AutoModel, AutoTokenizer

import snugbert
from snugbert.trainers.finetuning.intervals import interval_of_mean
from snugbert.trainers.finetuning.results import write_atomically
from snugbert.trainers.rows import read_rows

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import demo

FULL = {  # task -> columns of the texts and the label, metric
    "cola": (("sentence",), "label", "matthews_correlation"),
    "mrpc": (("#1 String", "#2 String"), "Quality", "f1"),
    "rte": (("sentence1", "sentence2"), "label", "accuracy"),
}
COLA_COLUMNS = ("source", "label", "star", "sentence")  # its files have no header
LABELS = (16, 64, 256)
TASKS = (*FULL, *(f"{task}-{labels}" for task in ("sst2", "packages") for labels in LABELS))
FLAGS: dict[str, dict[str, Any]] = {
    "default": {},
    "stable": {"sweep": "stable", "seeds": 1},
    "reinit": {"sweep": "stable", "seeds": 1, "reinit_layers": 1},
}
METHODS = (*FLAGS, "logistic", "setfit")
SCORED_DOCSTRINGS = 1500
SCORES: dict[str, Callable[..., float]] = {
    "accuracy": accuracy_score,
    "f1": lambda references, predictions: f1_score(references, predictions, pos_label="1"),
    "matthews_correlation": matthews_corrcoef,
}

Rows = list[dict[str, str]]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="pretrained checkpoint")
    parser.add_argument("--data_dir", type=Path, help="folder with glue/")
    parser.add_argument("--seeds", nargs="+", type=positive, default=[42, 43, 44, 45, 46])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="runs, such as 'stable/sst2-*'")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--max_eval_samples", type=positive, help="score the first examples only")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the table of the finished runs")
    args = parser.parse_args(argv)
    if not args.report and not (args.model_name_or_path and args.data_dir):
        parser.error("--model_name_or_path and --data_dir are required, except with --report.")
    return args


# --- data -------------------------------------------------------------------------------------------------------


def load_task(task: str, seed: int, args: argparse.Namespace) -> tuple[Rows, Rows]:
    """Returns the training and the validation examples: the texts, and the label as "label"."""
    if task in FULL:
        return read_glue(task, "train", args), read_glue(task, "dev", args)[: args.max_eval_samples]
    name, _, number = task.partition("-")
    if name == "sst2":
        pool, validation = read_sst2("train.tsv.gz", args), read_sst2("dev.tsv", args)
    else:
        pool, validation = read_docstrings()
    return draw_balanced(pool, int(number), seed), validation[: args.max_eval_samples]


def read_glue(task: str, split: str, args: argparse.Namespace) -> Rows:
    """Reads a file of CoLA, MRPC or RTE."""
    columns, label, _ = FULL[task]
    folder = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE"}[task]
    rows = read_rows(args.data_dir / f"glue/{folder}/{split}.tsv", COLA_COLUMNS if task == "cola" else ())
    names = ("sentence",) if len(columns) == 1 else ("sentence1", "sentence2")
    return [
        {**{name: row[column] for name, column in zip(names, columns, strict=True)}, "label": row[label]}
        for _, row in rows
    ]


def read_sst2(file: str, args: argparse.Namespace) -> Rows:
    """Reads a file of SST-2."""
    names = {"0": "negative", "1": "positive"}
    rows = read_rows(args.data_dir / "glue/SST-2" / file)
    return [{"sentence": row["sentence"], "label": names[row["label"]]} for _, row in rows]


def read_docstrings() -> tuple[Rows, Rows]:
    """Returns docstrings of the ten packages with the most, to draw labels from and to score."""
    packages: dict[str, str] = {}  # a docstring that occurs twice counts once
    for path, texts in demo.docstrings(Path(sysconfig.get_path("stdlib"))):
        for text in texts:
            if len(path) > 1 and len(text) >= demo.SHORTEST_DOCSTRING:
                packages.setdefault(" ".join(text.split()), path[0])
    frequent = {package for package, _ in Counter(packages.values()).most_common(demo.PACKAGES)}
    rows = [{"sentence": text, "label": package} for text, package in packages.items() if package in frequent]
    random.Random(0).shuffle(rows)
    return rows[SCORED_DOCSTRINGS:], rows[:SCORED_DOCSTRINGS]


def draw_balanced(rows: Rows, number: int, seed: int) -> Rows:
    """Draws `number` examples, one of each class in turn."""
    rows = random.Random(seed).sample(rows, len(rows))
    by_class = {label: [row for row in rows if row["label"] == label] for label in sorted({r["label"] for r in rows})}
    turns = [row for turn in range(number) for row in (of_class[turn] for of_class in by_class.values())]
    return turns[:number]


# --- runs -------------------------------------------------------------------------------------------------------


def run(name: str, args: argparse.Namespace) -> None:
    """Trains and scores a method on a task with a seed, and writes its result."""
    method, task, seed = name.split("/")
    train, validation = load_task(task, int(seed), args)
    if method in FLAGS:
        score = run_command(name, train, validation, args)
    else:
        classify = classify_embeddings if method == "logistic" else classify_with_setfit
        predictions = classify(train, validation, int(seed), args)
        score = SCORES[metric_of(task)]([row["label"] for row in validation], predictions)
    most_frequent = Counter(row["label"] for row in validation).most_common(1)[0][0]
    constant = SCORES[metric_of(task)]([r["label"] for r in validation], [most_frequent] * len(validation))
    result = {
        "score": 100 * score,
        "baseline": 100 * constant,
        "examples": len(validation),
        "model": str(args.model_name_or_path),
    }
    file = args.output_dir / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(result))
    print(f"{name}: {result['score']:.2f}", file=sys.stderr, flush=True)


def metric_of(task: str) -> str:
    """Returns the metric of a task."""
    return FULL[task][2] if task in FULL else "accuracy"


def run_command(name: str, train: Rows, validation: Rows, args: argparse.Namespace) -> float:
    """Runs `snugbert glue` in a new process, whose output goes to `log.txt` in the run's folder."""
    method, task, seed = name.split("/")
    folder = args.output_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    flags: dict[str, Any] = {"model_name_or_path": args.model_name_or_path, "seed": seed, "save_strategy": "no"}
    flags |= {each: True for each in ("bf16", "use_cpu") if getattr(args, each)} | FLAGS[method]
    if task in FULL:
        flags |= {"task_name": task, "data_dir": args.data_dir / "glue"}
        flags |= {"max_eval_samples": args.max_eval_samples} if args.max_eval_samples else {}
    else:
        for split, rows in (("train", train), ("validation", validation)):
            with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as stream:
                table = csv.DictWriter(stream, rows[0])
                table.writeheader()
                table.writerows(rows)
            flags[f"{split}_file"] = folder / f"{split}.csv"
    output = folder / "run"
    command = ["glue", *as_flags(flags), "--overwrite_output_dir", "--output_dir", str(output)]
    if status := run_process([sys.executable, "-m", "snugbert", *command], folder / "log.txt"):
        raise SystemExit(f"error: {name}: the command failed or was stopped ({status}). See {folder / 'log.txt'}.")
    results = json.loads((output / "results.json").read_text())
    shutil.rmtree(output)  # the weights
    return results["metrics"]["eval"][metric_of(task)]


def classify_embeddings(train: Rows, validation: Rows, seed: int, args: argparse.Namespace) -> list[str]:
    """Logistic regression on mean embeddings. The seed has no effect."""
    embed = make_embedder(args)
    classifier = LogisticRegression(max_iter=1000).fit(embed(train), [row["label"] for row in train])
    return classifier.predict(embed(validation)).tolist()


def make_embedder(args: argparse.Namespace) -> Callable[[Rows], np.ndarray]:
    """Returns a function that embeds one or two texts per example."""
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    config = snugbert.SnugBertConfig.from_pretrained(args.model_name_or_path)
    model = AutoModel.from_pretrained(args.model_name_or_path, config=config)
    collate = snugbert.SnugBertDataCollatorWithPacking()

    @torch.inference_mode()
    def embed_texts(texts: list[str]) -> np.ndarray:
        features = tokenizer(texts, truncation=True, max_length=128)
        rows = [{name: features[name][i] for name in ("input_ids", "attention_mask")} for i in range(len(texts))]
        means = []
        for start in range(0, len(rows), 64):
            batch = collate(rows[start : start + 64])
            lengths = batch["cu_seq_lens_q"].diff().tolist()
            means += [part.mean(0) for part in model(**batch).last_hidden_state[0].split(lengths)]
        return torch.nn.functional.normalize(torch.stack(means)).numpy()

    def embed(rows: Rows) -> np.ndarray:
        columns = [name for name in rows[0] if name != "label"]
        first, *others = (embed_texts([row[name] for row in rows]) for name in columns)
        if not others:
            return first
        return np.concatenate([first, others[0], np.abs(first - others[0]), first * others[0]], axis=1)

    return embed


def classify_with_setfit(train: Rows, validation: Rows, seed: int, args: argparse.Namespace) -> list[str]:
    """Contrastive training on pairs of examples, then logistic regression, with the defaults of the package setfit."""
    from setfit import SetFitModel, Trainer, TrainingArguments

    labels = sorted({row["label"] for row in train})
    model = SetFitModel.from_pretrained(args.model_name_or_path, labels=labels)
    output_dir = args.output_dir / "setfit" / "checkpoints"
    settings = TrainingArguments(
        output_dir=str(output_dir), num_iterations=20, seed=seed, save_strategy="no", report_to="none"
    )
    data = Dataset.from_list([{"text": row["sentence"], "label": row["label"]} for row in train])
    Trainer(model=model, args=settings, train_dataset=data).train()
    return list(model.predict([row["sentence"] for row in validation]))


# --- report -----------------------------------------------------------------------------------------------------


def report(output_dir: Path) -> str:
    """Makes the table of the finished runs."""
    lines = [["task", "method", "seeds", "mean", "95 % interval of the mean", "std", "lowest", "collapsed"]]
    lines.append(["---"] * len(lines[0]))
    for task in TASKS:
        for method in METHODS:
            results = [json.loads(file.read_text()) for file in sorted((output_dir / method / task).glob("*.json"))]
            if not results:
                continue
            scores = [result["score"] for result in results]
            interval = interval_of_mean(scores)
            lines.append(
                [
                    task,
                    method,
                    str(len(scores)),
                    f"{mean(scores):.1f}",
                    "" if interval is None else f"{interval[0]:.1f} to {interval[1]:.1f}",
                    f"{stdev(scores):.1f}" if len(scores) > 1 else "",
                    f"{min(scores):.1f}",
                    str(sum(result["score"] <= result["baseline"] for result in results)),
                ]
            )
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items())
    return "\n".join(
        [
            machine,
            "",
            *(f"| {' | '.join(line)} |" for line in lines),
            "",
            "CoLA: Matthews correlation x 100. MRPC: F1. Others: accuracy. Intervals: Student's t over the seeds. A "
            "run has collapsed if it is no better than the most frequent answer.",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        torch.set_num_threads(args.threads)
    if not args.report:
        for task in TASKS:
            for method in METHODS:
                for seed in args.seeds:
                    name = f"{method}/{task}/{seed}"
                    wanted = any(fnmatch(name, pattern) for pattern in args.only)
                    if method == "setfit" and task in FULL:  # pairs, or too many
                        continue
                    if wanted and not (args.output_dir / f"{name}.json").exists():
                        run(name, args)
    print(report(args.output_dir), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
