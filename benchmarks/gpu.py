"""Measures SnugBERT and stock BERT on one GPU, in pieces. `benchmarks/gpu.sh` runs them and says how to prepare.

    python benchmarks/gpu.py eager --output_dir gpu-results
    python benchmarks/gpu.py table --output_dir gpu-results

Pieces:

- `correctness`: losses and gradients of every head against stock BERT's, in float32 and bfloat16, packed and padded.
- `eager`, `compiled`: whole training steps (forward, backward, fused AdamW) of pretraining at three sizes, with the
  lengths of real sentence pairs and without padding, with and without dropout.
- `lengths`: training steps of a classifier at the lengths of each GLUE task.
- `pretrain`, `finetune`: whole jobs, `snugbert pretrain` and `snugbert glue` next to `stock_finetuning.py`.
- `profile`: places where the CPU waits for the GPU, the attention kernels, and the kernels that take most time.
- `table`: prints all results.

A piece appends one line per row to `<output_dir>/<piece>.jsonl`. Rows in the file are not measured again, even if
they failed, so the same command continues an interrupted piece. A failed row records its error, and the next row runs.

Steps and checks need no data: token ids are random, and lengths follow the tables below. Without --train_file, jobs
get generated text. Batches are on the GPU before the clock starts. Each measurement takes several rounds, and a round
waits for the GPU once, after its last step. Memory is `max_memory_allocated` of the measured rounds.
"""

import argparse
import copy
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
from side_by_side import (
    GRADIENT_TOLERANCE,
    SIDES,
    TOLERANCE,
    Batch,
    Work,
    argument_parser,
    autocast,
    build,
    comparable_loss,
    compile_encoder,
    count_tokens,
    describe_machine,
    gradient_distance,
    make_runner,
    needed_flops,
    to_device,
)
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
)

from snugbert import SnugBertConfig, SnugBertTokenizer
from snugbert.evaluation.text import pad_batch
from snugbert.packed_batches import SnugBertDataCollatorWithPacking
from snugbert.trainers.pretraining.collator import SnugBertDataCollatorForPretraining
from snugbert.trainers.pretraining.throughput import TRAINING_COST, peak_flops

Rows = Iterator[tuple[str, Callable[[], dict[str, Any]]]]  # names, and functions that measure
# Tokens of a sequence at each 5 % of the distribution, from the shortest to the longest. BERT's uncased vocabulary.
PAIR_LENGTHS = {  # sentence pairs of `snugbert pretrain` from English books
    128: (20, 107, 126, *[128] * 18),
    512: (25, 315, 477, 503, 511, *[512] * 16),
}
GLUE_LENGTHS = {  # training sets, cut at 128 tokens
    "cola": (4, 6, 7, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11, 12, 12, 13, 14, 15, 17, 20, 32),
    "sst2": (3, 4, 4, 5, 5, 6, 7, 8, 8, 9, 10, 12, 13, 14, 16, 18, 21, 23, 28, 34, 61),
    "stsb": (10, 15, 16, 17, 18, 19, 19, 20, 21, 22, 23, 24, 25, 26, 28, 31, 35, 42, 50, 60, 125),
    "qqp": (11, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30, 31, 33, 35, 38, 42, 47, 55, 128),
    "wnli": (16, 21, 23, 24, 26, 27, 28, 28, 30, 31, 32, 34, 35, 37, 38, 42, 45, 52, 63, 72, 108),
    "mnli": (6, 16, 19, 22, 24, 26, 29, 31, 33, 35, 37, 39, 42, 44, 47, 50, 54, 58, 63, 72, 128),
    "qnli": (14, 27, 30, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 58, 61, 66, 71, 80, 128),
    "mrpc": (19, 32, 36, 39, 41, 44, 45, 47, 50, 51, 53, 55, 57, 59, 61, 62, 64, 67, 70, 74, 103),
    "rte": (13, 29, 33, 37, 40, 43, 45, 47, 50, 53, 56, 59, 62, 67, 72, 85, 103, 120, 128, 128, 128),
}
# Dense bfloat16 FLOPs per second in NVIDIA's datasheets. The first name that is part of the device's name counts.
DATASHEET = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
HEADS = {
    "pretraining": "PreTraining",
    "masked LM": "MaskedLM",
    "next sentence": "NextSentencePrediction",
    "classification": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "tagging": "TokenClassification",
    "answers": "QuestionAnswering",
    "multiple choice": "MultipleChoice",
}
PRETRAINING_HEADS = ("PreTraining", "MaskedLM")
LABELS = 3
# In bfloat16, our gradients may differ from stock BERT's float32 gradients by this times what stock BERT's own differ.
BFLOAT16_FACTOR = 1.5
# Names of torch's attention kernels on CUDA: flash attention for 16 bits, memory-efficient attention for 32.
ATTENTION_KERNELS = {"bfloat16": "flash", "float32": "fmha"}
SHOWN_KERNELS = 15
HEADER = (
    "| work | side | tokens/s (range) | MFU: datasheet, best product | peak MB | speed / stock | memory / stock |\n"
    + "|"
    + " --- |" * 7
)
WAIT = "called a synchronizing CUDA operation"  # torch's warning
JOBS_FOR_WAITS = (10, 40)  # steps of the two jobs that count waits


