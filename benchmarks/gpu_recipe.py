"""Trains an encoder on ten million words on one GPU, and scores it, in ten minutes. Start: `benchmarks/gpu.sh recipe`.

    benchmarks/gpu.sh recipe                               # at most ten passes over the text
    benchmarks/gpu.sh recipe training --seed 2             # one piece. It may take the whole time
    benchmarks/gpu.sh recipe --set optim=adamw_torch_fused learning_rate=1e-3  # arguments of `snugbert pretrain`
    benchmarks/gpu.sh recipe --plan                        # the pieces, their seconds, and the steps

The recipe is examples/pretrain_small_corpus_1_gpu.yaml. `recipe.py` describes the pieces. Each runs in a process of
its own, which is killed when its time is over. Unused time goes to the next piece. Alone, `training` takes at most 9
minutes, and `scores` and `finetuning` use the runs in --work_dir.

The folder build/recipe (33 MB) holds what the pieces read, in the layout of the test data (CONTRIBUTING.md). Make it
on the machine that has the data, and copy it with the repository:

    text=(--train_file 'data/books_en/train-*.txt.gz' data/wiki_en/train.txt.gz)
    snugbert vocabulary "${text[@]}" --vocab_size 16384 --output_dir build/recipe/tokenizer
    snugbert prepare "${text[@]}" --tokenizer_name build/recipe/tokenizer --output_dir build/recipe/corpus
    (cd data && cp -r --parents --no-preserve=mode blimp books_en/validation.txt.gz conll2003/{train,valid}.jsonl.gz \
        glue/{CoLA,MRPC,RTE,SST-2}/{train,dev}.tsv* ../build/recipe)

The output folder has at most 8 files, each below 16 MiB: `rows.jsonl`, `table.md`, `log.txt` (watch it with
`tail -f`), `compiler-cache.zip` (see `gpu_quick.py`), and the model in bfloat16 as `weights.tar.0` to `.3`.
`cat weights.tar.* | tar x` makes a folder that `AutoModel.from_pretrained` loads. Each call replaces these files.

Measured: benchmarks/results/gpu_recipe_h100_202611.md.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import mean

from gpu_quick import (
    ENDING,
    NEEDED,
    add_driver_arguments,
    format_plan,
    run_and_print,
    run_piece,
    save_results,
)
from gpu_table import Row, format_errors, format_section, measured, read_rows
from reporting import format_machine, format_table

REPOSITORY = Path(__file__).parents[1]
RECIPE = REPOSITORY / "examples/pretrain_small_corpus_1_gpu.yaml"
# Seconds of each piece. Training, measured: 20 to start Python, 70 for the run that measures the speed, 170 for ten
# passes, 40 because the plan counts the seconds of compiling twice, and 40 to stop and to spare. Estimated, because
# other runs used the GPU: scores, and fine-tuning with 90 for one seed and 40 for two more of the small tasks.
PLAN = {"training": 340, "scores": 100, "finetuning": 130}
LONGEST_TRAINING = 540
FINISHING = 15  # seconds for the compiler's cache and the table, all together
ROWS = "rows.jsonl"
METRICS = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "mfu")  # of the last log line
PACKAGES = (*NEEDED, "evaluate", "seqeval")


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that the driver passes on to the pieces."""
    parser.add_argument("--seed", type=int, default=1, help="seed of the training")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="arguments of `snugbert pretrain`")
    parser.add_argument("--data_dir", type=Path, default=REPOSITORY / "build/recipe", help="what the pieces read")
    parser.add_argument("--work_dir", type=Path, default=REPOSITORY / "build/recipe-runs", help="models and runs")
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument(
        "--rehearse",
        type=int,
        nargs="?",
        const=12,
        default=0,
        metavar="STEPS",
        help="a tiny model and some steps on a CPU, to test this script",
    )


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_driver_arguments(parser, PLAN)
    add_shared_arguments(parser)
    return parser.parse_args(argv)


def check_names(settings: list[str]) -> None:
    """Refuses a mistyped argument of `snugbert pretrain` before any piece takes its time."""
    from snugbert.cli.model_arguments import ModelArguments  # only after its packages were found
    from snugbert.cli.parser import ArgumentParser
    from snugbert.errors import InputError
    from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments, PretrainingDataArguments

    types = (ModelArguments, PretrainingDataArguments, PretrainingArguments)
    try:
        ArgumentParser(types, prog="snugbert pretrain", description="").check_flags([f"--{each}" for each in settings])
    except InputError as error:
        raise SystemExit(f"error: --set: {error}") from error


