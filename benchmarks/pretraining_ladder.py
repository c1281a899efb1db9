r"""A ladder of pretraining recipes: loss and BLiMP against tokens, FLOPs and core hours, for several seeds.

    python benchmarks/pretraining_ladder.py --recipe benchmarks/ladder/blimp.yaml benchmarks/ladder/blimp-words.yaml \
        --seeds 1 2 3 --train_file 'books/train-*.txt.gz' --validation_file books/validation.txt.gz \
        --tokenizer_name tok --passes 3 --pairs_file 'blimp/*.jsonl.gz' --bf16 --output_dir ladder

A recipe is a YAML file with arguments of `snugbert pretrain`. Its first line is a comment: what changes, and why. It
may name its own `config_name`, `config_overrides` and `tokenizer_name`. `pretraining_run.py` compares with stock BERT.

Each run is a new process. All runs train on the same number of tokens, or with `--passes` for the same number of
passes over the text. Five checkpoints of a run are then evaluated, for all recipes with the same tokenizer on the same
examples and masks: full sentences with 15 % of the tokens masked. If tokenizers differ, recipes are compared in bits
per character. The last checkpoint is also evaluated on sentence pairs if the recipe has them, and with `--pairs_file`
on minimal pairs, as `snugbert evaluate` does.

The same command continues after an interruption. Finished runs are kept in `ladder.jsonl`. Others resume from their
last checkpoint, and SIGTERM and Ctrl-C save one.

FLOPs are the FLOPs that the recipe needs (`training_log.py`). Core hours are the CPU time of the process that trains,
from start to end. Minutes are training time, without evaluation and saving. Compare them only if nothing else ran on
the machine.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import transformers
import yaml
from ladder_measures import measure
from ladder_report import RUNS_NAME, get_row, read_runs, report
from reporting import check_settings
from side_by_side import choose_device, describe_machine, positive
from transformers import PreTrainedTokenizerBase

from snugbert.cli.model_arguments import ModelArguments
from snugbert.cli.parser import parse_arguments as parse_command
from snugbert.data.corpus.corpus import Corpus
from snugbert.errors import InputError
from snugbert.families.loading import load_tokenizer
from snugbert.files import step_of
from snugbert.trainers.pretraining.batches import plan_phases
from snugbert.trainers.pretraining.corpora import load_corpora
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import (
    PretrainingArguments,
    PretrainingDataArguments,
)
from snugbert.trainers.run.checkpoints import list_checkpoints

POINTS = 5  # evaluated checkpoints per run
LOG_LINES = 100  # per run
COUNTED_EXAMPLES = 2000  # for the mean number of tokens per example
CORE_SECONDS_NAME = "core_seconds.txt"  # in the folder of a run: a line for each process
# Scores and costs can be compared only if these arguments are equal.
MEASURE = (
    "train_file",
    "validation_file",
    "tokenizer_name",
    "max_tokens",
    "passes",
    "max_seq_length",
    "max_eval_samples",
    "pairs_file",
    "pairs_per_file",
    "bf16",
)


@dataclass(frozen=True)
class Recipe:
    """A recipe, and what it trains.

    Attributes:
        file: the YAML file.
        settings: its arguments, as written.
        about: its first line, a comment.
        model: `--config_name` of `snugbert pretrain`.
    """

    file: Path
    settings: dict[str, Any]
    about: str
    model: str

    @property
    def name(self) -> str:
        """Name of its rows and folders."""
        return self.file.stem


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", nargs="+", type=Path, required=True, help="YAML files, run one after the other")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--config_name", help="model; default: the recipe's, otherwise mini")
    parser.add_argument("--train_file", nargs="+", required=True, help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", nargs="+", required=True, help="documents for evaluation")
    parser.add_argument("--tokenizer_name", required=True, help="tokenizer folder, for recipes that name none")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--max_tokens", type=float, help="tokens of each run")
    length.add_argument("--passes", type=float, help="passes of each run over the text, also with other tokenizers")
    parser.add_argument("--max_seq_length", type=positive, default=64, help="of validation examples; default: 64")
    parser.add_argument("--max_eval_samples", type=positive, default=2000, help="validation examples; default: 2000")
    parser.add_argument("--pairs_file", nargs="+", help="minimal pairs to score: files with BLiMP's columns")
    parser.add_argument("--pairs_per_file", type=positive, help="evenly spread over each file; default: all")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="train and score pairs in bfloat16")
    parser.add_argument("--output_dir", type=Path, required=True)
    return parser.parse_args(argv)


# --- a recipe ---------------------------------------------------------------------------------------------------


def run_recipe(file: Path, args: argparse.Namespace, argv: list[str]) -> None:
    """Trains and measures a recipe with every seed that is not finished yet.

    Raises:
        InputError: an argument, the recipe or a text cannot be used.
        SystemExit: a run failed or was stopped, or the recipe has changed.
    """
    recipe = read_recipe(file, args)
    finished = [run for run in read_runs(args.output_dir) if get_row(run) == (recipe.name, recipe.model)]
    if any(run["settings"] != recipe.settings for run in finished):
        raise InputError(f"{file}: {args.output_dir} has runs of this recipe with other settings. Rename the recipe.")
    seeds = [seed for seed in dict.fromkeys(args.seeds) if seed not in {run["seed"] for run in finished}]
    if not seeds:
        return
    steps, has_pairs = plan_runs(recipe, args)
    for seed in seeds:
        title = f"{recipe.name}, {recipe.model}, seed {seed}"
        output_dir = args.output_dir / recipe.name / Path(recipe.model).stem / str(seed)  # the model may be a file
        train(recipe, title, output_dir, steps, seed, args)
        run = {"recipe": recipe.name, "model": recipe.model, "seed": seed, "about": recipe.about}
        run |= measure(find_checkpoints(output_dir, steps), has_pairs, args)
        core_seconds = (output_dir / CORE_SECONDS_NAME).read_text().split()
        run["core_hours"] = sum(map(float, core_seconds)) / 3600
        run |= {"settings": recipe.settings, "command": shlex.join(argv)}
        run["machine"] = describe_machine(choose_device(args.use_cpu))
        with (args.output_dir / RUNS_NAME).open("a") as runs:
            runs.write(json.dumps(run) + "\n")
        for checkpoint in list_checkpoints(output_dir)[:-1]:
            shutil.rmtree(checkpoint)
        scores = f"masked token loss {run['mlm_loss']:.3f}"
        if pairs := run.get("minimal_pairs"):
            scores += f", BLiMP {pairs['accuracy']['original']:.1%}"
        print(f"{title}: {scores}", file=sys.stderr, flush=True)


def read_recipe(file: Path, args: argparse.Namespace) -> Recipe:
    """Reads a recipe. `--config_name` replaces its model."""
    text = file.read_text(encoding="utf-8")
    settings = yaml.load(text, yaml.BaseLoader)  # keeps values as written: `no` is not False
    about = text.partition("\n")[0]
    if not isinstance(settings, dict) or not about.startswith("# "):
        raise InputError(f"--recipe: {file} must contain `name: value` lines, after a line `# what and why`.")
    model = args.config_name or settings.get("config_name", "mini")
    return Recipe(file, settings, about.removeprefix("# "), model)


def plan_runs(recipe: Recipe, args: argparse.Namespace) -> tuple[int, bool]:
    """Prepares the text. Returns the number of steps, and whether the recipe trains on sentence pairs."""
    model_args, data_args, training_args = parse_command(
        (ModelArguments, PretrainingDataArguments, PretrainingArguments),
        make_flags(recipe, args.output_dir, 1000, 0, args),
        "snugbert pretrain",
        "",
    )
    tokenizer = load_tokenizer(model_args)
    corpus, _ = load_corpora(
        data_args, do_train=True, do_eval=True, cache_dir=model_args.cache_dir, tokenizer=tokenizer
    )
    assert corpus is not None  # it is given
    return count_steps(corpus, tokenizer, data_args, training_args, args), data_args.objective != "mlm"


def count_steps(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    data_args: PretrainingDataArguments,
    training_args: PretrainingArguments,
    args: argparse.Namespace,
) -> int:
    """Computes the number of steps for `--max_tokens`, without padding, or for `--passes`."""
    datasets = [
        PretrainingDataset(corpus, tokenizer, length, objective, data_args.short_seq_prob)
        for length, _, objective in data_args.parsed_phases
    ]
    phases = plan_phases(datasets, [phase.share for phase in data_args.parsed_phases], training_args)
    amount = 0.0  # tokens or passes in `training_args.max_steps`
    for phase, dataset in zip(phases, datasets, strict=True):
        counted = range(min(len(dataset), COUNTED_EXAMPLES))
        tokens = mean(len(dataset[index]["input_ids"]) for index in counted)
        amount += phase.steps * phase.batch_size * (1 / len(dataset) if args.passes else tokens)
    return max(1, round((args.passes or args.max_tokens) / amount * training_args.max_steps))


# --- training ---------------------------------------------------------------------------------------------------


def make_flags(recipe: Recipe, output_dir: Path, steps: int, seed: int, args: argparse.Namespace) -> list[str]:
    """The arguments of `snugbert pretrain`. Its own evaluation has a single example."""
    settings = {
        "config_name": recipe.model,
        "tokenizer_name": recipe.settings.get("tokenizer_name", args.tokenizer_name),
        "train_file": args.train_file,
        "validation_file": args.validation_file,
        "output_dir": output_dir,
        "max_steps": steps,
        "save_strategy": "steps",
        "save_steps": steps_per_point(steps),
        "save_total_limit": 0,
        "eval_strategy": "no",
        "max_eval_samples": 1,
        "logging_steps": steps_per_line(steps),
        "seed": seed,
        "use_cpu": args.use_cpu,
        "bf16": args.bf16,
    }
    return ["--config", str(recipe.file), *as_flags(settings), "--resume_from_checkpoint", "true"]


def steps_per_line(steps: int) -> int:
    """Returns the number of steps from one log line to the next."""
    return math.ceil(steps / LOG_LINES)


def steps_per_point(steps: int) -> int:
    """Returns the number of steps from one evaluated checkpoint to the next.

    Checkpoints are saved at log lines, because the clock of the log stands still between a line and the next step.
    """
    return math.ceil(steps / POINTS / steps_per_line(steps)) * steps_per_line(steps)


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Formats arguments. True is a flag without a value, and false is left out."""
    flags = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [] if str(value).lower() == "true" else [value]
        flags += [] if str(value).lower() == "false" else [f"--{name}", *map(str, values)]
    return flags


