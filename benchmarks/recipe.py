"""The pieces of `benchmarks/gpu.sh recipe`: trains an encoder on ten million words, scores it, and fine-tunes it.

    python benchmarks/recipe.py training --output_dir gpu-results

Pieces:

- `training` measures the speed in a short run of the same command. It then trains for as many steps as the time
  allows, so that the learning rate ends at zero, and writes the weights in bfloat16 as `weights.tar.*`.
- `scores`: masked token loss on held-out text, the same for stock BERT with the same weights, and BLiMP.
- `finetuning`: CoNLL-2003, CoLA, MRPC, RTE and SST-2, then more seeds of the small ones.

Rows of all pieces are in `<output_dir>/rows.jsonl`, see `gpu_rows.py`. Runs are in `--work_dir`. All commands of a
piece run in its process, because a process takes 20 seconds to start.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import transformers
import yaml
from gpu_recipe import METRICS, RECIPE, ROWS, add_shared_arguments
from gpu_rows import Rows, measure_rows, parse_piece
from gpu_table import read_rows
from safetensors.torch import load_file, save_file
from side_by_side import describe_machine
from transformers import BertForMaskedLM

from snugbert.cli.main import run_command
from snugbert.cli.model_arguments import ModelArguments
from snugbert.errors import RunStopped
from snugbert.evaluation.evaluation_arguments import HeldOutTextArguments
from snugbert.evaluation.held_out_text import score_text
from snugbert.evaluation.masked_models import load_masked_model
from snugbert.evaluation.minimal_pairs import read_pairs, score_pairs
from snugbert.trainers.run.checkpoints import list_checkpoints
from snugbert.trainers.run.log import set_up_logging

SPEED_STEPS = 600  # 11 s on an H100. The shortest phase has 120, of which the last half counts
LOG_LINES = 100  # of a run
SECONDS_PER_STEP = 0.03  # if the speed could not be measured: a step that starts its kernels one by one
# What the short run does not have: 40 CUDA graphs of 0.1 to 0.2 s, and the examples of later passes (0.2 to 0.9 s on a
# core).
SECONDS_OF_GRAPHS, SECONDS_PER_PASS = 10, 1
STOPPING = 20  # seconds to write a checkpoint and the weights
# `snugbert` commands with their arguments ({} is the data folder), and their main metrics, which are shares.
TASKS = {
    "conll2003": ("ner --train_file {}/conll2003/train.jsonl.gz --validation_file {}/conll2003/valid.jsonl.gz", "f1"),
    "cola": ("glue --task_name cola --data_dir {}/glue", "matthews_correlation"),
    "mrpc": ("glue --task_name mrpc --data_dir {}/glue", "f1"),
    "rte": ("glue --task_name rte --data_dir {}/glue", "accuracy"),
    "sst2": ("glue --task_name sst2 --data_dir {}/glue --num_train_epochs 1", "accuracy"),
}
# Estimated seconds of a fine-tuning: 10 ms for each step, and 5 s for everything else.
EXPECTED = {"conll2003": 19, "cola": 13, "mrpc": 9, "rte": 8, "sst2": 26}
SEEDS = {"cola": 3, "mrpc": 3, "rte": 3}  # otherwise 1
PART_BYTES, MOST_PARTS = 15 * 2**20, 4
WEIGHTS = "model.safetensors"
SMALL = 2**20  # bytes of a file that travels with the weights: settings, tokenizer, log, card and plot


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shared_arguments(parser)
    return parse_piece(parser, PIECES, argv)


# --- training -----------------------------------------------------------------------------------------------------


def training_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `training`."""
    yield "speed", partial(measure_speed, args)
    yield "training", partial(train, args)
    yield "weights", partial(pack_weights, args)


def make_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `snugbert pretrain`: the recipe, changed by `--set`, not evaluated."""
    settings = yaml.safe_load(RECIPE.read_text())
    for name in ("train_file", "validation_file", "max_eval_samples"):
        del settings[name]
    settings |= {"corpus": args.data_dir / "corpus", "tokenizer_name": args.data_dir / "tokenizer"}
    settings |= {"eval_strategy": "no", "save_only_model": True, "overwrite_output_dir": True, "seed": args.seed}
    if args.rehearse:
        settings |= {"config_name": "tiny", "per_device_train_batch_size": 8, "dataloader_num_workers": 0}
        settings |= {"config_overrides": "hidden_dropout_prob=0", "bf16": False, "use_cpu": True}
    return settings | dict(pair.split("=", 1) for pair in args.set)


def measure_speed(args: argparse.Namespace) -> dict[str, Any]:
    """Trains for a few steps of each phase, with the shares of the recipe.

    The share of masked tokens stays at its first value, because each new one needs CUDA graphs.

    Returns:
        `seconds_per_step` of each phase; `overhead`, the seconds of everything else, such as compiling and the initial
        weights; `passes_per_step` over the text.
    """
    settings, folder = make_settings(args), args.work_dir / "speed"
    steps = args.rehearse or SPEED_STEPS
    settings |= {"max_steps": steps, "logging_steps": max(1, steps // LOG_LINES), "save_strategy": "no"}
    settings |= {"mlm_probability": str(settings["mlm_probability"]).partition(":")[0], "output_dir": folder}
    start = time.monotonic()
    run_command("pretrain", as_flags(settings))
    seconds = time.monotonic() - start
    lines = read_log(folder)
    measured = average_seconds(lines, [round(share * steps) for share in read_shares(settings)])
    training = steps * sum(share * each for share, each in zip(read_shares(settings), measured, strict=True))
    return {
        "seconds_per_step": measured,
        "overhead": max(0.0, seconds - training),
        "passes_per_step": lines[-1]["epoch"] / steps,
    }


def read_shares(settings: dict[str, Any]) -> list[float]:
    """Returns each phase's share of the steps."""
    return [float(share) / 100 for share in re.findall(r":\s*([\d.]+)\s*%", settings["phases"])]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Reads the log lines of training steps."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "tokens_per_second" in line]


