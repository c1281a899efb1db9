r"""A masked language model with half of its layers, trained with and without its teacher.

    python benchmarks/distill_masked_model.py --teacher mini --train_file 'books/train-*.txt.gz' \
        --validation_file books/validation.txt.gz --max_steps 1000 --seeds 1 2 3 --output_dir distillation

`start` has evenly spaced layers of the teacher, with its embeddings and heads. All recipes (`RECIPES`) continue with
these weights, on the same text and in the same order:

- `mlm`: masked tokens and next sentences, without the teacher
- `distilled`: DistilBERT's losses in addition
- `mlm-equal-flops`: `mlm` with more steps, so that it takes as many FLOPs as `distilled`

The settings come from benchmarks/ladder/muon.yaml and were tuned without a teacher. Only the initial weights differ.
Everything runs on the CPU, by default in float32.

With `--tasks`, the teacher, `start` and every student are then fine-tuned with each seed: batches of 32, 3 epochs
(SST-2: 1), dropout 0.1, and the commands' default learning rate for the model's size.

Each training is a step with its own folder, such as distillation/distilled/1/pretraining. When it is finished, its
result is in a JSON file next to the folder. The same command continues after an interruption. `--only` selects steps,
so that two processes can share the work. `--report` prints the table of the finished steps. Compare hours only if
nothing else ran on the machine.
"""

import argparse
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean
from typing import Any

from electra_comparison import TASKS, read_score
from ladder_measures import read_costs
from pretraining_ladder import as_flags
from side_by_side import describe_machine, positive
from steps import check_settings, format_seeds, format_table, run_snugbert
from transformers import AutoModelForPreTraining

from snugbert.cli.model_arguments import ModelArguments
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.families.students import choose_student_layers, make_student
from snugbert.files import write_atomically
from snugbert.trainers.run.checkpoints import list_checkpoints

RECIPES = ("mlm", "distilled", "mlm-equal-flops")
NOT_TRAINED = ("teacher", "start")
PRETRAINING = "pretraining"  # name of the step; for models that are not trained, only the evaluation
# As in benchmarks/ladder/muon.yaml, except for the initial weights.
SETTINGS = {
    "phases": "64:90%,128:10%",
    "max_seq_length": 128,
    "mlm_probability": 0.3,
    "per_device_train_batch_size": 64,
    "per_device_eval_batch_size": 64,
    "optim": "muon",
    "learning_rate": 4e-3,
    "warmup_steps": 0.05,
    "adam_beta2": 0.98,
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "use_cpu": True,
}
# Results can be compared only if these arguments are equal.
COMPARED = ("teacher", "max_steps", "learning_rate", "train_file", "validation_file", "max_eval_samples", "bf16")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", help="pretrained masked language model with its tokenizer")
    parser.add_argument("--max_steps", type=positive, default=1000, help="steps of mlm and distilled; default: 1000")
    parser.add_argument("--learning_rate", type=float, default=SETTINGS["learning_rate"], help="default: 4e-3")
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="steps, such as 'distilled/1/*'")
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", nargs="+", help="documents for the scores")
    parser.add_argument("--max_eval_samples", type=positive, default=2000, help="validation examples; default: 2000")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[], help="fine-tune on these; default: none")
    parser.add_argument("--data_dir", help="folder with glue/ and conll2003/, for --tasks")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the table of the finished steps")
    args = parser.parse_args(argv)
    needed = ("teacher", "train_file", "validation_file", *(["data_dir"] if args.tasks else []))
    missing = [f"--{name}" for name in needed if not getattr(args, name)]
    if missing and not args.report:
        parser.error(f"{', '.join(missing)} missing. Give them, or --report.")
    return args


# --- steps ------------------------------------------------------------------------------------------------------