@dataclass(frozen=True)
class Sizes:
    """How much to measure.

    Attributes:
        model: name of the model's size.
        vocabulary: number of tokens.
        shapes: batch size and maximum length of the steps. The most important come first.
        steps: steps per round, each on its own batch.
        rounds: measured rounds, after one round for warmup.
        fine_tuning_batch: batch size of fine-tuning, of the checks and of the profile.
        pretraining: steps, batch size and maximum length of `snugbert pretrain`.
        fine_tuning_examples: training examples of `snugbert glue`, three epochs.
        documents: number of generated documents, of about 1,100 tokens each.
        conditions: dropout, and "real" or "full" fill, of the pretraining steps. The most important come first.
        tasks: names in [`GLUE_LENGTHS`].
        backend: backend of torch.compile.
    """

    model: str
    vocabulary: int
    shapes: tuple[tuple[int, int], ...]
    steps: int
    rounds: int
    fine_tuning_batch: int
    pretraining: tuple[int, int, int]
    fine_tuning_examples: int
    documents: int
    conditions: tuple[tuple[float, str], ...]
    tasks: tuple[str, ...]
    backend: str


BASE = Sizes(
    model="base",
    vocabulary=30_522,
    shapes=((256, 128), (32, 128), (64, 512)),
    steps=10,
    rounds=5,
    fine_tuning_batch=32,
    pretraining=(300, 256, 128),
    fine_tuning_examples=3_668,
    documents=2_000,
    conditions=((0.1, "real"), (0.1, "full"), (0.0, "real"), (0.0, "full")),
    tasks=tuple(GLUE_LENGTHS),
    backend="inductor",
)
REHEARSAL = Sizes(
    model="tiny",
    vocabulary=300,
    shapes=((4, 24),),
    steps=2,
    rounds=2,
    fine_tuning_batch=4,
    pretraining=(4, 4, 24),
    fine_tuning_examples=8,
    documents=4,
    conditions=((0.1, "full"),),
    tasks=("sst2",),
    backend="eager",
)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=[*PIECES, "table"])
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument("--minutes", type=float, default=8.0, help="no row of a piece starts later than this")
    parser.add_argument("--train_file", nargs="+", help="documents for `snugbert pretrain`; default: generated")
    parser.add_argument("--tokenizer_name", help="tokenizer folder, needed with --train_file")
    parser.add_argument("--glue_dir", help="folder named glue, with MRPC, and --tokenizer_name; default: generated")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU, to test this script")
    args = parser.parse_args(argv)
    if (args.train_file or args.glue_dir) and not args.tokenizer_name:
        raise SystemExit("error: --tokenizer_name is missing. Text needs a tokenizer with its words.")
    args.sizes = REHEARSAL if args.rehearse else BASE
    args.device = "cpu" if args.rehearse else "cuda"
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU. --rehearse tests this script on a CPU.")
    return args


# --- examples ---------------------------------------------------------------------------------------------------


