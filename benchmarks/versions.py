"""Times commands with this code and with an earlier commit, and draws how much faster they became.

    git worktree add ../earlier f73198a3
    python benchmarks/versions.py --earlier ../earlier --glue_dir glue --text books.txt.gz --image versions.png

Each command is a new process, from start to end, with its imports. The two versions take turns, and the version that
goes first alternates. A ratio is the earlier version's time divided by this version's, in the same round. Both
versions run in the same environment, so they differ only in SnugBERT's own code.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from reporting import format_line, format_median
from side_by_side import choose_device, describe_machine, positive, print_table

from snugbert.reports.plots import GREY, TITLE, new_figure, save_figure

NOW = Path(__file__).resolve().parents[1]
COLUMNS = ("command", "ratio: median (min-max)", "seconds now", "seconds earlier")
# Name of the bar -> arguments of `snugbert`. Both versions know them.
COMMANDS = {
    "help": "--help",
    "pretrain mini, 100 steps": "pretrain --train_file {text} --tokenizer_name {model} --config_name mini "
    "--max_seq_length 64 --max_steps 100 --use_cpu true --cache_dir {folder}/cache --overwrite_output_dir true "
    "--output_dir {folder}/run",
    "glue, MRPC, one epoch": "glue --task_name mrpc --data_dir {glue} --model_name_or_path {model} "
    "--num_train_epochs 1 --use_cpu true --overwrite_output_dir true --output_dir {folder}/glue",
    "predict, 1,725 pairs": "predict --model_name_or_path {folder}/glue --input_file {glue}/MRPC/test_labelled.tsv "
    "--text_column_names '#1 String,#2 String' --use_cpu true --output_file {folder}/predictions.jsonl "
    "--overwrite_output_file true",
}


def measure(code: Path, arguments: list[str]) -> float:
    """Returns the seconds of a command with the code in a folder.

    Raises:
        SystemExit: the command failed.
    """
    # With the safe path, Python does not import the package in the current folder instead.
    environment = os.environ | {"PYTHONPATH": str(code), "PYTHONSAFEPATH": "1", "TRANSFORMERS_VERBOSITY": "error"}
    start = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-m", "snugbert", *arguments], env=environment, capture_output=True, text=True
    )
    if process.returncode != 0:
        raise SystemExit(f"error: {code}: snugbert {' '.join(arguments)}\n{process.stderr}")
    return time.perf_counter() - start


def compare(name: str, args: argparse.Namespace, root: Path) -> tuple[str, list[float]]:
    """Times a command with both versions. Returns the row of the table and the ratios. The first round is warmup."""
    seconds: dict[Path, list[float]] = {NOW: [], args.earlier: []}
    for number in range(args.rounds + 1):
        for code in [*seconds][:: 1 if number % 2 else -1]:
            folder = root / ("now" if code == NOW else "earlier")
            values = {"text": args.text, "model": args.model, "glue": args.glue_dir, "folder": folder}
            seconds[code].append(measure(code, shlex.split(COMMANDS[name].format(**values))))
    now, earlier = (each[1:] for each in seconds.values())
    ratios = [e / n for e, n in zip(earlier, now, strict=True)]
    cells = (name, format_median(ratios), f"{median(now):.1f}", f"{median(earlier):.1f}")
    return format_line(cells), ratios


def draw(results: dict[str, list[float]], earlier: str, file: Path) -> None:
    """Draws the median ratio of each command as a bar, and the range as a line."""
    figure = new_figure(8, 0.6 + 0.55 * len(results))
    axes = figure.add_subplot()
    middle = [median(ratios) for ratios in results.values()]
    below = [median(ratios) - min(ratios) for ratios in results.values()]
    above = [max(ratios) - median(ratios) for ratios in results.values()]
    axes.barh([*results], middle, xerr=[below, above], color="#2b6cb0", ecolor=GREY, height=0.6)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.invert_yaxis()
    axes.set_title(f"Speed relative to {earlier} (1: as fast)", **TITLE)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, file)


def main(argv: list[str]) -> None:
    """Prints the table, and draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", type=Path, required=True, help="checkout of the earlier commit")
    parser.add_argument("--model", type=Path, default=NOW / "models/mini-en", help="checkpoint to fine-tune")
    parser.add_argument("--glue_dir", type=Path, required=True, help="folder that contains MRPC/")
    parser.add_argument("--text", type=Path, required=True, help="text to pretrain on")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=[*COMMANDS])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--image", type=Path, required=True, help="PNG to write")
    args = parser.parse_args(argv)
    results: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as root:

        def measure_rows() -> Iterator[str]:
            for name in args.commands:
                row, results[name] = compare(name, args, Path(root))
                yield row

        print_table(__file__, argv, describe_machine(choose_device(use_cpu=True)), COLUMNS, measure_rows())
    draw(results, args.earlier.name, args.image)


if __name__ == "__main__":
    main(sys.argv[1:])
