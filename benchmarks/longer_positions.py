r"""More positions for a trained model: how to extend the table, and what 200 steps of pretraining repair.

    python benchmarks/longer_positions.py --train_file 'books/train-0[0-2].txt.gz' --validation_file \
        books/validation.txt.gz --encoder MINILM --bf16 --threads 1 --output_dir positions

For each seed, a small model (4 layers, hidden size 128) is pretrained with `--positions` positions. Then it gets four
times as many. The methods (`METHODS`):

- `rotation`: `snugbert convert --max_position_embeddings`. New rows continue the rotation from row to row.
- `tiling`: the table is repeated, as in Longformer (Beltagy et al., 2020)
- `interpolation`: the table is stretched. This also changes short texts.
- `random`: new rows are random, with the standard deviation of the initial weights

Each extended model is pretrained for 200 more steps on sequences of the new length. `original` gets the same steps,
but keeps its positions and the short sequences. Bits per character of masked tokens are measured on held-out text by
position, before and after these steps.

With `--encoder`, a real BERT shows the methods on rows from a long pretraining. The script removes its last rows, and
each method makes new ones. The last hidden states are compared with those of the complete model.

Each step has its own folder. The same command continues after an interruption. `--report` prints the tables of the
finished steps.
"""

import argparse
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pretraining_ladder import as_flags
from safetensors.torch import load_file, save_file
from side_by_side import describe_machine, positive
from steps import check_settings, format_seeds, format_table, run_snugbert
from transformers import AutoModel, AutoTokenizer

import snugbert
from snugbert.errors import InputError
from snugbert.evaluation.held_out_text import count_characters
from snugbert.families.conversion import convert_model
from snugbert.families.stock_models import POSITIONS, continue_rows
from snugbert.files import write_atomically
from snugbert.trainers.pretraining.corpora import VALIDATION_SEED, load_corpora, make_dataset
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingDataArguments

FACTOR = 4  # new positions / old positions
VOCABULARY = 8192
BASE_TOKENS = 8192  # per step
LAYERS, HIDDEN_SIZE, HEADS = 4, 128, 2
# As in benchmarks/ladder/no-pairs.yaml, except for the lengths.
SETTINGS: dict[str, Any] = {
    "objective": "mlm",
    "mlm_probability": 0.3,
    "optim": "muon",
    "adam_beta2": 0.98,
    "warmup_steps": 0.05,
    "eval_strategy": "no",
    "save_strategy": "no",
    "use_cpu": True,
}
LEARNING_RATES = {"base": 4e-3, "more": 2e-3}  # the second as in benchmarks/adaptation.py
COMPARED = (
    "positions",
    "base_steps",
    "steps",
    "tokens_per_step",
    "eval_tokens",
    "train_file",
    "validation_file",
    "bf16",
)
KEPT = (128, 256, 384)  # rows of the real BERT that are not removed
TEXTS = 16  # of the real BERT


# --- the methods ------------------------------------------------------------------------------------------------


