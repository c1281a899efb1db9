r"""Domain adaptation from start to end: what it gains on the new domain, and what it forgets of the old one.

    python benchmarks/adaptation.py --model_name_or_path MODEL --old_validation_file books/validation.txt.gz \
        --use_cpu --seeds 1 2 3 --output_dir adaptation

The new domain is the documentation that ships with Python, as in examples/demo.py: 2 million characters to pretrain
on, and docstrings of ten packages to classify, 50 of each for training. The old domain is the text that MODEL was
pretrained on. Variants (`VARIANTS`):

- `none`: MODEL is fine-tuned as it is.
- `pretraining`: MODEL is pretrained on the documentation first.
- `vocabulary`: before that, MODEL gets `--new_tokens` more tokens.

All variants have the same fine-tuning settings and the same seeds. The masked token loss is measured on held-out text
of both domains. It is in nats per character, because a larger vocabulary splits the text into fewer
tokens, each harder to predict.

Each step has its own folder. The same command continues after an interruption, and `--report` prints the table of the
finished seeds.
"""

import argparse
import csv
import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pretraining_ladder import as_flags
from side_by_side import choose_device, describe_machine, positive
from steps import check_settings, format_seeds, format_table, run_snugbert
from transformers import AutoModelForPreTraining, AutoTokenizer

import snugbert  # noqa: F401  registers the tokenizer
from snugbert.cli.model_arguments import ModelArguments
from snugbert.errors import InputError
from snugbert.families.loading import load_config, load_model, load_tokenizer
from snugbert.files import write_atomically

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from demo import write_text_and_task

# Results can be compared only if these arguments are equal.
COMPARED = (
    "model_name_or_path",
    "old_validation_file",
    "max_steps",
    "learning_rate",
    "new_tokens",
    "max_eval_samples",
    "bf16",
    "use_cpu",
)
VARIANTS = ("none", "pretraining", "vocabulary")
DOMAINS = ("new", "old")
# The text has only half a million tokens, so training passes over it several times.
PRETRAINING: dict[str, Any] = {
    "config_overrides": "hidden_dropout_prob=0,attention_probs_dropout_prob=0",
    "per_device_train_batch_size": 64,
    "max_seq_length": 64,
    "mlm_probability": 0.3,
    "optim": "muon",
    "adam_beta2": 0.98,
    "warmup_steps": 0.05,
    "eval_strategy": "no",
    "save_strategy": "no",
}
FINE_TUNING: dict[str, Any] = {
    "config_overrides": "hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1",
    "num_train_epochs": 16,
    "per_device_train_batch_size": 16,
    "max_seq_length": 64,
    "save_strategy": "no",
}


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="pretrained checkpoint")
    parser.add_argument("--old_validation_file", required=True, help="held-out text of the old domain")
    parser.add_argument("--max_steps", type=positive, default=500, help="pretraining steps; default: 500")
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="of the pretraining; default: 2e-3")
    parser.add_argument("--new_tokens", type=positive, default=2000, help="default: 2,000")
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--max_eval_samples", type=positive, default=2000, help="of the masked token loss")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--use_cpu", action="store_true")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the table of the finished seeds")
    return parser.parse_args(argv)


def check_heads(name: str) -> None:
    """Checks that a checkpoint can predict masked tokens. Random heads would make the losses meaningless.

    Raises:
        InputError: it cannot.
    """
    model_args = ModelArguments(model_name_or_path=name)
    config = load_config(model_args, load_tokenizer(model_args))
    load_model(AutoModelForPreTraining, model_args, config, trained=True)


def write_data(output_dir: Path) -> None:
    """Writes the new domain's text and task. If interrupted, the next call starts again."""
    unfinished = output_dir / "_data"
    shutil.rmtree(unfinished, ignore_errors=True)
    write_text_and_task(unfinished)
    shutil.rmtree(output_dir / "text", ignore_errors=True)
    for name in ("text", "task"):
        (unfinished / name).rename(output_dir / name)