def train(recipe: Recipe, title: str, output_dir: Path, steps: int, seed: int, args: argparse.Namespace) -> None:
    """Trains in a new process. Its output goes to `log.txt` in the output folder, and its CPU time is recorded.

    Raises:
        SystemExit: the run failed or was stopped. The message begins with `title`.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "snugbert", "pretrain", *make_flags(recipe, output_dir, steps, seed, args)]
    log, before = output_dir / "log.txt", count_core_seconds()
    status = run_process(command, log)
    with (output_dir / CORE_SECONDS_NAME).open("a") as file:
        file.write(f"{count_core_seconds() - before:.2f}\n")
    if status in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        print(f"{title}: stopped. Run the same command again to continue.", file=sys.stderr)
        raise SystemExit(status)
    if status:
        raise SystemExit(f"error: {title}: the run failed. See {log}.")


def count_core_seconds() -> float:
    """Returns the CPU time of all ended child processes, of the user and of the system."""
    times = os.times()
    return times.children_user + times.children_system


def run_process(command: list[str], log: Path) -> int:
    """Runs a command until it ends, also after Ctrl-C, which it receives too. Passes SIGTERM on.

    Returns:
        The exit status, as a shell reports it: 128 + signal for a process that a signal ended.
    """
    with log.open("a") as stream, subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT) as process:
        handlers = {signal.SIGTERM: lambda *_: process.terminate(), signal.SIGINT: lambda *_: None}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def find_checkpoints(output_dir: Path, steps: int) -> list[Path]:
    """Lists the checkpoints to evaluate, ordered by step. A stopped run has others, too."""
    every = steps_per_point(steps)
    return [path for path in list_checkpoints(output_dir) if step_of(path) % every == 0 or step_of(path) == steps]


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    transformers.logging.disable_progress_bar()  # of loading checkpoints
    try:
        check_settings(args.output_dir, {name: getattr(args, name) for name in MEASURE})
        for file in args.recipe:
            run_recipe(file, args, argv)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir))


if __name__ == "__main__":
    main(sys.argv[1:])