def rotate(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """Returns the table of `snugbert convert`. *Shape:* (old positions, E) -> (`positions`, E)"""
    return torch.cat([rows, continue_rows(rows, positions - len(rows))])


def tile(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """Repeats the table."""
    return rows[torch.arange(positions) % len(rows)]


def interpolate(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """Stretches the table linearly."""
    return F.interpolate(rows.T[None], size=positions, mode="linear", align_corners=True)[0].T.contiguous()


def add_random_rows(rows: torch.Tensor, positions: int) -> torch.Tensor:
    """Adds rows as `SnugBertConfig` initializes them."""
    generator = torch.Generator().manual_seed(0)
    new = torch.empty(positions - len(rows), rows.shape[1]).normal_(0, 0.02, generator=generator)
    return torch.cat([rows, new])


METHODS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rotation": rotate,
    "tiling": tile,
    "interpolation": interpolate,
    "random": add_random_rows,
}


# --- small models -----------------------------------------------------------------------------------------------


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents, as for `snugbert pretrain`")
    parser.add_argument("--validation_file", help="held-out documents")
    parser.add_argument("--positions", type=positive, default=128, help="of the first model; default: 128")
    parser.add_argument("--base_steps", type=positive, default=300, help="steps of the first model; default: 300")
    parser.add_argument("--steps", type=positive, default=200, help="steps after the extension; default: 200")
    parser.add_argument("--tokens_per_step", type=positive, default=2048, help="after the extension; default: 2,048")
    parser.add_argument("--eval_tokens", type=positive, default=2**17, help="default: 131,072")
    parser.add_argument("--methods", nargs="+", default=["original", *METHODS], choices=["original", *METHODS])
    parser.add_argument("--seeds", nargs="+", type=positive, default=[1, 2, 3])
    parser.add_argument("--encoder", help="a real BERT with its tokenizer, such as MiniLM")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; fast on AVX512-BF16 and AMX")
    parser.add_argument("--threads", type=positive, help="threads of each process; default: one per core")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print the tables of the finished steps")
    return parser.parse_args(argv)


def run(command: list[str], folder: Path, result: str) -> None:
    """Runs a command in a new process, unless it is finished. Its output goes to a log next to its output folder."""
    if (folder / result).exists():
        return
    command = [*command, "--overwrite_output_dir", "--output_dir", str(folder)]
    run_snugbert(command, folder.with_name(f"{folder.name}.log"))
    print(f"finished: {folder}", file=sys.stderr, flush=True)


def pretrain(folder: Path, length: int, seed: int, args: argparse.Namespace, **settings: Any) -> None:
    """Pretrains on sequences of at most `length` tokens."""
    flags = {"train_file": args.train_file, "max_seq_length": length, "seed": seed, "bf16": args.bf16}
    run(["pretrain", *as_flags(SETTINGS | flags | settings)], folder, "train_results.json")


def pretrain_base(seed: int, args: argparse.Namespace) -> Path:
    """Pretrains a model with `args.positions` positions, and returns its folder."""
    tokenizer, folder = args.output_dir / "tokenizer", args.output_dir / f"base/{seed}"
    run(["vocabulary", *as_flags({"train_file": args.train_file, "vocab_size": VOCABULARY})], tokenizer, "vocab.txt")
    sizes = f"hidden_size={HIDDEN_SIZE},intermediate_size={4 * HIDDEN_SIZE},num_attention_heads={HEADS}"
    sizes += f",num_hidden_layers={LAYERS},max_position_embeddings={args.positions}"
    pretrain(
        folder,
        args.positions,
        seed,
        args,
        tokenizer_name=tokenizer,
        config_name="tiny",
        config_overrides=f"{sizes},hidden_dropout_prob=0,attention_probs_dropout_prob=0",
        bigram_init=True,
        max_steps=args.base_steps,
        learning_rate=LEARNING_RATES["base"],
        per_device_train_batch_size=BASE_TOKENS // args.positions,
    )
    return folder


def extend(base: Path, folder: Path, method: str, positions: int) -> None:
    """Writes an extended model."""
    convert_model(base, folder, "snugbert", max_position_embeddings=positions, overwrite_output_dir=True)
    file = folder / "model.safetensors"
    rows, weights = load_file(base / "model.safetensors")[POSITIONS], load_file(file)
    table = METHODS[method](rows, positions)
    if method == "rotation" and not torch.equal(weights[POSITIONS], table):
        raise SystemExit("error: `snugbert convert` wrote other rows.")
    save_file(weights | {POSITIONS: table}, file, metadata={"format": "pt"})


def run_method(method: str, seed: int, args: argparse.Namespace) -> None:
    """Extends the base of a seed, and writes its scores before and after more pretraining."""
    folder = args.output_dir / method / str(seed)
    if (folder / "result.json").exists():
        return
    start = base = pretrain_base(seed, args)
    length = args.positions
    if method != "original":
        start, length = folder / "extended", FACTOR * args.positions
        extend(base, start, method, length)
    pretrain(
        folder / "more",
        length,
        seed + 1000,  # not the examples of the base
        args,
        model_name_or_path=start,
        max_steps=args.steps,
        learning_rate=LEARNING_RATES["more"],
        per_device_train_batch_size=max(1, args.tokens_per_step // length),
    )
    result = {
        name: score_positions(model, length, args) for name, model in (("before", start), ("after", folder / "more"))
    }
    write_atomically(folder / "result.json", json.dumps(result))


@torch.inference_mode()
def score_positions(folder: Path, length: int, args: argparse.Namespace) -> list[float]:
    """Returns the bits per character of masked tokens, for each `args.positions` positions of a window."""
    model = snugbert.SnugBertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data_args = PretrainingDataArguments(validation_file=[args.validation_file], objective="mlm")
    _, text = load_corpora(data_args, do_train=False, do_eval=True, cache_dir=None, tokenizer=tokenizer)
    collate = snugbert.SnugBertDataCollatorForPretraining(tokenizer)
    losses, counts = np.zeros(length // args.positions), np.zeros(length // args.positions)
    with tempfile.TemporaryDirectory() as epochs_dir:
        dataset = make_dataset(text, "held-out text", length, data_args, tokenizer, Path(epochs_dir), VALIDATION_SEED)
        size = max(1, 4096 // length)
        for start in range(0, min(len(dataset), args.eval_tokens // length), size):
            batch = collate([dataset[index] for index in range(start, min(start + size, len(dataset)))])
            indices = batch["label_indices"]
            logits = model(**batch, sparse_prediction=True).logits[: len(indices)]
            loss = F.cross_entropy(logits.float(), batch["labels"][0, indices], reduction="none")
            buckets = batch["position_ids"][0, indices].numpy() // args.positions
            losses += np.bincount(buckets, loss.double().numpy(), minlength=len(losses))
            counts += np.bincount(buckets, minlength=len(losses))
    tokens_per_character = text.num_tokens / count_characters(data_args)
    return (losses / counts / np.log(2) * tokens_per_character).tolist()


# --- a real encoder ---------------------------------------------------------------------------------------------


def read_windows(tokenizer: Any, file: str, length: int) -> torch.Tensor:
    """Returns windows from the start of documents. *Shape:* (TEXTS, `length`)"""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        documents = stream.read().split("\n\n")
    windows: list[list[int]] = []
    for document in documents:
        ids = tokenizer(document, truncation=True, max_length=length).input_ids
        windows += [ids] if len(ids) == length else []
        if len(windows) == TEXTS:
            break
    return torch.tensor(windows)


@torch.inference_mode()
def compare_states(args: argparse.Namespace) -> Iterator[list[str]]:
    """Yields a row for each method: the cosine of its states and the complete model's, at new and old positions."""
    model, tokenizer = AutoModel.from_pretrained(args.encoder).eval(), AutoTokenizer.from_pretrained(args.encoder)
    table = model.embeddings.position_embeddings.weight
    rows, windows = table.clone(), read_windows(tokenizer, args.validation_file, len(table))

    def compute_states(new_table: torch.Tensor) -> torch.Tensor:
        table.copy_(new_table)
        return torch.cat([model(batch).last_hidden_state for batch in windows.split(4)])

    complete = compute_states(rows)
    for name, method in METHODS.items():
        cells = [name]
        for kept in KEPT:
            states = compute_states(method(rows[:kept], len(rows)))
            similarity = F.cosine_similarity(states, complete, dim=-1).mean(0)
            cells += [f"{similarity[kept:].mean():.3f}", f"{similarity[:kept].mean():.3f}"]
        yield cells


# --- report -----------------------------------------------------------------------------------------------------


def report(args: argparse.Namespace) -> str:
    """Makes the tables of the finished steps."""
    ranges = [
        f"{start} to {start + args.positions - 1}" for start in range(0, FACTOR * args.positions, args.positions)
    ]
    rows = [["method", "seeds", "steps", *ranges, "all"]]
    for method in ("original", *METHODS):
        results = [json.loads(file.read_text()) for file in sorted((args.output_dir / method).glob("*/result.json"))]
        for name, steps in (("before", 0), ("after", args.steps)) if results else ():
            columns = list(zip(*(result[name] for result in results), strict=True))
            cells = [format_seeds(column, 3) for column in columns] + [""] * (FACTOR - len(columns))
            everything = format_seeds([mean(result[name]) for result in results], 3)
            rows.append([method, str(len(results)), str(steps), *cells, everything])
    lines = [
        ", ".join(f"{name} {value}" for name, value in describe_machine("cpu").items()),
        "",
        format_table(rows),
        "",
    ]
    lines += [
        "Bits per character of masked tokens (15 %) on held-out text, by position. Mean ± standard deviation over the "
        "seeds (95 % interval of the mean, Student's t). Each seed has its own first model. `original` reads windows "
        f"of {args.positions} tokens, the others of {FACTOR * args.positions}.",
    ]
    if args.encoder:
        header = [name for kept in KEPT for name in (f"{kept} rows kept, new positions", "old positions")]
        lines += ["", format_table([["method", *header], *compare_states(args)]), ""]
        lines += ["Cosine similarity of the last hidden states with the complete model's."]
    return "\n".join(lines)


def main(argv: list[str]) -> None:
    """Runs what is missing, and prints the report."""
    args = parse_arguments(argv)
    if args.threads:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)
        torch.set_num_threads(args.threads)
    try:
        if not args.report:
            check_settings(args.output_dir, {name: getattr(args, name) for name in COMPARED})
            for seed in args.seeds:
                for method in args.methods:
                    run_method(method, seed, args)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    print(report(args))


if __name__ == "__main__":
    main(sys.argv[1:])
