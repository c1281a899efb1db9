r"""ELECTRA and masked language modeling on little text, at equal training FLOPs, compared by fine-tuning.

    snugbert vocabulary --train_file 'books/train-*.txt.gz' --vocab_size 8192 --output_dir tok
    python benchmarks/electra_comparison.py --train_file 'books/train-*.txt.gz' --tokenizer_name tok \
        --validation_file books/validation.txt.gz --data_dir data --seeds 1 2 3 --output_dir electra

Recipes (`RECIPES`):

- `mlm+nsp`: benchmarks/ladder/muon.yaml
- `electra`: examples/pretrain_electra_small_corpus.yaml

The recipe `mlm+nsp` trains for `--share` passes over the text. `electra` trains for as many steps as the same FLOPs
allow. The package's `training_log.py` counts the forward and backward passes, for ELECTRA of both models. It does not
count the optimizer and the initial weights of `--bigram_init`, which takes seconds.

Every pretrained model is then fine-tuned once per task, with the seed of its pretraining: batches of 32, 3 epochs
(SST-2: 1), dropout 0.1, and the commands' default learning rate for the model's size. Scores are on the dev sets.
Everything runs on the CPU, by default in float32.

Each pretraining and each fine-tuning is a step with its own folder, such as electra/mlm+nsp/1/sst2. When it is
finished, its result is in a JSON file next to the folder. The same command continues after an interruption: it skips
finished steps, and a pretraining resumes from its last checkpoint. `--only` selects steps, so that two processes can
share the work:

    python benchmarks/electra_comparison.py ... --threads 1 --only 'mlm+nsp/*' &
    python benchmarks/electra_comparison.py ... --threads 1 --only 'electra/*' &

`--report` prints the table of the finished steps. Compare hours only if nothing else ran on the machine.
"""

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean, median
from typing import Any

from ladder_measures import read_costs
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from steps import check_settings, format_table, run_snugbert

from snugbert.cli.model_arguments import ModelArguments
from snugbert.cli.parser import parse_arguments as parse_command
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_tokenizer
from snugbert.files import write_atomically
from snugbert.trainers.pretraining.batches import plan_phases
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.corpora import load_corpora
from snugbert.trainers.pretraining.electra import shrink_config
from snugbert.trainers.pretraining.examples import PretrainingDataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments
from snugbert.trainers.pretraining.training_log import training_flops
from snugbert.trainers.run.checkpoints import list_checkpoints

REPOSITORY = Path(__file__).parents[1]
REFERENCE = "mlm+nsp"  # the recipe that sets the FLOPs
RECIPES: dict[str, dict[str, Any]] = {
    REFERENCE: {"config": REPOSITORY / "benchmarks/ladder/muon.yaml"},
    "electra": {"config": REPOSITORY / "examples/pretrain_electra_small_corpus.yaml"},
}
PRETRAINING = "pretraining"  # name of this step
COUNTED_EXAMPLES = 2000  # for the FLOPs of an example
# Scores can be compared only if these arguments are equal.
SETTINGS = (
    "config_name",
    "share",
    "train_file",
    "validation_file",
    "tokenizer_name",
    "data_dir",
    "max_train_samples",
    "max_eval_samples",
    "bf16",
)


@dataclass(frozen=True)
class Task:
    """A column of the table.

    Attributes:
        title: name of the column.
        metric: the command's main metric, a share.
        command: `snugbert` command with its arguments; {} is the data folder.
    """

    title: str
    metric: str
    command: str


TASKS = {
    "sst2": Task("SST-2, accuracy", "accuracy", "glue --task_name sst2 --data_dir {}/glue --num_train_epochs 1"),
    "cola": Task("CoLA, Matthews", "matthews_correlation", "glue --task_name cola --data_dir {}/glue"),
    "mrpc": Task("MRPC, F1", "f1", "glue --task_name mrpc --data_dir {}/glue"),
    "rte": Task("RTE, accuracy", "accuracy", "glue --task_name rte --data_dir {}/glue"),
    "conll2003": Task(
        "CoNLL-2003, F1",
        "f1",
        "ner --train_file {}/conll2003/train.jsonl.gz --validation_file {}/conll2003/valid.jsonl.gz",
    ),
}
STEPS = (PRETRAINING, *TASKS)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="steps, such as 'electra/1/*'")
    parser.add_argument("--config_name", default="mini", help="model; default: mini")
    parser.add_argument("--share", type=float, default=1.0, help=f"passes of {REFERENCE} over the text; default: 1")
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", nargs="+", help="documents for the loss in the logs")
    parser.add_argument("--tokenizer_name", help="tokenizer folder")
    parser.add_argument("--data_dir", help="folder with glue/ and conll2003/")
    parser.add_argument("--max_train_samples", type=positive, help="fine-tune on the first examples only")
    parser.add_argument("--max_eval_samples", type=positive, help="score the first examples only")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the table of the finished steps")
    args = parser.parse_args(argv)
    missing = [
        f"--{name}"
        for name in ("train_file", "validation_file", "tokenizer_name", "data_dir")
        if not getattr(args, name)
    ]
    if missing and not args.report:
        parser.error(f"{', '.join(missing)} missing. Give them, or --report.")
    return args


