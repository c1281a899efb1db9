r"""Fine-tuning scores against the learning rate, for checkpoints of several sizes.

    python benchmarks/learning_rates.py --model_name_or_path minilm --factors 1 4 --seeds 1 2 3 --data_dir data \
        --output_dir rates

A factor multiplies the BERT paper's learning rate, which is 3e-5, and 5e-5 for SQuAD. Every run is a `snugbert glue`,
`ner` or `squad` command with the defaults: 3 epochs, batches of 32, 10 % warmup, linear decay. Most tasks train on
their first examples only (`TASKS`). The score is the command's main metric on the validation set, in percent. The
baseline is the command's own.

Finished runs are kept in the output folder. The same command continues an interrupted benchmark. Other factors, seeds
and checkpoints are added to the table. `--report` makes the table without new runs.
"""

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from side_by_side import describe_machine, positive

from snugbert.tasks.base import Task as SnugBertTask
from snugbert.tasks.question_answering import QuestionAnswering


@dataclass(frozen=True)
class Task:
    """A row of the table.

    Attributes:
        title: name of the row.
        command: `snugbert` command with its arguments; {} is the data folder.
        metric: the command's main metric.
        max_train_samples: number of training examples, from the first.
        percent: factor that converts the metric to percent.
        paper_rate: the learning rate of the BERT paper.
    """

    title: str
    command: str
    metric: str
    max_train_samples: int
    percent: float = 100.0
    paper_rate: float = SnugBertTask.paper_learning_rate


TASKS = {
    "sst2": Task("SST-2", "glue --task_name sst2 --data_dir {}/glue", "accuracy", 5000),
    "rte": Task("RTE", "glue --task_name rte --data_dir {}/glue", "accuracy", 1000),
    "mrpc": Task("MRPC", "glue --task_name mrpc --data_dir {}/glue", "f1", 1000),
    "cola": Task("CoLA", "glue --task_name cola --data_dir {}/glue", "matthews_correlation", 3000),
    "conll": Task(
        "CoNLL-2003",
        "ner --train_file {}/conll2003/train.jsonl.gz --validation_file {}/conll2003/valid.jsonl.gz "
        "--max_eval_samples 1000",
        "f1",
        1000,
    ),
    "squad": Task(
        "SQuAD v1.1",
        "squad --train_file {}/squad/train-v1.1-first44.jsonl.gz --validation_file {}/squad/dev-v1.1.jsonl.gz "
        "--max_eval_samples 300",
        "f1",
        300,
        percent=1.0,
        paper_rate=QuestionAnswering.paper_learning_rate,
    ),
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", nargs="+", default=[], help="folders of BERT or SnugBERT checkpoints")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--factors", nargs="+", type=float, default=[], help="learning rates, relative to the paper's")
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--data_dir")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--max_train_samples", type=positive, help="replaces the number of every task")
    parser.add_argument("--report", action="store_true", help="print the table of the finished runs")
    args = parser.parse_args(argv)
    if not args.report and (args.data_dir is None or not Path(args.data_dir).is_dir()):
        raise SystemExit(f"error: --data_dir: no such folder: {args.data_dir}.")
    return args


def build_command(model: str, task: str, factor: float, args: argparse.Namespace) -> list[str]:
    """Builds the arguments of `snugbert`, without seed and output folder."""
    command = [part.replace("{}", args.data_dir) for part in TASKS[task].command.split()]
    settings = {
        "model_name_or_path": model,
        "learning_rate": f"{factor * TASKS[task].paper_rate:g}",
        "max_train_samples": _count_examples(task, args),
        "save_strategy": "no",
        "report_to": "none",
    }
    flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    return [*command, "--do_train", "--do_eval", "--eval_strategy", "no", *flags]


def _count_examples(task: str, args: argparse.Namespace) -> int:
    return args.max_train_samples or TASKS[task].max_train_samples