def average_seconds(lines: Sequence[dict[str, Any]], steps: Sequence[int]) -> list[float]:
    """Returns the seconds of a step in each phase, from the second half of its steps. 0 if it has no log lines.

    Args:
        lines: the log lines of training steps.
        steps: steps of each phase.
    """
    found = []
    for start, end in pairwise([0, *accumulate(steps)]):
        middle, seconds, count = (start + end) / 2, 0.0, 0
        for before, line in pairwise([{"step": 0, "tokens": 0}, *lines]):
            if middle <= before["step"] and line["step"] <= end:
                seconds += (line["tokens"] - before["tokens"]) / line["tokens_per_second"]
                count += line["step"] - before["step"]
        found.append(seconds / max(count, 1))
    return found


def choose_steps(speed: dict[str, Any], shares: Sequence[float], passes: float, seconds: float) -> int:
    """Chooses the number of steps: some passes over the text, or fewer if the time is too short.

    Args:
        speed: the result of [`measure_speed`].
        shares: each phase's share of the steps.
        passes: most passes over the text.
        seconds: time of the whole run.
    """
    step = sum(share * each for share, each in zip(shares, speed["seconds_per_step"], strict=True))
    step += SECONDS_PER_PASS * speed["passes_per_step"]
    left = seconds - speed["overhead"] - SECONDS_OF_GRAPHS
    return max(1, int(min(left / step, passes / speed["passes_per_step"])))


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Formats arguments. True is a flag without a value, and false is left out."""
    flags = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [] if str(value).lower() == "true" else [value]
        flags += [] if str(value).lower() == "false" else [f"--{name}", *map(str, values)]
    return flags


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Trains for as many steps as fit. If it is too slow after all, it is stopped and leaves a checkpoint.

    Returns:
        Settings, steps, passes (`epoch`), tokens, the seconds of everything, the seconds of a step in the second half
        of the run, the loss and tokens per second of each log line (`curve`), and the last metrics.
    """
    settings, folder = make_settings(args), args.work_dir / "pretrained"
    shares, start = read_shares(settings), time.monotonic()
    left = args.deadline - STOPPING - start
    speed = read_rows(args.output_dir / ROWS).get("speed", {})
    if "seconds_per_step" not in speed:
        speed = {"seconds_per_step": [SECONDS_PER_STEP] * len(shares), "overhead": 90, "passes_per_step": 1 / 728}
    planned = choose_steps(speed, shares, float(settings["num_train_epochs"]), left)
    planned = min(planned, args.rehearse or planned)
    interval = max(1, planned // LOG_LINES)
    steps = planned - planned % interval  # so that the last step has a log line
    settings |= {"max_steps": steps, "save_steps": 0.25, "logging_steps": interval, "output_dir": folder}
    shutil.rmtree(folder, ignore_errors=True)
    stop = threading.Timer(min(left, threading.TIMEOUT_MAX), os.kill, (os.getpid(), signal.SIGTERM))
    stop.start()
    try:
        run_command("pretrain", as_flags(settings))
    except RunStopped:  # its last checkpoint is the result
        pass
    finally:
        stop.cancel()
    lines = read_log(folder)
    last = lines[-1]
    return {
        "settings": {name: str(value) for name, value in settings.items()},
        "changes": args.set,
        "planned_steps": steps,
        **{name: last[name] for name in ("step", "epoch", "tokens")},
        "seconds": time.monotonic() - start,
        "seconds_per_step": average_seconds(lines, [last["step"]])[0],
        "curve": [[line["step"], round(line["mlm_loss"], 4), line["tokens_per_second"]] for line in lines],
        **{name: last[name] for name in METRICS if name in last},
    }


def find_model(args: argparse.Namespace) -> Path:
    """Returns the folder of the trained model: of the whole run, or its newest checkpoint.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = args.work_dir / "pretrained"
    folders = [*list_checkpoints(folder), folder] if folder.exists() else []
    folders = [each for each in folders if (each / WEIGHTS).exists()]
    if not folders:
        raise FileNotFoundError(f"no trained model in {folder}. Run the piece training.")
    return folders[-1]


def pack_weights(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the model in bfloat16, and the small files of its folder, as parts of a tar file.

    `cat weights.tar.* | tar x` makes the folder `model`, which `AutoModel.from_pretrained` loads.

    Raises:
        ValueError: it needs too many parts.
    """
    source, folder = find_model(args), args.work_dir / "model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in (*(args.work_dir / "pretrained").iterdir(), *source.iterdir()):
        if file.is_file() and file.stat().st_size < SMALL:
            shutil.copy2(file, folder)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(source / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    archive = args.work_dir / "weights.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, "model")
    size = archive.stat().st_size
    if size > MOST_PARTS * PART_BYTES:
        raise ValueError(f"{size:,} bytes do not fit into {MOST_PARTS} parts. They are in {archive}.")
    with archive.open("rb") as file:
        parts = list(iter(partial(file.read, PART_BYTES), b""))
    for number, part in enumerate(parts):
        (args.output_dir / f"weights.tar.{number}").write_bytes(part)
    return {"bytes": size, "parts": len(parts), "source": source.name}


# --- scores -------------------------------------------------------------------------------------------------------


def score_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `scores`."""
    yield "held-out text, SnugBERT", partial(score_held_out_text, args, stock=False)
    yield "held-out text, stock BERT", partial(score_held_out_text, args, stock=True)
    yield "BLiMP", partial(score_blimp, args)


def score_held_out_text(args: argparse.Namespace, stock: bool) -> dict[str, Any]:
    """Scores the model, or transformers' BERT with the files of the model, on the same examples and masks.

    Raises:
        ValueError: `stock`, and the model is no BERT.
    """
    folder = find_model(args)
    model, tokenizer = load_masked_model(ModelArguments(model_name_or_path=str(folder)))
    if stock:
        if model.config.position_embedding_type == "relative":
            raise ValueError("a model with relative positions is no BERT")
        model = BertForMaskedLM.from_pretrained(folder).to(model.device)
    text = HeldOutTextArguments(
        validation_file=[str(args.data_dir / "books_en/validation.txt.gz")],
        no_nsp=True,
        max_eval_samples=args.rehearse or None,
    )
    return score_text(model, tokenizer, text, cache_dir=str(args.work_dir / "cache"))


def score_blimp(args: argparse.Namespace) -> dict[str, Any]:
    """Scores the pairs of BLiMP, as `snugbert evaluate` does."""
    model, tokenizer = load_masked_model(ModelArguments(model_name_or_path=str(find_model(args))))
    files = sorted((args.data_dir / "blimp").glob("*.jsonl.gz"))
    pairs = read_pairs(files, "sentence_good", "sentence_bad")
    return score_pairs(model, tokenizer, pairs[:: 1000 if args.rehearse else 1])


# --- fine-tuning --------------------------------------------------------------------------------------------------


def fine_tuning_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `finetuning`: the first seed of all tasks, then the others."""
    for seed in range(1, 1 + max(SEEDS.values())):
        for task in EXPECTED:
            if seed <= SEEDS.get(task, 1):
                yield f"{task}, seed {seed}", partial(fine_tune, task, seed, args)


def fine_tune(task: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tunes on a task, and returns its score and the score of the most frequent answer, in percent.

    The learning rate is the default of the command.

    Raises:
        TimeoutError: it would probably not finish before the deadline.
    """
    left = args.deadline - time.monotonic()
    if left < EXPECTED[task]:
        raise TimeoutError(f"it needs about {EXPECTED[task]} s, and {left:.0f} s are left")
    command, metric = TASKS[task]
    name, *flags = (part.replace("{}", str(args.data_dir)) for part in command.split())
    folder = args.work_dir / f"{task}-{seed}"
    settings = {
        "model_name_or_path": find_model(args),
        "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
        "seed": seed,
        "save_strategy": "no",
        "output_dir": folder,
        "overwrite_output_dir": True,
    }
    if args.rehearse:
        settings |= {"use_cpu": True, "max_train_samples": 64, "max_eval_samples": 64}
    run_command(name, [*flags, *as_flags(settings)])
    results = json.loads((folder / "results.json").read_text())
    score, baseline = (100 * results[group]["eval"][metric] for group in ("metrics", "baselines"))
    return {"task": task, "seed": seed, "score": score, "baseline": baseline}


# --- running a piece ----------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "training": training_rows,
    "scores": score_rows,
    "finetuning": fine_tuning_rows,
}


def main(argv: list[str]) -> None:
    """Runs a piece."""
    args = parse_arguments(argv)
    set_up_logging()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    rows = [("device", lambda: {"machine": describe_machine(args.device)}), *PIECES[args.piece](args)]
    measure_rows(args.piece, rows, args.output_dir / ROWS, args.deadline)


if __name__ == "__main__":
    main(sys.argv[1:])