def make_vocabulary(size: int) -> dict[str, int]:
    """Returns BERT's special tokens, a period, and words of four letters."""
    letters = [chr(ord("a") + letter) for letter in range(26)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = (
        letters[n // 26**3] + letters[n // 26**2 % 26] + letters[n // 26 % 26] + letters[n % 26] for n in range(size)
    )
    return {token: index for index, token in enumerate([*tokens, *words][:size])}


def draw_lengths(distribution: tuple[int, ...], count: int, longest: int, rng: np.random.Generator) -> list[int]:
    """Draws lengths from one of the tables above, at most `longest`."""
    points = np.linspace(0, 1, len(distribution))
    drawn = np.interp(rng.random(count), points, distribution).round().astype(int)
    return np.minimum(drawn, longest).tolist()


def make_example(length: int, vocabulary: int, rng: np.random.Generator) -> dict[str, Any]:
    """Draws the tokens of a pair; up to 4 tokens, of one sentence."""
    ids = rng.integers(5, vocabulary, length)
    ids[0], ids[-1] = 2, 3  # [CLS], [SEP]
    middle = length // 2 if length > 4 else length - 1
    ids[middle] = 3
    return {"input_ids": ids.tolist(), "token_type_ids": [0] * (middle + 1) + [1] * (length - middle - 1)}


def make_pretraining_batches(
    lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides. Half of the pairs are random."""
    examples = [
        make_example(length, vocabulary, rng) | {"next_sentence_label": index % 2, "mask_seed": index}
        for index, length in enumerate(lengths)
    ]
    tokenizer = SnugBertTokenizer(vocab=make_vocabulary(vocabulary))
    collate = SnugBertDataCollatorForPretraining(tokenizer)
    packed = [collate(examples[start : start + batch_size]) for start in range(0, len(examples), batch_size)]
    return {"ours": packed, "stock": [pad_batch(batch, 0) for batch in packed]}


def make_fine_tuning_batches(
    task: str, lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides, with random labels, for a name in [`HEADS`]."""
    features = [label_example(task, make_example(length, vocabulary, rng), rng) for length in lengths]
    if task == "multiple choice":  # each example has two choices
        pairs = zip(features[::2], features[1::2], strict=True)
        features = [
            {"input_ids": [first["input_ids"], second["input_ids"]], "label": int(rng.integers(2))}
            for first, second in pairs
        ]
    tokenizer = SnugBertTokenizer(vocab=make_vocabulary(vocabulary))
    collators = {"multiple choice": DataCollatorForMultipleChoice, "tagging": DataCollatorForTokenClassification}
    pad = collators.get(task, DataCollatorWithPadding)(tokenizer)
    pack = SnugBertDataCollatorWithPacking()
    parts = [features[start : start + batch_size] for start in range(0, len(features), batch_size)]
    return {
        "ours": [pack(part) for part in parts],
        "stock": [dict(pad([dict(feature) for feature in part])) for part in parts],  # some collators remove labels
    }


def make_task_batches(
    task: str, lengths: list[int], batch_size: int, vocabulary: int, rng: np.random.Generator
) -> dict[str, list[Batch]]:
    """Returns the batches of both sides for a name in [`HEADS`]."""
    if HEADS[task] not in PRETRAINING_HEADS:
        return make_fine_tuning_batches(task, lengths, batch_size, vocabulary, rng)
    batches = make_pretraining_batches(lengths, batch_size, vocabulary, rng)
    if task == "masked LM":
        for batch in (*batches["ours"], *batches["stock"]):
            del batch["next_sentence_label"]
    return batches


def shortest_length(task: str) -> int:
    """Returns the smallest number of tokens for a name in [`HEADS`]. Pretraining needs words to mask."""
    return 5 if HEADS[task] in PRETRAINING_HEADS else 2


def count_labels(task: str) -> int:
    """Returns `num_labels` for a name in [`HEADS`]."""
    return {"regression": 1, "answers": 2}.get(task, LABELS)


def label_example(task: str, example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Adds random labels."""
    length = len(example["input_ids"])
    if task == "answers":
        start, end = sorted(rng.integers(0, length, 2).tolist())
        return {**example, "start_positions": start, "end_positions": end}
    labels: dict[str, Any] = {
        "next sentence": int(rng.integers(2)),
        "multi-label": rng.integers(0, 2, LABELS).astype(float).tolist(),
        "regression": float(rng.random()),
        "tagging": rng.integers(0, LABELS, length).tolist(),
    }
    return {**example, "labels" if task == "tagging" else "label": labels.get(task, int(rng.integers(LABELS)))}


# --- pieces: correctness ------------------------------------------------------------------------------------------


def make_config(sizes: Sizes, dropout: float, **fields: Any) -> SnugBertConfig:
    """Returns the model's configuration."""
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return SnugBertConfig.from_size(sizes.model, vocab_size=sizes.vocabulary, **rates, **fields)


def step_arguments(args: argparse.Namespace, *flags: str) -> argparse.Namespace:
    """Returns the arguments of `side_by_side.py` for training steps with an update."""
    return argument_parser(None, trains=True).parse_args(["--device", args.device, "--optimizer", *flags])


def check_heads(args: argparse.Namespace) -> Rows:
    """Yields the rows of `correctness`."""
    for task in HEADS:
        for dtype in ("float32", "bfloat16"):
            yield f"{task}, {dtype}", partial(check_head, task, dtype, args)


def check_head(task: str, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Compares loss and gradients of a head with stock BERT's, without dropout, on a packed and a padded batch.

    Returns:
        For each layout, the relative distances of the loss and of the gradients from stock BERT's in float32, and
        whether they are `within` the tolerances. In bfloat16 the tolerance is a multiple of stock BERT's own distance.
    """
    sizes, rng = args.sizes, np.random.default_rng(0)
    shortest, longest = shortest_length(task), sizes.shapes[0][1]
    lengths = [shortest, *rng.integers(shortest, longest + 1, sizes.fine_tuning_batch - 1).tolist()]
    batches = make_task_batches(task, lengths, len(lengths), sizes.vocabulary, rng)
    config = make_config(sizes, 0.0, num_labels=count_labels(task))
    work = Work(task, HEADS[task], config, None, {}, {}, steps=1, trains=True)
    settings = step_arguments(args)
    ours, stock = (build(side, work, settings) for side in SIDES)
    stock.load_state_dict(ours.state_dict())
    reference = copy.deepcopy(stock)
    packed, padded = (to_device(batches[side][0], args.device) for side in SIDES)

    def run(model: PreTrainedModel, batch: Batch, dtype: str) -> float:
        model.zero_grad()
        with autocast(settings, dtype):
            output = model(**batch)
            loss = output.loss if model is ours else comparable_loss(work, output, batch)
        loss.backward()
        return loss.item()

    expected = run(reference, padded, "float32")
    loss_limit, gradient_limit = TOLERANCE["float32"], GRADIENT_TOLERANCE
    if dtype == "bfloat16":
        stock_loss = abs(run(stock, padded, dtype) / expected - 1)
        loss_limit = max(TOLERANCE[dtype], BFLOAT16_FACTOR * stock_loss)
        gradient_limit = BFLOAT16_FACTOR * gradient_distance(stock, reference)
    row: dict[str, Any] = {"loss_limit": loss_limit, "gradient_limit": gradient_limit}
    for name, batch in (("packed", packed), ("padded", padded)):
        loss = abs(run(ours, batch, dtype) / expected - 1)
        gradient = gradient_distance(ours, reference)
        row[name] = {"loss": loss, "gradient": gradient, "within": loss <= loss_limit and gradient <= gradient_limit}
    return row


# --- pieces: steps ------------------------------------------------------------------------------------------------


def time_steps(
    side: str, config: SnugBertConfig, head: str, batches: dict[str, list[Batch]], args: argparse.Namespace, **how: Any
) -> dict[str, Any]:
    """Measures training steps of a side.

    Args:
        side: ours or stock.
        config: our configuration.
        head: the models are SnugBertFor<head> and BertFor<head>.
        batches: the batches of both sides, one per step of a round.
        args: the arguments.
        how: `attention` of stock BERT, and `compiled`: None, "layers" or "model".

    Returns:
        Tokens and FLOPs that the result needs, both per round; seconds of each round and of the warmup; and the peak
        memory in MB (10^6 bytes).
    """
    settings = step_arguments(args, "--stock_attention", how.get("attention", "sdpa"))
    work = Work("", head, config, None, {}, {}, steps=len(batches["stock"]), trains=True)
    torch.compiler.reset()
    model = build(side, work, settings)
    if how.get("compiled") == "layers":
        compile_encoder(model, args.sizes.backend)
    elif how.get("compiled") == "model":
        model.compile(dynamic=True if side == "ours" else None, backend=args.sizes.backend)
    run = make_runner(model, work, settings)
    moved = [to_device(batch, args.device) for batch in batches[side]]

    def seconds() -> float:
        start = time.perf_counter()
        run(moved)
        return time.perf_counter() - start

    warmup = seconds()
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rounds = [seconds() for _ in range(args.sizes.rounds)]
    tokens = count_tokens(batches["stock"])
    return {
        "tokens": tokens,
        "fill": tokens / sum(batch["input_ids"].numel() for batch in batches["stock"]),
        "needed_flops": TRAINING_COST * sum(needed_flops(head, config, batch) for batch in batches["stock"]),
        "seconds": rounds,
        "warmup_seconds": warmup,
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else None,
    }


def pretraining_rows(args: argparse.Namespace, sides: dict[str, dict[str, Any]]) -> Rows:
    """Yields a row per condition, size and side."""
    for dropout, fill in args.sizes.conditions:
        for shape in args.sizes.shapes:
            work = f"pretraining step, {shape[0]} x {shape[1]}, {fill} fill, dropout {dropout:g}"
            for name, how in sides.items():
                yield f"{work} | {name}", partial(time_pretraining, args, shape, fill, dropout, how)


def time_pretraining(
    args: argparse.Namespace, shape: tuple[int, int], fill: str, dropout: float, how: dict[str, Any]
) -> dict[str, Any]:
    """Measures pretraining steps. `how` is passed on to [`time_steps`]."""
    rng = np.random.default_rng(0)
    size, length = shape
    lengths = [length] * size * args.sizes.steps
    if fill == "real":
        lengths = draw_lengths(PAIR_LENGTHS[128 if length <= 128 else 512], len(lengths), length, rng)
    batches = make_pretraining_batches(lengths, size, args.sizes.vocabulary, rng)
    return time_steps(config=make_config(args.sizes, dropout), head="PreTraining", batches=batches, args=args, **how)


def eager_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `eager`. Stock BERT's flash attention needs the package flash_attn."""
    sides: dict[str, dict[str, Any]] = {"stock sdpa": {"side": "stock"}, "SnugBERT": {"side": "ours"}}
    if find_spec("flash_attn"):
        sides["stock flash"] = {"side": "stock", "attention": "flash_attention_2"}
    return pretraining_rows(args, sides)


def compiled_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `compiled`: layer by layer, as `--torch_compile`, and our whole model."""
    sides = {
        "SnugBERT, compiled layers": {"side": "ours", "compiled": "layers"},
        "stock sdpa, compiled layers": {"side": "stock", "compiled": "layers"},
        "SnugBERT, compiled model": {"side": "ours", "compiled": "model"},
    }
    return pretraining_rows(args, sides)


def length_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `lengths`. Compiled layers come last."""
    sides: tuple[dict[str, dict[str, Any]], ...] = (
        {"stock sdpa": {"side": "stock"}, "SnugBERT": {"side": "ours"}},
        {"SnugBERT, compiled layers": {"side": "ours", "compiled": "layers"}},
    )
    for some in sides:
        for task in args.sizes.tasks:
            for name, how in some.items():
                yield f"fine-tuning step, lengths of {task} | {name}", partial(time_fine_tuning, args, task, how)


def time_fine_tuning(args: argparse.Namespace, task: str, how: dict[str, Any]) -> dict[str, Any]:
    """Measures steps of a classifier at the lengths of a task. `how` is passed on to [`time_steps`]."""
    rng = np.random.default_rng(0)
    size = args.sizes.fine_tuning_batch
    lengths = draw_lengths(GLUE_LENGTHS[task], size * args.sizes.steps, 128, rng)
    batches = make_fine_tuning_batches("classification", lengths, size, args.sizes.vocabulary, rng)
    config = make_config(args.sizes, 0.1, num_labels=LABELS)
    return time_steps(config=config, head="SequenceClassification", batches=batches, args=args, **how)


# --- pieces: jobs -------------------------------------------------------------------------------------------------


def write_documents(path: Path, sizes: Sizes) -> Path:
    """Writes documents of 60 sentences with 5 to 30 words, drawn by Zipf's law, if the file does not exist."""
    if path.exists():
        return path
    words = list(make_vocabulary(sizes.vocabulary))[6:]
    weights = 1 / np.arange(1, len(words) + 1)
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 31, (sizes.documents, 60))
    drawn = iter(rng.choice(len(words), lengths.sum(), p=weights / weights.sum()).tolist())
    partial_file = path.with_suffix(".partial")  # an interrupted process leaves no incomplete text
    with partial_file.open("w") as file:
        for document in lengths.tolist():
            for length in document:
                file.write(" ".join(words[index] for index in islice(drawn, length)).capitalize() + ".\n")
            file.write("\n")
    return partial_file.replace(path)


def write_pairs(folder: Path, sizes: Sizes) -> Path:
    """Writes an MRPC with the lengths of the real one. A word at the start of the second sentence is the label."""
    words = np.array(list(make_vocabulary(sizes.vocabulary))[6:])
    rng = np.random.default_rng(0)
    (folder / "MRPC").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", sizes.fine_tuning_examples), ("dev", max(8, sizes.fine_tuning_examples // 9))):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for length in draw_lengths(GLUE_LENGTHS["mrpc"], count, 128, rng):
            label = int(rng.integers(2))
            sentences = [" ".join(rng.choice(words[2:], (length - 3) // 2)) for _ in range(2)]
            lines.append(f"{label}\t0\t0\t{sentences[0]}\t{words[label]} {sentences[1]}")
        (folder / "MRPC" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def make_empty(folder: Path) -> Path:
    """Makes an empty folder. An interrupted job may have left files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def make_flags(settings: dict[str, Any]) -> list[str]:
    """Returns settings as flags of a command line."""
    return [str(part) for name, value in settings.items() for part in (f"--{name}", value)]


def run_python(arguments: list[str], log: Path, args: argparse.Namespace) -> float:
    """Runs Python in a new process with `log` as its output, and returns the seconds.

    Raises:
        RuntimeError: it failed.
    """
    repository = Path(__file__).parents[1]
    path = os.pathsep.join([str(repository), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.run(
            [sys.executable, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
            timeout=60 * args.minutes,
        )
    seconds = time.perf_counter() - start
    if process.returncode:
        lines = log.read_text().strip().splitlines() or [f"exit status {process.returncode}"]
        raise RuntimeError(f"{lines[-1]} (see {log})")
    return seconds


def pretraining_command(args: argparse.Namespace, steps: int, output_dir: Path, logging_steps: int) -> list[str]:
    """Returns the arguments of `snugbert pretrain`, and writes its text and tokenizer if none is given."""
    _, batch_size, length = args.sizes.pretraining
    text, tokenizer = args.train_file, args.tokenizer_name
    if text is None:
        text = [str(write_documents(args.output_dir / "documents.txt", args.sizes))]
        tokenizer = str(args.output_dir / "tokenizer")
        SnugBertTokenizer(vocab=make_vocabulary(args.sizes.vocabulary)).save_pretrained(tokenizer)
    settings = {
        "config_name": args.sizes.model,
        "tokenizer_name": tokenizer,
        "output_dir": output_dir,
        "max_steps": steps,
        "max_seq_length": length,
        "per_device_train_batch_size": batch_size,
        "logging_steps": logging_steps,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **({"use_cpu": True, "dataloader_num_workers": 0} if args.rehearse else {}),
    }
    return ["pretrain", "--train_file", *text, *make_flags(settings)]


def pretrain_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `pretrain`, with the command's own precision and data workers."""
    steps, batch_size, length = args.sizes.pretraining
    job = f"snugbert pretrain, {steps} steps, {batch_size} x {length}"
    yield f"{job} | SnugBERT", partial(run_pretraining, args, "eager")
    if not args.rehearse:  # compiling on a CPU takes minutes
        yield f"{job} | SnugBERT, compiled layers", partial(run_pretraining, args, "compiled", "--torch_compile")


def run_pretraining(args: argparse.Namespace, name: str, *flags: str) -> dict[str, Any]:
    """Runs `snugbert pretrain` in the folder `name`. The rates are medians of the second half of its log."""
    folder = make_empty(args.output_dir / "pretrain" / name)
    steps = args.sizes.pretraining[0]
    command = pretraining_command(args, steps, folder / "run", logging_steps=max(1, steps // 10))
    seconds = run_python(["-m", "snugbert", *command, *flags], folder / "log", args)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "tokens_per_second" in line]
    steady = logged[len(logged) // 2 :]  # without compilation and the start of the data workers
    mfus = [line["mfu"] for line in steady if "mfu" in line]  # none in a rehearsal on a CPU
    return {
        "job_seconds": seconds,
        "tokens_per_second": median(line["tokens_per_second"] for line in steady),
        **({"mfu": median(mfus)} if mfus else {}),
        "losses": [line["loss"] for line in logged],
    }


def finetune_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `finetune`."""
    for side, name in (("ours", "SnugBERT"), ("stock", "stock sdpa")):
        yield f"fine-tuning job, MRPC | {name}", partial(run_fine_tuning, args, side)


def run_fine_tuning(args: argparse.Namespace, side: str) -> dict[str, Any]:
    """Fine-tunes random weights on MRPC for three epochs: `snugbert glue` or `stock_finetuning.py`."""
    folder = make_empty(args.output_dir / "finetune" / side)
    data = Path(args.glue_dir) if args.glue_dir else write_pairs(folder / "data/glue", args.sizes)
    vocabulary = make_vocabulary(args.sizes.vocabulary)
    source = args.tokenizer_name
    tokenizer = BertTokenizer.from_pretrained(source) if source else BertTokenizer(vocab=vocabulary)
    tokenizer.save_pretrained(folder / "model")
    config = make_config(args.sizes, 0.1).to_dict() | {"vocab_size": len(tokenizer), "model_type": "bert"}
    torch.manual_seed(0)
    BertModel(BertConfig(**config)).save_pretrained(folder / "model")
    command = ["-m", "snugbert", "glue", "--task_name", "mrpc", "--data_dir", str(data), "--do_train", "--do_eval"]
    command += ["--eval_strategy", "no"]  # as stock_finetuning.py: scored at the end only
    if side == "stock":
        script = str(Path(__file__).with_name("stock_finetuning.py"))
        command = [script, "--task", "mrpc", "--data_dir", str(data.parent), "--padding", "longest"]
    settings = {
        "model_name_or_path": folder / "model",
        "output_dir": folder / "run",
        "num_train_epochs": 3,
        "per_device_train_batch_size": args.sizes.fine_tuning_batch,
        "learning_rate": 5e-5,
        "optim": "adamw_torch_fused",
        "max_seq_length": 128,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **({"use_cpu": True} if args.rehearse else {"bf16": True}),
    }
    seconds = run_python([*command, *make_flags(settings)], folder / "log", args)
    train, evaluation = (json.loads((folder / f"run/{name}_results.json").read_text()) for name in ("train", "eval"))
    return {
        "job_seconds": seconds,
        "training_seconds": train["train_runtime"],
        "accuracy": evaluation["eval_accuracy"],
    }


# --- pieces: profile ----------------------------------------------------------------------------------------------


def profile_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `profile`."""
    for dtype in ("bfloat16", "float32"):
        for task in ("pretraining", "classification"):
            yield f"{task}, {dtype}", partial(profile_steps, task, dtype, args)
    if args.device == "cuda":
        yield "waits of `snugbert pretrain`", partial(find_waits_of_job, args)


def profile_steps(task: str, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Profiles a round of steps on packed batches.

    Returns:
        `waits`: the places where the CPU waited for the GPU, and how often per step; `attention`: the attention
        kernels; `within`: whether these are the expected kernels; `kernels`: the slowest kernels, in ms per step;
        `busy`: the time of the kernels with the profiler / the time of a round without it.
    """
    sizes, rng = args.sizes, np.random.default_rng(0)
    size, length = sizes.fine_tuning_batch, sizes.shapes[0][1]
    lengths = draw_lengths(PAIR_LENGTHS[128], size * sizes.steps, length, rng)
    batches = make_task_batches(task, lengths, size, sizes.vocabulary, rng)["ours"]
    work = Work(task, HEADS[task], make_config(sizes, 0.1, num_labels=LABELS), None, {}, {}, steps=1, trains=True)
    settings = step_arguments(args, "--dtype", dtype)
    run = make_runner(build("ours", work, settings), work, settings)
    moved = [to_device(batch, args.device) for batch in batches]
    run(moved)
    waits = find_waits(lambda: run(moved)) if args.device == "cuda" else {}
    start = time.perf_counter()
    run(moved)
    seconds = time.perf_counter() - start  # the profiler makes the host several times slower
    activities = [torch.profiler.ProfilerActivity.CPU]
    if args.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        run(moved)
    on_gpu = torch.autograd.DeviceType.CUDA
    kernels = {
        event.key: event.self_device_time_total / 1e3 / len(moved)
        for event in profiler.key_averages()
        if event.device_type == on_gpu and not event.is_user_annotation  # such as "Optimizer.step"
    }
    slowest = sorted(kernels, key=lambda name: kernels[name], reverse=True)[:SHOWN_KERNELS]
    attention = [name for name in kernels if re.search("flash|fmha|attention|sdpa", name, re.IGNORECASE)]
    return {
        "waits": {place: count / len(moved) for place, count in waits.items()},
        "attention": attention,
        "within": any(ATTENTION_KERNELS[dtype] in name for name in attention) if args.device == "cuda" else None,
        "kernels": {name: kernels[name] for name in slowest},
        "busy": sum(kernels.values()) * len(moved) / 1e3 / seconds,
    }


def find_waits(run: Callable[[], None]) -> dict[str, int]:
    """Counts the waits for the GPU at each place in the code."""
    places: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if WAIT in str(warning.message):
            place = f"{warning.filename}:{warning.lineno}"
            places[place] = places.get(place, 0) + 1
    return places


def find_waits_of_job(args: argparse.Namespace) -> dict[str, Any]:
    """Counts the waits per step of `snugbert pretrain` between log lines.

    Two jobs differ only in their number of steps, and log once, at their end. The difference of their waits
    excludes the waits at the start and at the log line.
    """
    folder = make_empty(args.output_dir / "profile")
    short, long = JOBS_FOR_WAITS
    before, after = (count_waits_of_job(args, steps, folder / f"{steps}-steps") for steps in JOBS_FOR_WAITS)
    differences = {place: after[place] - before[place] for place in (after | before)}
    return {"waits": {place: count / (long - short) for place, count in differences.items() if count}}


def count_waits_of_job(args: argparse.Namespace, steps: int, folder: Path) -> Counter[str]:
    """Runs `snugbert pretrain` without log lines before its last step, and counts the waits at each place."""
    folder.mkdir()
    command = pretraining_command(args, steps, folder / "run", logging_steps=steps)
    code = (
        "import sys, warnings, torch; torch.cuda.set_sync_debug_mode('warn'); from snugbert_cli import main; "
        "warnings.simplefilter('always'); main(sys.argv[1:])"
    )
    run_python(["-c", code, *command], folder / "log", args)
    return Counter(re.findall(rf"^(.+?:\d+): UserWarning: {WAIT}", (folder / "log").read_text(), re.MULTILINE))


# --- the table ----------------------------------------------------------------------------------------------------


def print_table(args: argparse.Namespace) -> None:
    """Prints all results as Markdown."""
    rows = {piece: read_rows(args.output_dir / f"{piece}.jsonl") for piece in PIECES}
    devices = [row for piece in rows.values() for row in piece if row["row"] == "device"]
    if not devices:
        raise SystemExit(f"error: --output_dir: no results in {args.output_dir}.")
    machine = devices[0]["machine"]
    best = max(row["bfloat16_flops"] for row in devices)
    datasheet = next((flops for name, flops in DATASHEET.items() if name in machine["device"]), None)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    limits = f"Best bfloat16 product: {best / 1e12:,.1f} TFLOP/s"
    print(limits + (f", datasheet {datasheet / 1e12:,.0f}.\n" if datasheet else ".\n"))
    print(HEADER)
    for piece in ("eager", "compiled", "lengths", "pretrain", "finetune"):
        for row in rows[piece]:
            if row["row"] != "device":
                print(format_row(row, rows, best, datasheet))
    print()
    for row in rows["correctness"]:
        if row["row"] != "device":
            print(f"- {row['row']}: {format_check(row)}")
    for row in rows["profile"]:
        if row["row"] != "device":
            print(f"- profile of {row['row']}: {format_profile(row)}")


def format_row(row: dict[str, Any], rows: dict[str, Any], best: float, datasheet: float | None) -> str:
    """Formats steps or a job. The ratios are to stock BERT with sdpa, not compiled, on the same work.

    For jobs, it is the ratio of the training times.
    """
    work, _, side = row["row"].partition(" | ")
    if "error" in row:
        return f"| {work} | {side} | {row['error']} |" + " |" * 4
    stock = next(
        (
            other
            for piece in rows.values()
            for other in piece
            if other["row"] == f"{work} | stock sdpa" and "error" not in other
        ),
        None,
    )
    if "needed_flops" not in row:  # a job
        rate = f"{row['tokens_per_second']:,.0f}; " if "tokens_per_second" in row else ""
        training = f", training {row['training_seconds']:.0f} s" if "training_seconds" in row else ""
        cells = [f"{rate}job {row['job_seconds']:.0f} s{training}"]
        mfu = ""
        if "mfu" in row:  # a share of the rate that the job measured; the rate of its piece is closest to it
            rate_of_piece = next(other["bfloat16_flops"] for other in rows["pretrain"] if other["row"] == "device")
            mfu = format_mfu(row["mfu"] * rate_of_piece, best, datasheet)
        speed = f"{stock['training_seconds'] / row['training_seconds']:.2f}" if stock else ""
        return "| " + " | ".join([work, side, *cells, mfu, "", speed, ""]) + " |"
    rates = sorted(row["tokens"] / seconds for seconds in row["seconds"])
    mfu = format_mfu(row["needed_flops"] / median(row["seconds"]), best, datasheet)
    memory = speed = of_stock = ""
    if row["peak_mb"]:
        memory = f"{row['peak_mb']:,.0f}"
    if stock:
        speed = f"{median(stock['seconds']) / median(row['seconds']):.2f}"
        of_stock = f"{row['peak_mb'] / stock['peak_mb']:.2f}" if row["peak_mb"] else ""
    cells = [work, side, f"{median(rates):,.0f} ({rates[0]:,.0f}-{rates[-1]:,.0f})", mfu, memory, speed, of_stock]
    return "| " + " | ".join(cells) + " |"


def format_mfu(flops: float, best: float, datasheet: float | None) -> str:
    """Formats FLOPs per second as shares of the datasheet's, if known, and of the best product's."""
    return (f"{flops / datasheet:.1%}, " if datasheet else "") + f"{flops / best:.1%}"


def format_check(row: dict[str, Any]) -> str:
    """Formats a row of `correctness`."""
    if "error" in row:
        return row["error"]
    found = [
        f"{name} {'equal' if row[name]['within'] else 'DIFFERENT'} (loss {row[name]['loss']:.1e}, gradients "
        f"{row[name]['gradient']:.1e})"
        for name in ("packed", "padded")
    ]
    return f"{', '.join(found)}; allowed {row['loss_limit']:.1e}, {row['gradient_limit']:.1e}"


def format_profile(row: dict[str, Any]) -> str:
    """Formats a row of `profile`."""
    if "error" in row:
        return row["error"]
    text = f"{sum(row['waits'].values()):.1f} waits per step"
    text += "".join(f"\n  - {count:.1f} at {place}" for place, count in row["waits"].items())
    if "kernels" in row:
        names = ", ".join(f"`{name[:60]}`" for name in row["attention"]) or "none found"
        unexpected = " NOT AS EXPECTED" if row["within"] is False else ""
        text += f"\n  - GPU busy {row['busy']:.0%}; attention{unexpected}: {names}"
        text += "".join(f"\n  - {ms:.2f} ms {name[:90]}" for name, ms in row["kernels"].items())
    return text


# --- running a piece ----------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "correctness": check_heads,
    "eager": eager_rows,
    "compiled": compiled_rows,
    "lengths": length_rows,
    "pretrain": pretrain_rows,
    "finetune": finetune_rows,
    "profile": profile_rows,
}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Reads the rows of a piece; none if it has not run."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_piece(args: argparse.Namespace) -> None:
    """Measures the rows of a piece that are not in its file.

    Raises:
        SystemExit: the GPU refuses further work after an error. A new process can continue.
    """
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / f"{args.piece}.jsonl"
    done = {row["row"] for row in read_rows(path)}
    deadline = time.monotonic() + 60 * args.minutes
    for name, measure in [("device", partial(describe_device, args)), *PIECES[args.piece](args)]:
        if name in done:
            continue
        if time.monotonic() > deadline:
            print(f"{args.piece}: the time is over before '{name}'. Run the piece again to continue.", flush=True)
            return
        start = time.monotonic()
        try:
            row = measure()
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        row = {"row": name, **row, "measured_in_seconds": time.monotonic() - start}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{args.piece}: {name}: {row.get('error', 'measured')}", flush=True)
        if "CUDA error" in row.get("error", ""):
            raise SystemExit(f"{args.piece}: {row['error']}. Run the piece again to continue.")
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a GPU


def describe_device(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the machine, and the FLOPs per second of large products."""
    return {"machine": describe_machine(args.device), "bfloat16_flops": peak_flops(args.device, torch.bfloat16)}


def main(argv: list[str]) -> None:
    """Runs a piece, or prints the table."""
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.piece == "table":
        print_table(args)
    else:
        run_piece(args)


if __name__ == "__main__":
    main(sys.argv[1:])