def run_seed(variant: str, seed: int, args: argparse.Namespace) -> None:
    """Runs the steps of a variant with one seed that are not finished."""
    folder = args.output_dir / variant / str(seed)
    hardware = {name: True for name in ("bf16", "use_cpu") if getattr(args, name)}
    text, model = args.output_dir / "text", str(args.model_name_or_path)
    if variant == "vocabulary":
        extended = args.output_dir / "extended"
        size = len(AutoTokenizer.from_pretrained(model)) + args.new_tokens
        flags = {"init": model, "train_file": text / "train.txt", "vocab_size": size}
        run(["vocabulary", *as_flags(flags)], extended, "tokenizer.json")
        model = str(extended)
    if variant != "none":
        settings = {"max_steps": args.max_steps, "learning_rate": args.learning_rate, "seed": seed}
        flags = {"model_name_or_path": model, "train_file": text / "train.txt", **PRETRAINING, **settings, **hardware}
        run(["pretrain", *as_flags(flags)], folder / "model", "train_results.json")
        model = str(folder / "model")
    files = {"new": text / "validation.txt", "old": args.old_validation_file}
    for domain, file in files.items():
        flags = {"model_name_or_path": model, "validation_file": file, "do_eval": True, "max_seq_length": 64}
        flags |= {"max_eval_samples": args.max_eval_samples, **hardware}
        run(["pretrain", *as_flags(flags)], folder / domain, "eval_results.json")
    task = {
        name: args.output_dir / f"task/{name.removesuffix('_file')}.csv" for name in ("train_file", "validation_file")
    }
    flags = {"model_name_or_path": model, **task, **FINE_TUNING, "seed": seed, **hardware}
    run(["glue", *as_flags(flags)], folder / "classifier", "results.json")
    sizes = {
        domain: count_characters(AutoTokenizer.from_pretrained(model), Path(file)) for domain, file in files.items()
    }
    losses = {domain: json.loads((folder / domain / "eval_results.json").read_text()) for domain in DOMAINS}
    results = json.loads((folder / "classifier/results.json").read_text())
    result = {
        "accuracy": 100 * results["metrics"]["eval"]["accuracy"],
        "baseline": 100 * results["baselines"]["eval"]["accuracy"],
        **{f"{domain}_loss": losses[domain]["eval_mlm_loss"] / sizes[domain] for domain in DOMAINS},
        **{f"{domain}_accuracy": 100 * losses[domain]["eval_mlm_accuracy"] for domain in DOMAINS},
        "characters_per_token": sizes["new"],
        "machine": describe_machine(choose_device(args.use_cpu)) | ({"threads": args.threads} if args.threads else {}),
    }
    write_atomically(folder / "result.json", json.dumps(result))


def run(command: list[str], folder: Path, result: str) -> None:
    """Runs a command in a new process, unless it is finished. Its output goes to a log next to its output folder."""
    if (folder / result).exists():
        return
    command = [*command, "--overwrite_output_dir", "--output_dir", str(folder)]
    run_snugbert(command, folder.with_name(f"{folder.name}.log"))
    print(f"finished: {folder}", file=sys.stderr, flush=True)


def count_characters(tokenizer: Any, file: Path) -> float:
    """Returns the number of characters per token of a text."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as stream:
        lines = [line.strip() for line in stream if line.strip()]
    tokens = sum(map(len, tokenizer(lines, add_special_tokens=False, verbose=False)["input_ids"]))
    return sum(map(len, lines)) / tokens


def report(output_dir: Path) -> str:
    """Makes the table of the finished seeds."""
    columns = {
        "docstrings, accuracy": ("accuracy", 1),
        "new domain, nats per character": ("new_loss", 3),
        "new domain, masked token accuracy": ("new_accuracy", 1),
        "old domain, nats per character": ("old_loss", 3),
        "old domain, masked token accuracy": ("old_accuracy", 1),
        "characters per token, new domain": ("characters_per_token", 2),
    }
    rows = [["variant", "seeds", *columns]]
    machines, baseline = [], ""
    for variant in VARIANTS:
        results = [json.loads(file.read_text()) for file in sorted((output_dir / variant).glob("*/result.json"))]
        if results:
            baseline = f"{results[0]['baseline']:.1f}"
            machines += [", ".join(f"{name} {value}" for name, value in one["machine"].items()) for one in results]
            cells = [format_seeds([one[name] for one in results], digits) for name, digits in columns.values()]
            rows.append([variant, str(len(results)), *cells])
    if not machines:
        raise SystemExit(f"error: --report: {output_dir} has no finished seed.")
    with (output_dir / "task/validation.csv").open(encoding="utf-8", newline="") as stream:
        examples = len(list(csv.DictReader(stream)))
    return "\n".join(
        [
            *dict.fromkeys(machines),
            "",
            format_table(rows),
            "",
            "Mean ± standard deviation over the seeds (95 % interval of the mean, Student's t). Accuracies are in "
            f"percent. Docstrings: {examples}. The most frequent answer is correct for {baseline} percent of them. "
            "Losses are of the first validation examples. Characters per token are of the whole text.",
            "",
        ]
    )


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if not args.report:
        try:
            check_settings(args.output_dir, {name: getattr(args, name) for name in COMPARED})
            check_heads(args.model_name_or_path)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error
        if not (args.output_dir / "task").exists():
            write_data(args.output_dir)
        for seed in args.seeds:
            for variant in VARIANTS:
                if not (args.output_dir / variant / f"{seed}/result.json").exists():
                    run_seed(variant, seed, args)
    print(report(args.output_dir), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