def run(model: str, task: str, factor: float, seed: int, args: argparse.Namespace) -> None:
    """Runs a command, unless its result is in the output folder.

    Raises:
        SystemExit: the command failed, or the result is from a different command.
    """
    command = [*build_command(model, task, factor, args), "--seed", str(seed)]
    file = args.output_dir / f"{Path(model).name}_{task}_{_count_examples(task, args)}_{factor:g}_{seed}.json"
    if file.exists():
        if json.loads(file.read_text())["command"] != command:
            raise SystemExit(f"error: {file} is from a different command. Choose another --output_dir.")
        return
    log = file.with_suffix(".log")
    # Only the scores are kept. The models would need gigabytes.
    with tempfile.TemporaryDirectory() as folder, log.open("w") as stream:
        environment = {**os.environ, "HF_DATASETS_CACHE": f"{folder}/cache"}
        process = subprocess.run(
            [sys.executable, "-m", "snugbert", *command, "--output_dir", f"{folder}/run"],
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        if process.returncode:
            raise SystemExit(f"error: {file.stem}: the run failed. See {log}.")
        results = json.loads((Path(folder) / "run/results.json").read_text())
        config = json.loads((Path(folder) / "run/config.json").read_text())
    metric, percent = TASKS[task].metric, TASKS[task].percent
    baseline = results["baselines"].get("eval", {}).get(metric)
    result: dict[str, Any] = {
        "command": command,
        "model": Path(model).name,
        "size": f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}",
        "task": task,
        "examples": _count_examples(task, args),
        "factor": factor,
        "seed": seed,
        "score": percent * results["metrics"]["eval"][metric],
        "baseline": None if baseline is None else percent * baseline,
    }
    print(f"{file.stem}: {result['score']:.2f}", file=sys.stderr, flush=True)
    file.write_text(json.dumps(result, indent=1))


def make_table(results: list[dict[str, Any]]) -> str:
    """Returns a Markdown table per checkpoint: a row per task, a column per factor, means over the seeds."""
    sections = []
    for model in dict.fromkeys(result["model"] for result in results):
        ours = [result for result in results if result["model"] == model]
        factors = sorted({result["factor"] for result in ours})
        header = ["task", "training examples", "paper's rate", "baseline", *(f"x {factor:g}" for factor in factors)]
        lines = [header, ["---"] * len(header)]
        for (name, task), examples in itertools.product(TASKS.items(), sorted({each["examples"] for each in ours})):
            runs = [result for result in ours if (result["task"], result["examples"]) == (name, examples)]
            if runs:
                cells = [
                    _format_scores([run["score"] for run in runs if run["factor"] == factor]) for factor in factors
                ]
                title, baseline = f"{task.title}, {task.metric.replace('_', ' ')}", runs[0]["baseline"]
                reference = "" if baseline is None else f"{baseline:.1f}"
                lines.append([title, f"{examples:,}", f"{task.paper_rate:g}", reference, *cells])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        sections.append(f"{model}: {ours[0]['size']}\n\n{table}\n")
    return "\n".join(sections)


def _format_scores(scores: list[float]) -> str:
    if not scores:
        return ""
    return f"{mean(scores):.1f} ± {stdev(scores):.1f}" if len(scores) > 1 else f"{scores[0]:.1f} (one seed)"


def main(argv: list[str]) -> None:
    """Runs all missing commands, and prints the table of all finished ones."""
    args = parse_arguments(argv)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if not args.report:
        # Seeds first, so that an interrupted benchmark has whole columns.
        for seed, factor in itertools.product(args.seeds, args.factors):
            for model, task in itertools.product(args.model_name_or_path, args.tasks):
                run(model, task, factor, seed, args)
    results = [json.loads(file.read_text()) for file in sorted(args.output_dir.glob("*.json"))]
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items())
    text = f"{machine}\n\n    python benchmarks/learning_rates.py {shlex.join(argv)}\n\n{make_table(results)}"
    (args.output_dir / "learning_rates.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