def run_pieces(args: argparse.Namespace, cache: Path) -> None:
    """Runs the pieces in order, and saves the results after each."""
    check_names(args.set)
    start = deadline = time.monotonic()
    rows, log = args.output_dir / ROWS, args.output_dir / "log.txt"
    for old in (rows, *args.output_dir.glob("weights.tar.*")):
        old.unlink(missing_ok=True)
    shared = ["--set", *args.set] if args.set else []
    for name in ("seed", "data_dir", "work_dir", "output_dir", "rehearse"):
        shared += [f"--{name}", str(getattr(args, name))]
    with log.open("w") as output:
        for piece in [args.piece] if args.piece else PLAN:
            alone = LONGEST_TRAINING if piece == "training" else sum(PLAN.values())
            deadline += alone if args.piece else PLAN[piece]
            command = [str(Path(__file__).with_name("recipe.py")), piece, "--deadline", str(deadline - ENDING)]
            run_piece(piece, [*command, *shared], rows, deadline, cache, output)
            save_results(args.output_dir, cache, lambda: format_results(read_rows(rows)), time.monotonic() - start)


# --- the table ----------------------------------------------------------------------------------------------------


def format_results(rows: dict[str, Row]) -> str:
    """Formats the rows of all pieces."""
    machine = rows.pop("device", {}).get("machine", {})
    found = measured(rows)
    sections = [
        "# An encoder from ten million words, on one GPU",
        format_machine(machine),
        format_section("Training", format_training(found)),
        format_section("Held-out text", format_held_out_text(found)),
        format_section("BLiMP", format_blimp(found.get("BLiMP"))),
        format_section("Fine-tuning", format_fine_tuning(found)),
        format_section("Not measured", format_errors({"recipe": rows})),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def format_training(rows: dict[str, Row]) -> str:
    """Formats the speed and the run."""
    lines = []
    if speed := rows.get("speed"):
        milliseconds = ", ".join(f"{1e3 * each:.1f}" for each in speed["seconds_per_step"])
        lines += [
            ["ms of a step in each phase, short run", milliseconds],
            ["other seconds of the short run", f"{speed['overhead']:.0f}"],
        ]
    if run := rows.get("training"):
        lines += [
            ["steps (planned)", f"{run['step']:,} ({run['planned_steps']:,})"],
            ["passes over the text", f"{run['epoch']:.2f}"],
            ["million tokens", f"{run['tokens'] / 1e6:.1f}"],
            ["seconds, with everything", f"{run['seconds']:.0f}"],
            ["ms of a step, second half", f"{1e3 * run['seconds_per_step']:.1f}"],
            *([name, f"{run[name]:.3f}"] for name in METRICS if name in run),
            ["changed settings", " ".join(run["changes"]) or "none"],
        ]
    if weights := rows.get("weights"):
        lines.append(["weights", f"{weights['bytes'] / 2**20:.1f} MiB, from {weights['source']}"])
    return format_table(("", ""), lines)


def format_held_out_text(rows: dict[str, Row]) -> str:
    """Formats the losses of both sides on the same examples and masks, with more digits than they should share."""
    lines = []
    for side in ("SnugBERT", "stock BERT"):
        if row := rows.get(f"held-out text, {side}"):
            values = (row["metrics"][name] for name in ("mlm_loss", "mlm_accuracy", "bits_per_character"))
            lines.append([side, *(f"{value:.6f}" for value in values), f"{row['examples']:,}", f"{row['tokens']:,}"])
    header = ("side", "masked token loss", "accuracy", "bits per character", "examples", "tokens")
    return format_table(header, lines)


def format_blimp(row: Row | None) -> str:
    """Formats the scores of each phenomenon in percent, and the mean over paradigms."""
    if row is None:
        return ""
    groups = {**row["phenomena"], "mean over paradigms": row}
    lines = [
        [
            name.replace("_", " "),
            f"{group['pairs']:,}",
            *(f"{100 * score:.1f}" for score in group["accuracy"].values()),
        ]
        for name, group in groups.items()
    ]
    return format_table(("phenomenon", "pairs", *row["accuracy"]), lines)


def format_fine_tuning(rows: dict[str, Row]) -> str:
    """Formats the scores of each task in percent: the mean, and each seed."""
    tasks: dict[str, list[Row]] = {}
    for row in rows.values():
        if "task" in row:
            tasks.setdefault(row["task"], []).append(row)
    lines = []
    for task, found in tasks.items():
        scores = [row["score"] for row in found]
        seeds = ", ".join(f"{score:.1f}" for score in scores)
        lines.append([task, f"{mean(scores):.1f}", seeds, f"{found[0]['baseline']:.1f}"])
    return format_table(("task", "mean", "each seed", "most frequent answer"), lines)


def main(argv: list[str]) -> None:
    """Runs the pieces and prints the table, or prints the plan."""
    args = parse_arguments(argv)
    if args.plan:
        print(format_plan(PLAN, FINISHING))
        print(f"training, alone {LONGEST_TRAINING}: ten passes are 7,280 steps of 19 ms")
        return
    if not (args.data_dir / "corpus").is_dir():
        raise SystemExit(
            f"error: --data_dir: {args.data_dir} has no corpus. benchmarks/gpu_recipe.py says how to make it."
        )
    run_and_print(PACKAGES, run_pieces, args)


if __name__ == "__main__":
    main(sys.argv[1:])