def run_steps(args: argparse.Namespace) -> None:
    """Runs the selected steps that are not finished, seed by seed.

    Raises:
        InputError: the teacher cannot be used.
        SystemExit: a step failed or was stopped.
    """
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    write_start(args)
    for seed in args.seeds:
        for recipe in (*NOT_TRAINED, *RECIPES):
            for step in (PRETRAINING, *args.tasks):
                # Without training, the seed makes no difference to the evaluation.
                place = "once" if recipe in NOT_TRAINED and step == PRETRAINING else seed
                name = f"{recipe}/{place}/{step}"
                if any(fnmatch(name, pattern) for pattern in args.only) and not result_file(name, args).exists():
                    run_step(name, args)


def write_start(args: argparse.Namespace) -> None:
    """Writes the model that all recipes start from: half of the teacher's layers, evenly spaced."""
    folder = args.output_dir / "start/model"
    if folder.exists():
        return
    model_args = ModelArguments(model_name_or_path=args.teacher)
    tokenizer = load_tokenizer(model_args)
    config = load_config(model_args, tokenizer)
    teacher = load_model(AutoModelForPreTraining, model_args, config, trained=True)
    layers = choose_student_layers(config.num_hidden_layers, max(1, config.num_hidden_layers // 2), "spread")
    unfinished = folder.with_name(f"_{os.getpid()}")
    make_student(teacher, layers).save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    with suppress(OSError):  # another process has already written it
        unfinished.rename(folder)


def result_file(name: str, args: argparse.Namespace) -> Path:
    """Returns the file with the result of a step. It exists once the step is finished."""
    return args.output_dir / f"{name}.json"


def find_model(recipe: str, seed: str, args: argparse.Namespace) -> Path:
    """Returns the folder of a trained or given model."""
    if recipe in NOT_TRAINED:
        return Path(args.teacher) if recipe == "teacher" else args.output_dir / "start/model"
    return args.output_dir / recipe / seed / PRETRAINING


def run_step(name: str, args: argparse.Namespace) -> None:
    """Runs a step in a new process, whose output goes to `log.txt` in the step's folder."""
    recipe, seed, step = name.split("/")
    folder = args.output_dir / name
    command = pretraining_command(recipe, seed, args) if step == PRETRAINING else fine_tuning_command(name, args)
    command += as_flags({"bf16": args.bf16, "seed": 42 if seed == "once" else seed, "output_dir": folder})
    start = time.monotonic()
    run_snugbert(command, folder / "log.txt")
    seconds = time.monotonic() - start
    result: dict[str, Any] = {"seconds": seconds}
    if step == PRETRAINING:
        result |= read_costs(list_checkpoints(folder)[-1]) if recipe in RECIPES else {}
        scores = json.loads((folder / "eval_results.json").read_text())
        result |= {name: scores[f"eval_{name}"] for name in ("mlm_loss", "mlm_accuracy")}
    else:
        result |= read_score(folder, TASKS[step])
    machine = describe_machine("cpu") | ({"threads": args.threads} if args.threads else {})
    write_atomically(result_file(name, args), json.dumps(result | {"command": command, "machine": machine}))
    for checkpoint in list_checkpoints(folder):
        shutil.rmtree(checkpoint)
    print(f"{name}: finished after {seconds / 60:.1f} minutes", file=sys.stderr, flush=True)


def pretraining_command(recipe: str, seed: str, args: argparse.Namespace) -> list[str]:
    """Builds the pretraining command of a recipe, or the evaluation of a model that is not trained."""
    settings = SETTINGS | {
        "model_name_or_path": find_model("teacher" if recipe == "teacher" else "start", seed, args),
        "validation_file": args.validation_file,
        "max_eval_samples": args.max_eval_samples,
    }
    if recipe in NOT_TRAINED:
        return ["pretrain", *as_flags(settings | {"do_eval": True})]
    settings |= {
        "train_file": args.train_file,
        "learning_rate": args.learning_rate,
        "max_steps": choose_steps(recipe, seed, args),
        "eval_strategy": "no",
        "save_steps": 200,
        "save_total_limit": 1,
    }
    if recipe == "distilled":
        settings["teacher_name_or_path"] = args.teacher
    return ["pretrain", *as_flags(settings), "--resume_from_checkpoint", "true"]


def choose_steps(recipe: str, seed: str, args: argparse.Namespace) -> int:
    """Returns the number of steps of a recipe. `mlm-equal-flops` has the FLOPs of `distilled` with the same seed."""
    if recipe != "mlm-equal-flops":
        return args.max_steps
    files = [result_file(f"{each}/{seed}/{PRETRAINING}", args) for each in ("distilled", "mlm")]
    if not all(file.exists() for file in files):
        raise SystemExit(f"error: {recipe}/{seed}: {files[0]} or {files[1]} is missing. Run these steps first.")
    distilled, mlm = (json.loads(file.read_text())["flops"] for file in files)
    return round(args.max_steps * distilled / mlm)


def fine_tuning_command(name: str, args: argparse.Namespace) -> list[str]:
    """Builds the command of a fine-tuning step, without seed and output folder."""
    recipe, seed, task = name.split("/")
    if recipe in RECIPES and not result_file(f"{recipe}/{seed}/{PRETRAINING}", args).exists():
        raise SystemExit(f"error: {name}: the step {recipe}/{seed}/{PRETRAINING} is not finished. Run it first.")
    settings = {
        "model_name_or_path": find_model(recipe, seed, args),
        "config_overrides": "hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1",
        "use_cpu": True,
        "save_strategy": "no",
        "overwrite_output_dir": True,
    }
    return [*(part.replace("{}", args.data_dir) for part in TASKS[task].command.split()), *as_flags(settings)]


# --- report -----------------------------------------------------------------------------------------------------


def report(output_dir: Path) -> str:
    """Makes the table of the finished steps.

    Raises:
        SystemExit: no step is finished.
    """
    results = {
        recipe: {step: read_results(output_dir / recipe, step) for step in (PRETRAINING, *TASKS)}
        for recipe in (*NOT_TRAINED, *RECIPES)
        if any((output_dir / recipe).glob(f"*/{PRETRAINING}.json"))
    }
    if not results:
        raise SystemExit(f"error: --report: {output_dir} has no finished step.")
    machines = [
        ", ".join(f"{name} {value}" for name, value in result["machine"].items())
        for steps in results.values()
        for result in steps[PRETRAINING]
    ]
    tasks = [task for task in TASKS if any(steps[task] for steps in results.values())]
    header = ["model", "seeds", "steps", "million tokens", "PFLOPs", "hours", "masked token loss", "accuracy, %"]
    header += [TASKS[task].title for task in tasks]
    lines = [header, *(make_row(recipe, steps, tasks) for recipe, steps in results.items())]
    return "\n".join(
        [
            *dict.fromkeys(machines),
            "",
            format_table(lines),
            "",
            "Losses and scores: mean ± standard deviation over the seeds (95 % interval of the mean, Student's t). "
            "Steps, tokens, FLOPs and hours are for "
            "pretraining, means over the seeds. FLOPs include the teacher's.",
            "",
        ]
    )


def read_results(folder: Path, step: str) -> list[dict[str, Any]]:
    """Reads the results of a step of a recipe, of all seeds."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob(f"*/{step}.json"))]


def make_row(recipe: str, steps: dict[str, list[dict[str, Any]]], tasks: list[str]) -> list[str]:
    """Formats the row of a model from its results by step."""
    runs = steps[PRETRAINING]
    units = {"step": 1, "tokens": 1e6, "flops": 1e15, "seconds": 3600} if recipe in RECIPES else {}
    costs = [f"{mean(run[name] for run in runs) / unit:.4g}" for name, unit in units.items()] or [""] * 4
    return [
        recipe,
        str(len(runs)),
        *costs,
        format_seeds([run["mlm_loss"] for run in runs], 3),
        format_seeds([100 * run["mlm_accuracy"] for run in runs], 1),
        *(format_seeds([result["score"] for result in steps[task]], 1) for task in tasks),
    ]


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    if not args.report:
        try:
            check_settings(args.output_dir, {name: getattr(args, name) for name in COMPARED})
            run_steps(args)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
    print(report(args.output_dir), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
