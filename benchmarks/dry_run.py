r"""Compares the time and the memory that `--dry_run` predicts with the run itself.

    python benchmarks/dry_run.py --model_name_or_path minilm --data_dir data --output_dir dry

Jobs: `snugbert pretrain` of `mini` on a file of books with batches of 16, and an epoch of `snugbert glue` on MRPC and
on 4,000 examples of SST-2. `--prepare` prepares their text. Then each job runs `--repeats` times. Time is the time of
the whole process, from start to end. Memory is the peak of the process. Both are measured by this script, from
outside. Finished runs are in `results.json` and are not repeated. Nothing else should run on the machine.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from side_by_side import describe_machine, positive
from steps import format_seeds, format_table

from snugbert.files import write_atomically

PRETRAINING = ["--config_name", "mini", "--max_steps", "60", "--per_device_train_batch_size", "16"]
UNITS = {"h": 3600, "min": 60, "s": 1}
SIZES = {"kB": 1e3, "MB": 1e6, "GB": 1e9}


def list_jobs(data: Path, model: str) -> dict[str, list[str]]:
    """Returns the commands by name."""
    fine_tuning = ["glue", "--model_name_or_path", model, "--task_name"]
    text = ["--train_file", str(data / "books_en/train-00.txt.gz")]
    text += ["--validation_file", str(data / "books_en/validation.txt.gz")]
    return {
        "pretraining, books": [
            "pretrain",
            "--tokenizer_name",
            model,
            *text,
            *PRETRAINING,
            "--max_eval_samples",
            "400",
        ],
        "MRPC": [*fine_tuning, "mrpc", "--data_dir", str(data / "glue/MRPC"), "--num_train_epochs", "1"],
        "SST-2, 4,000 examples": [
            *fine_tuning,
            *("sst2", "--data_dir", str(data / "glue/SST-2"), "--max_train_samples", "4000"),
            *("--num_train_epochs", "1"),
        ],
    }


def run_timed(command: list[str], log: Path) -> tuple[float, int]:
    """Runs a `snugbert` command in a new process. Returns its seconds, and its peak memory in bytes (Linux)."""
    start = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", "snugbert", *command], stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the command failed, see {log}")
    return time.perf_counter() - start, 1024 * usage.ru_maxrss


def read_prediction(log: Path) -> tuple[float, float]:
    """Reads the seconds and the bytes that a dry run predicts."""
    text = log.read_text()
    (duration,) = re.findall(r"^time +about (.*?):", text, re.MULTILINE)
    (size,) = re.findall(r"^memory +at least ([\d.]+)([kMG]B) of RAM", text, re.MULTILINE)
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (h|min|s)\b", duration))
    return seconds, float(size[0]) * SIZES[size[1]]


def format_errors(rows: list[dict[str, float]], name: str) -> str:
    """Formats the largest error of a prediction, in percent of the measured value."""
    errors = [100 * (row[f"predicted_{name}"] / row[name] - 1) for row in rows]
    return f"{max(errors, key=abs):+.1f} %"


def main() -> None:
    """Runs the jobs that are not finished, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_dir", type=Path, required=True, help="folder with books_en and glue")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--prepare", action="store_true", help="only prepare the text of the jobs, with a dry run")
    parser.add_argument("--report", action="store_true", help="only print the table of the finished runs")
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    file, run, log = args.output_dir / "results.json", args.output_dir / "run", args.output_dir / "log.txt"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name, command in ({} if args.report else list_jobs(args.data_dir, args.model_name_or_path)).items():
        command = [*command, "--output_dir", str(run), "--use_cpu", "true", "--overwrite_output_dir"]
        rows = results.setdefault(name, [])
        if args.prepare:
            run_timed([*command, "--dry_run"], log)
        while len(rows) < args.repeats and not args.prepare:
            dry, _ = run_timed([*command, "--dry_run"], log)
            predicted_seconds, predicted_bytes = read_prediction(log)
            seconds, size = run_timed(command, log)
            shutil.rmtree(run)
            rows.append(
                {
                    "dry": dry,
                    "predicted_seconds": predicted_seconds,
                    "seconds": seconds,
                    "predicted_bytes": predicted_bytes,
                    "bytes": size,
                }
            )
            write_atomically(file, json.dumps(results, indent=1))
    if args.prepare:
        return
    table = [["job", "dry run, s", "predicted, s", "run, s", "error", "predicted, GB", "run, GB", "error"]]
    for name, rows in results.items():
        numbers = {key: format_seeds([row[key] for row in rows], 1) for key in ("dry", "predicted_seconds", "seconds")}
        sizes = {key: format_seeds([row[key] / 1e9 for row in rows], 3) for key in ("predicted_bytes", "bytes")}
        errors = [format_errors(rows, "seconds"), format_errors(rows, "bytes")]
        table.append([name, *numbers.values(), errors[0], *sizes.values(), errors[1]])
    print(f"    {' '.join(['python', 'benchmarks/dry_run.py', *sys.argv[1:]])}\n")
    print(", ".join(f"{key} {value}" for key, value in describe_machine("cpu").items()))
    print("\nMean ± standard deviation (95 % interval). `error` is the largest one of a single prediction.\n")
    print(format_table(table))


if __name__ == "__main__":
    main()