# --- steps ------------------------------------------------------------------------------------------------------


def run_steps(args: argparse.Namespace) -> None:
    """Runs the selected steps that are not finished, seed by seed.

    Raises:
        InputError: an argument or a text cannot be used.
        SystemExit: a step failed or was stopped.
    """
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    for seed in args.seeds:
        for recipe in args.recipes:
            for step in STEPS:
                name = f"{recipe}/{seed}/{step}"
                if any(fnmatch(name, pattern) for pattern in args.only) and not result_file(name, args).exists():
                    run_step(name, args)


def result_file(name: str, args: argparse.Namespace) -> Path:
    """Returns the file with the result of a step. It exists once the step is finished."""
    return args.output_dir / f"{name}.json"


def run_step(name: str, args: argparse.Namespace) -> None:
    """Runs a step in a new process, whose output goes to `log.txt` in the step's folder."""
    recipe, seed, step = name.split("/")
    folder = args.output_dir / name
    command = pretraining_command(recipe, args) if step == PRETRAINING else fine_tuning_command(name, args)
    command += as_flags({"bf16": args.bf16, "use_cpu": True, "seed": seed, "output_dir": folder})
    start = time.monotonic()
    run_snugbert(command, folder / "log.txt")
    seconds = time.monotonic() - start
    result = read_costs(list_checkpoints(folder)[-1]) if step == PRETRAINING else {"seconds": seconds}
    if step != PRETRAINING:
        result |= read_score(folder, TASKS[step])
    machine = describe_machine("cpu") | ({"threads": args.threads} if args.threads else {})
    result |= {"command": command, "machine": machine}
    write_atomically(result_file(name, args), json.dumps(result))
    for checkpoint in list_checkpoints(folder):
        shutil.rmtree(checkpoint)
    print(f"{name}: finished after {seconds / 60:.1f} minutes", file=sys.stderr, flush=True)


def pretraining_command(recipe: str, args: argparse.Namespace) -> list[str]:
    """Builds the pretraining command of a recipe, without seed and output folder."""
    steps, flops = plan(recipe, args)
    if recipe != REFERENCE:
        steps = max(1, round(steps * plan(REFERENCE, args)[1] / flops))
    settings = {
        "max_steps": steps,
        "eval_strategy": "no",
        "max_eval_samples": 1000,
        "use_cpu": True,
        "save_steps": 500,
        "save_total_limit": 1,
    }
    flags = as_flags(recipe_settings(recipe, args) | settings)
    return ["pretrain", *flags, "--resume_from_checkpoint", "true"]


def recipe_settings(recipe: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns a recipe's arguments of `snugbert pretrain`, with the model and the text."""
    shared = ("config_name", "tokenizer_name", "train_file", "validation_file")
    return RECIPES[recipe] | {name: getattr(args, name) for name in shared}


def plan(recipe: str, args: argparse.Namespace) -> tuple[int, float]:
    """Returns the number of steps of `--share` passes over the text with a recipe, and their FLOPs."""
    model_args, data_args, training_args = parse_command(
        (ModelArguments, PretrainingDataArguments, PretrainingArguments),
        as_flags(recipe_settings(recipe, args) | {"num_train_epochs": args.share, "use_cpu": True}),
        "snugbert pretrain",
        "",
    )
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    is_electra = data_args.objective == "electra"
    generator = shrink_config(config, data_args.generator_size) if is_electra else None
    corpus, _ = load_corpora(
        data_args, do_train=True, do_eval=False, cache_dir=model_args.cache_dir, tokenizer=tokenizer
    )
    datasets = [
        PretrainingDataset(corpus, tokenizer, length, objective, data_args.short_seq_prob)
        for length, _, objective in data_args.parsed_phases
    ]
    phases = plan_phases(datasets, [phase.share for phase in data_args.parsed_phases], training_args)
    collate = SnugBertDataCollatorForPretraining(tokenizer, data_args.mlm_probability)
    flops = 0.0
    for phase, dataset in zip(phases, datasets, strict=True):
        examples = [dataset[index] for index in range(min(len(dataset), COUNTED_EXAMPLES))]
        flops_per_example = training_flops(config, collate(examples), generator).item() / len(examples)
        flops += phase.steps * phase.batch_size * flops_per_example
    return sum(phase.steps for phase in phases), flops


def fine_tuning_command(name: str, args: argparse.Namespace) -> list[str]:
    """Builds the command of a fine-tuning step, without seed and output folder."""
    recipe, seed, task = name.split("/")
    pretraining = f"{recipe}/{seed}/{PRETRAINING}"
    if not result_file(pretraining, args).exists():
        raise SystemExit(f"error: {name}: the step {pretraining} is not finished. Run it first.")
    settings = {
        "model_name_or_path": args.output_dir / pretraining,
        # The pretraining recipes have no dropout, because they see each text about once.
        "config_overrides": "hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1",
        "save_strategy": "no",
        "overwrite_output_dir": True,
        **{each: getattr(args, each) for each in ("max_train_samples", "max_eval_samples") if getattr(args, each)},
    }
    return [*(part.replace("{}", args.data_dir) for part in TASKS[task].command.split()), *as_flags(settings)]


def read_score(folder: Path, task: Task) -> dict[str, float]:
    """Reads the score of a fine-tuning, in percent, and the command's baseline."""
    results = json.loads((folder / "results.json").read_text())
    return {
        "score": 100 * results["metrics"]["eval"][task.metric],
        "baseline": 100 * results["baselines"]["eval"][task.metric],
    }


# --- report -----------------------------------------------------------------------------------------------------


def report(output_dir: Path) -> str:
    """Makes the table of the finished steps.

    Raises:
        SystemExit: no pretraining is finished.
    """
    results = {
        recipe: {step: read_results(output_dir / recipe, step) for step in STEPS}
        for recipe in RECIPES
        if any((output_dir / recipe).glob(f"*/{PRETRAINING}.json"))
    }
    if not results:
        raise SystemExit(f"error: --report: {output_dir} has no finished pretraining.")
    machines = [
        ", ".join(f"{name} {value}" for name, value in result["machine"].items())
        for steps in results.values()
        for result in steps[PRETRAINING].values()
    ]
    titles = [task.title for task in TASKS.values()]
    header = ["recipe", "seeds", "million tokens", "PFLOPs", "hours", *titles, "mean of the tasks"]
    lines = [header, *(make_row(recipe, steps) for recipe, steps in results.items())]
    baselines = [
        [result["baseline"] for steps in results.values() for result in steps[task].values()] for task in TASKS
    ]
    lines.append(["baseline", *[""] * 4, *(f"{values[0]:.1f}" if values else "" for values in baselines), ""])
    return "\n".join(
        [
            *dict.fromkeys(machines),
            "",
            format_table(lines),
            "",
            "Scores: median (smallest to largest) of the seeds, in percent. Tokens, FLOPs and hours are for "
            "pretraining, means over the seeds. The baseline always gives the most frequent answer (CoNLL-2003: each "
            "word's most frequent tag).",
            "",
        ]
    )


def read_results(folder: Path, step: str) -> dict[str, dict[str, Any]]:
    """Reads the results of a step of a recipe, by seed."""
    return {file.parent.name: json.loads(file.read_text()) for file in sorted(folder.glob(f"*/{step}.json"))}


def make_row(recipe: str, steps: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """Formats the row of a recipe from its results by step and seed."""
    costs = steps[PRETRAINING].values()
    scores = {task: {seed: result["score"] for seed, result in steps[task].items()} for task in TASKS}
    complete = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    means = [mean(by_seed[seed] for by_seed in scores.values()) for seed in complete]
    return [
        recipe,
        str(len(costs)),
        *(
            format(mean(cost[name] for cost in costs) / unit, ".3g")
            for name, unit in (("tokens", 1e6), ("flops", 1e15), ("seconds", 3600))
        ),
        *(format_scores(list(by_seed.values())) for by_seed in scores.values()),
        format_scores(means),
    ]


def format_scores(scores: list[float]) -> str:
    """Formats median, smallest and largest score. Empty if there are none."""
    return f"{median(scores):.1f} ({min(scores):.1f}-{max(scores):.1f})" if scores else ""


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    if not args.report:
        try:
            check_settings(args.output_dir, {name: getattr(args, name) for name in SETTINGS})
            run_steps(args)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
