"""The pieces of `benchmarks/gpu.sh quick`: SnugBERT and its rivals on one GPU.

    python benchmarks/gpu.py steps --output_dir gpu-results

Pieces:

- `correctness`: losses and gradients against stock BERT's. First the compiled step and the step in CUDA graphs, then
  the eager step with every head.
- `steps`: whole pretraining steps (forward, backward, clipping, fused AdamW), with the lengths of real sentence pairs.
  Rivals are stock BERT as a user can make it fast, and ModernBERT of transformers with random weights. Of our best
  side, also the slowest kernels, how busy the GPU is, and where the CPU waits for it.
- `lengths`: the same for a classifier at the lengths of GLUE tasks.
- `processes`: two processes with gloo on the one GPU, without DDP, against one process.

A piece appends lines to `<output_dir>/<piece>.jsonl`, see `gpu_rows.py`. The last line of a row counts. Rows in the
file are not measured again. `<output_dir>/log.txt` has the tracebacks and SnugBERT's log lines.

No data is needed: token ids are random, and lengths follow the tables in `gpu_batches.py`. Batches are on the GPU
before the clock starts. A round of steps waits for the GPU once, after its last step.
"""

import argparse
import copy
import gc
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_batches import (
    GLUE_LENGTHS,
    HEADS,
    LABELS,
    PAIR_LENGTHS,
    draw_lengths,
    make_fine_tuning_batches,
    make_pretraining_batches,
    make_pretraining_examples,
)
from gpu_rows import Rows, measure_rows, parse_piece
from side_by_side import (
    GRADIENT_TOLERANCE,
    SIDES,
    TOLERANCE,
    Batch,
    Work,
    autocast,
    build,
    comparable_loss,
    count_tokens,
    describe_machine,
    gradient_distance,
    needed_flops,
    to_device,
)
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedModel

from snugbert import SnugBertConfig, SnugBertForPreTraining
from snugbert.gpu.compilation import compile_model
from snugbert.gpu.cuda_graphs import CudaGraphs, note_waits
from snugbert.gpu.row_sizes import choose_fine_tuning_multiple, choose_pretraining_multiple, pad_row
from snugbert.modeling_snugbert import IGNORE_INDEX
from snugbert.trainers.pretraining.pretraining_arguments import PretrainingArguments
from snugbert.trainers.pretraining.pretraining_trainer import PretrainingTrainer
from snugbert.trainers.pretraining.training_log import TRAINING_COST

# In bfloat16, our gradients may differ from stock BERT's float32 gradients by this times what stock BERT's own differ.
BFLOAT16_FACTOR = 1.5
CHECKED_BATCHES = 3
# Passes over all batches before a measurement. CudaGraphs records the third batch of a size.
WARMUP_PASSES = 3
DROPOUT = 0.1
CLIPPING = 1.0
SHOWN_KERNELS = 20
PROFILED_STEPS = 3
PROCESSES, STEPS_OF_PROCESSES = 2, 12
# Relative distance of losses, and distance of the weights as a share of what training changed: bfloat16 rounds.
LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-2, 0.2


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    model: str  # name of the model's size
    vocabulary: int
    shapes: tuple[tuple[int, int], ...]  # batch size and maximum length of the pretraining steps
    round_tokens: int  # a round of steps has at least so many tokens, unless it would need more than `most_steps`
    most_steps: int  # most steps of a round, each on its own batch
    rounds: int
    batch: int  # batch size of fine-tuning
    # With 64 filled rows, compiled layers run what they run at 256 x 128: from 6,827 tokens on, inductor fuses
    # LayerNorm's backward pass.
    checked_batch: int
    tasks: tuple[str, ...]  # names in `GLUE_LENGTHS`
    checked: tuple[tuple[str, str], ...]  # heads in `HEADS`, and dtypes, of the compiled steps and the steps in graphs
    heads: tuple[str, ...]  # of the eager steps that are checked, in bfloat16
    backend: str  # of torch.compile
    modern: tuple[tuple[str, int], ...] = ()  # fields of ModernBERT's configuration


BASE = Sizes(
    model="base",
    vocabulary=30_522,
    shapes=((256, 128), (32, 128)),
    round_tokens=160_000,
    most_steps=10,
    rounds=5,
    batch=32,
    checked_batch=64,
    tasks=("sst2", "mrpc"),
    checked=(("pretraining", "bfloat16"), ("classification", "bfloat16"), ("pretraining", "float32")),
    heads=("pretraining", "classification", "tagging"),  # the paths through the last layer
    backend="inductor",
)
REHEARSAL = Sizes(
    model="tiny",
    vocabulary=300,
    shapes=((4, 24),),
    round_tokens=150,
    most_steps=3,
    rounds=2,
    batch=4,
    checked_batch=4,
    tasks=("sst2",),
    checked=(("pretraining", "float32"),),
    heads=("tagging",),
    backend="eager",
    modern=(("hidden_size", 32), ("num_hidden_layers", 2), ("num_attention_heads", 2), ("intermediate_size", 48)),
)


@dataclass(frozen=True)
class Side:
    """A way to run a step.

    Attributes:
        name: as in the table. Names of stock BERT begin with "stock".
        model: "ours", "stock" or "modern".
        mode: how the model is compiled. "parts": ours. Otherwise a mode of torch.compile for the whole forward pass
            with its loss, on batches padded to one size. None: not compiled.
        graphs: whether forward and backward run as CUDA graphs, on rows that are filled up.
        gathers: whether stock BERT's head computes labeled tokens only, which users can do in a few lines.
        attention: stock BERT's implementation. FlashAttention removes padding, but only within attention.
    """

    name: str
    model: str
    mode: str | None = None
    graphs: bool = False
    gathers: bool = False
    attention: str = "sdpa"


EAGER, COMPILED = Side("SnugBERT", "ours"), Side("SnugBERT, compiled", "ours", "parts")
GRAPHS, BEST = Side("SnugBERT, graphs", "ours", None, True), Side("SnugBERT, compiled, graphs", "ours", "parts", True)
STOCK, STOCK_COMPILED, STOCK_GRAPHS, STOCK_GATHERED, MODERN = (
    Side("stock sdpa", "stock"),
    Side("stock sdpa, compiled", "stock", "default"),
    Side("stock sdpa, reduce-overhead", "stock", "reduce-overhead"),
    Side("stock sdpa, reduce-overhead, labels gathered", "stock", "reduce-overhead", gathers=True),
    Side("ModernBERT, compiled", "modern", "default"),
)
STEP_SIDES = (BEST, STOCK, STOCK_GATHERED, STOCK_COMPILED, MODERN, STOCK_GRAPHS, COMPILED, EAGER, GRAPHS)
FINE_TUNING_SIDES = (BEST, STOCK, STOCK_GRAPHS, GRAPHS)
if find_spec("flash_attn"):
    STOCK_FLASH = Side("stock flash", "stock", attention="flash_attention_2")
    STEP_SIDES, FINE_TUNING_SIDES = (*STEP_SIDES, STOCK_FLASH), (*FINE_TUNING_SIDES, STOCK_FLASH)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU, to test this script")
    args = parse_piece(parser, [*PIECES, "worker"], argv)
    args.sizes = REHEARSAL if args.rehearse else BASE
    args.dtype, args.seed = "bfloat16", 42  # of the steps
    return args


def make_config(sizes: Sizes, dropout: float, **fields: Any) -> SnugBertConfig:
    """Returns the model's configuration."""
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return SnugBertConfig.from_size(sizes.model, vocab_size=sizes.vocabulary, **rates, **fields)


@cache
def pretraining_batches(sizes: Sizes, shape: tuple[int, int]) -> dict[str, list[Batch]]:
    """Returns the batches of a round, for both sides."""
    rng, (size, longest) = np.random.default_rng(0), shape
    count = min(sizes.most_steps, -(-sizes.round_tokens // (size * longest)))
    lengths = draw_lengths(PAIR_LENGTHS, size * count, longest, rng)
    return make_pretraining_batches(lengths, size, sizes.vocabulary, rng)


@cache
def fine_tuning_batches(sizes: Sizes, task: str) -> dict[str, list[Batch]]:
    """Returns the batches of a round of a classifier at the lengths of a task, for both sides."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(GLUE_LENGTHS[task], sizes.most_steps * sizes.batch, 128, rng)
    return make_fine_tuning_batches("classification", lengths, sizes.batch, sizes.vocabulary, rng)


@dataclass(frozen=True)
class Examples:
    """The examples of both sides' batches, as the trainer's rule for the sizes of rows reads a dataset."""

    lengths: np.ndarray  # tokens of each example
    max_seq_length: int

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": [0] * int(self.lengths[row])}


def read_lengths(batches: dict[str, list[Batch]]) -> np.ndarray:
    """Returns the tokens of each example."""
    return np.concatenate([batch["attention_mask"].sum(1).numpy() for batch in batches["stock"]])


def format_shape(shape: tuple[int, int]) -> str:
    """Formats batch size and maximum length."""
    return f"{shape[0]} x {shape[1]}"


# --- steps --------------------------------------------------------------------------------------------------------


def make_loader(args: argparse.Namespace, head: str) -> Callable[[str], PreTrainedModel]:
    """Returns a function that builds "ours", "stock" or "modern". The first two have the same initial weights.

    Args:
        args: the arguments.
        head: the models are SnugBertFor<head> and BertFor<head>.
    """
    work = Work("", head, make_config(args.sizes, DROPOUT, num_labels=LABELS), None, {}, {}, steps=1, trains=True)
    initial: dict[str, torch.Tensor] = {}  # on the CPU, so that they do not add to the GPU's memory

    def load(side: str) -> PreTrainedModel:
        torch.compiler.reset()
        if side == "modern":
            rates = {"mlp_dropout": DROPOUT, "embedding_dropout": DROPOUT}
            config = ModernBertConfig(sparse_prediction=True, **rates, **dict(args.sizes.modern))
            return ModernBertForMaskedLM(config).to(args.device).train()
        if not initial:
            values = build("ours", work, args).state_dict()
            initial.update({name: value.to("cpu", copy=True) for name, value in values.items()})
        model = build(side, work, args)
        model.load_state_dict(initial)
        return model

    return load


def make_loss(side: Side, model: PreTrainedModel, backend: str) -> Callable[[Batch], torch.Tensor]:
    """Compiles a model as its side says, and returns a function that computes the loss of a batch."""
    if side.mode == "parts":
        compile_model(model, backend=backend)
    compute = partial(gather_labels, model) if side.gathers else lambda batch: model(**batch).loss
    if side.mode in (None, "parts"):
        return compute
    mode = None if backend != "inductor" else side.mode
    return torch.compile(compute, backend=backend, mode=mode, dynamic=False)


def gather_labels(model: Any, batch: Batch) -> torch.Tensor:
    """Computes stock BERT's pretraining loss with logits of labeled tokens only."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    encoded = model.bert(**inputs)
    labeled = encoded.last_hidden_state.flatten(0, 1).index_select(0, batch["label_indices"])
    logits = model.cls.predictions(labeled).float(), model.cls.seq_relationship(encoded.pooler_output).float()
    losses = map(torch.nn.functional.cross_entropy, logits, (batch["targets"], batch["next_sentence_label"]))
    return sum(losses)  # type: ignore[return-value]


def make_step(
    loss: Callable[[Batch], torch.Tensor], model: PreTrainedModel, args: argparse.Namespace, dtype: str, graphs: bool
) -> Callable[[Batch], torch.Tensor]:
    """Returns a function that runs forward and backward on a batch, and returns the loss."""

    def step(batch: Batch) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        with autocast(args, dtype):
            value = loss(batch)
        value.backward()
        return value.detach().clone()

    return CudaGraphs(step, model) if graphs else step


def place_batches(side: Side, head: str, batches: dict[str, list[Batch]], multiple: int, device: str) -> list[Batch]:
    """Returns the batches of a side on the device.

    Rows for our graphs are filled up to a multiple of tokens, as PretrainingTrainer passes them. Batches of a whole
    compiled model have one size: stock users who compile pad to it.
    """
    if side.model == "ours":
        own = [pad_row(batch, multiple) if side.graphs else batch for batch in batches["ours"]]
        options = {"count_correct": True} if head == "PreTraining" else {}
        return [to_device(batch, device) | options for batch in own]
    own = [dict(batch) for batch in batches["stock"]]
    if side.mode is not None:
        longest = max(batch["input_ids"].shape[1] for batch in own)
        own = [{name: lengthen(value, longest, name) for name, value in batch.items()} for batch in own]
    if side.gathers:
        indices = [(batch["labels"].flatten() != IGNORE_INDEX).nonzero().flatten() for batch in own]
        most = max(map(len, indices))
        for batch, found in zip(own, indices, strict=True):
            targets = torch.full((most,), IGNORE_INDEX)
            targets[: len(found)] = batch.pop("labels").flatten()[found]
            batch |= {"targets": targets, "label_indices": torch.cat([found, found.new_zeros(most - len(found))])}
    if side.model == "modern":
        own = [{name: batch[name] for name in ("input_ids", "attention_mask", "labels")} for batch in own]
    return [to_device(batch, device) for batch in own]


def lengthen(values: torch.Tensor, longest: int, name: str) -> torch.Tensor:
    """Pads the rows of a padded batch to `longest` tokens. Labels of examples stay."""
    if values.dim() == 1:
        return values
    padding = (0, longest - values.shape[1])
    return torch.nn.functional.pad(values, padding, value=IGNORE_INDEX if name == "labels" else 0)


def make_run(step: Callable[[Batch], Any], model: PreTrainedModel, device: str) -> Callable[[list[Batch]], float]:
    """Returns a function that runs a step, clipping and an update per batch, and returns the seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run(batches: list[Batch]) -> float:
        start = time.perf_counter()
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            step(batch)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING, foreach=True)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return run


def time_steps(
    side: Side,
    load: Callable[[str], PreTrainedModel],
    head: str,
    batches: dict[str, list[Batch]],
    multiple: int,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Measures training steps of a side.

    Args:
        side: the side.
        load: from [`make_loader`].
        head: the models are SnugBertFor<head> and BertFor<head>.
        batches: the batches of both sides, one per step of a round.
        multiple: of tokens in the rows of graphs.
        args: the arguments.

    Returns:
        `tokens` and `needed_flops` of a round; `steps` of a round; `seconds` of each round and of the warmup; `losses`
        of the last batch after all rounds, twice with the same weights and another dropout; `fill`, the share of
        positions that are tokens; `graphs` and `reason`, see [`describe_graphs`]; peak memory in MB (10^6 bytes):
        allocated, and reserved by torch. With graphs it includes the warmup, because torch counts a graph's memory
        only while it is recorded. Of our best side, also [`profile_steps`].
    """
    model = load(side.model)
    if side.model == "stock":
        model.set_attn_implementation(side.attention)
    moved = place_batches(side, head, batches, multiple, args.device)
    step = make_step(make_loss(side, model, args.sizes.backend), model, args, args.dtype, side.graphs)
    run = make_run(step, model, args.device)
    has_graphs = side.graphs or side.mode == "reduce-overhead"
    reset_peak_memory(args.device)
    warmup = sum(run(moved) for _ in range(WARMUP_PASSES))
    if not has_graphs:
        reset_peak_memory(args.device)
    seconds = [run(moved) for _ in range(args.sizes.rounds)]
    flops = modern_flops if side.model == "modern" else partial(needed_flops, head)
    tokens = count_tokens(batches["stock"])
    return {
        "tokens": tokens,
        "needed_flops": TRAINING_COST * sum(flops(model.config, batch) for batch in batches["stock"]),
        "steps": len(moved),
        "seconds": seconds,
        "warmup_seconds": warmup,
        "fill": tokens / sum(batch["input_ids"].numel() for batch in moved),
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else None,
        "reserved_mb": torch.cuda.max_memory_reserved() / 1e6 if args.device == "cuda" else None,
        "losses": [compute_loss_again(step, model, moved[-1]) for _ in range(2)],
        **describe_graphs(step),
        **(profile_steps(run, moved, args.device) if side is BEST else {}),
    }


def modern_flops(config: Any, batch: Batch) -> int:
    """Counts the FLOPs of ModernBERT's forward pass as [`needed_flops`] does, with at most 128 tokens."""
    lengths, labeled = batch["attention_mask"].sum(1), int((batch["labels"] != IGNORE_INDEX).sum())
    H, layers = config.hidden_size, config.num_hidden_layers
    per_token = layers * (4 * 2 * H * H + 3 * 2 * H * config.intermediate_size)
    head = labeled * 2 * (H * H + H * config.vocab_size)
    return int(lengths.sum()) * per_token + layers * 4 * H * int((lengths**2).sum()) + head


def compute_loss_again(step: Callable[[Batch], torch.Tensor], model: PreTrainedModel, batch: Batch) -> float:
    """Runs a step without gradients of earlier steps, which torch's own CUDA graphs would overwrite."""
    model.zero_grad()
    return step(batch).item()


def profile_steps(run: Callable[[list[Batch]], float], batches: list[Batch], device: str) -> dict[str, Any]:
    """Profiles some steps.

    Returns:
        `kernels`, the ms and the number of the slowest ones in a step; `number` of all kernels; `busy`, the time of
        all kernels / the time of a step without the profiler; `waits` of the CPU for the GPU in a step, by place.
    """
    profiled = batches[:PROFILED_STEPS]
    seconds = min(run(profiled) for _ in range(3)) / len(profiled)  # the profiler makes the CPU several times slower
    waits: list[str] = []
    with note_waits(waits) if device == "cuda" else nullcontext():
        run(profiled)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities[: 1 + (device == "cuda")]) as profiler:
        run(profiled)
    kernels = average_kernels(profiler.key_averages(), len(profiled))
    slowest = sorted(kernels, key=lambda name: kernels[name], reverse=True)[:SHOWN_KERNELS]
    return {
        "kernels": {name: kernels[name] for name in slowest},
        "number": sum(number for _, number in kernels.values()),
        "busy": sum(ms for ms, _ in kernels.values()) / 1e3 / seconds,
        "waits": {place: count / len(profiled) for place, count in Counter(waits).items()},
    }


def average_kernels(events: Iterable[Any], steps: int) -> dict[str, tuple[float, float]]:
    """Returns the ms and the number of each kernel in a step, from a profile of some steps."""
    return {
        event.key: (event.self_device_time_total / 1e3 / steps, event.count / steps)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.is_user_annotation  # such as "Optimizer.step"
    }


def describe_graphs(step: Callable[[Batch], Any]) -> dict[str, Any]:
    """Returns the number of recorded `graphs`, and the `reason` if there are none; None without our CUDA graphs."""
    if not isinstance(step, CudaGraphs):
        return {"graphs": None, "reason": None}
    return {"graphs": step.count, "reason": step.reason or ("" if step.count else "the GPU is the limit")}


def reset_peak_memory(device: str) -> None:
    """Starts a new measurement of peak memory, without the memory that torch keeps for later."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def step_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `steps`."""
    load = make_loader(args, "PreTraining")
    for side, shape in product(STEP_SIDES, args.sizes.shapes):
        yield f"pretraining, {format_shape(shape)} | {side.name}", partial(time_pretraining, side, load, shape, args)


def time_pretraining(
    side: Side, load: Callable[[str], PreTrainedModel], shape: tuple[int, int], args: argparse.Namespace
) -> dict[str, Any]:
    """Measures pretraining steps."""
    batches = pretraining_batches(args.sizes, shape)
    multiple = choose_pretraining_multiple(shape[0], Examples(read_lengths(batches), shape[1]))
    return time_steps(side, load, "PreTraining", batches, multiple, args)


def length_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `lengths`."""
    load = make_loader(args, "SequenceClassification")
    for side, task in product(FINE_TUNING_SIDES, args.sizes.tasks):
        yield f"classifier, lengths of {task} | {side.name}", partial(time_fine_tuning, side, load, task, args)


def time_fine_tuning(
    side: Side, load: Callable[[str], PreTrainedModel], task: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures steps of a classifier."""
    batches = fine_tuning_batches(args.sizes, task)
    multiple = choose_fine_tuning_multiple(args.sizes.batch, read_lengths(batches))
    return time_steps(side, load, "SequenceClassification", batches, multiple, args)


# --- correctness --------------------------------------------------------------------------------------------------


def correctness_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `correctness`. Compiled code is the same for all models of a dtype, so it is made once."""
    prepare = lru_cache(1)(partial(Check, args))
    for (task, dtype), side in [
        *product(args.sizes.checked, (BEST, COMPILED)),
        *product(args.sizes.checked, (GRAPHS,)),
    ]:
        yield f"{task}, {dtype} | {side.name}", partial(check_step, prepare, task, dtype, side, args)
    for task in args.sizes.heads:
        yield f"{task}, bfloat16 | {EAGER.name}", partial(check_head, prepare, task, "bfloat16", args)


class Check:
    """Compares losses and gradients with stock BERT's in float32, without dropout, on the same weights.

    Args:
        args: the arguments.
        task: name in [`HEADS`].
        side: a side of our model.
    """

    def __init__(self, args: argparse.Namespace, task: str, mode: str | None):
        sizes, rng = args.sizes, np.random.default_rng(0)
        shortest = 5 if task == "pretraining" else 2  # pretraining needs words to mask
        lengths = rng.integers(shortest, sizes.shapes[0][1] + 1, sizes.checked_batch * CHECKED_BATCHES)
        lengths[0] = shortest
        shape = (lengths.tolist(), sizes.checked_batch, sizes.vocabulary, rng)
        self.batches = (
            make_pretraining_batches(*shape) if task == "pretraining" else make_fine_tuning_batches(task, *shape)
        )
        config = make_config(sizes, 0.0, num_labels=LABELS)
        self.work = Work(task, HEADS[task], config, None, {}, {}, steps=1, trains=True)
        self.args = args
        self.ours, self.stock = (build(side, self.work, args) for side in SIDES)
        self.stock.load_state_dict(self.ours.state_dict())
        self.reference = copy.deepcopy(self.stock)
        self.padded = [to_device(batch, args.device) for batch in self.batches["stock"]]
        self.loss = make_loss(Side("", "ours", mode), self.ours, sizes.backend)

    def run_stock(self, model: PreTrainedModel, index: int, dtype: str) -> float:
        """Runs stock BERT forward and backward on a batch, and returns the loss."""
        model.zero_grad()
        with autocast(self.args, dtype):
            loss = comparable_loss(self.work, model(**self.padded[index]), self.padded[index])
        loss.backward()
        return loss.item()

    def compute_limits(self, dtype: str) -> dict[str, float]:
        """Returns the allowed distances. In bfloat16, they are multiples of stock BERT's own in its worst batch."""
        limits = {"loss": TOLERANCE[dtype], "gradients": GRADIENT_TOLERANCE}
        if dtype == "float32":
            return limits
        found = {"loss": 0.0, "gradients": 0.0}
        for index in range(len(self.padded)):
            expected = self.run_stock(self.reference, index, "float32")
            distance = abs(self.run_stock(self.stock, index, dtype) / expected - 1)
            found["loss"] = max(found["loss"], distance)
            found["gradients"] = max(found["gradients"], gradient_distance(self.stock, self.reference))
        return {
            "loss": max(limits["loss"], BFLOAT16_FACTOR * found["loss"]),
            "gradients": BFLOAT16_FACTOR * found["gradients"],
        }

    def measure(self, step: Callable[[Batch], torch.Tensor], batch: Batch, index: int) -> dict[str, float]:
        """Runs our step on a batch, and returns the relative distances of the loss and of the gradients."""
        expected = self.run_stock(self.reference, index, "float32")
        self.ours.zero_grad()
        loss = step(batch).item()
        return {"loss": abs(loss / expected - 1), "gradients": gradient_distance(self.ours, self.reference)}


def check_step(
    prepare: Callable[[str, str | None], Check], task: str, dtype: str, side: Side, args: argparse.Namespace
) -> dict[str, Any]:
    """Compares a compiled step, or one in CUDA graphs.

    The step first sees every batch three times, so that graphs are recorded. Then it runs on each of them again. A
    graph that read an earlier batch's inputs, or kept its gradients, would differ.
    """
    check = prepare(task, side.mode)
    step = make_step(check.loss, check.ours, args, dtype, side.graphs)
    one_size = args.sizes.checked_batch * args.sizes.shapes[0][1]  # the most tokens that a batch can have
    batches = place_batches(side, HEADS[task], check.batches, one_size, args.device)
    for batch in WARMUP_PASSES * batches:
        check.ours.zero_grad()
        step(batch)
    found = [check.measure(step, batch, index) for index, batch in enumerate(batches)]
    return {"limits": check.compute_limits(dtype), "found": find_worst(found), **describe_graphs(step)}


def check_head(
    prepare: Callable[[str, str | None], Check], task: str, dtype: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Compares the eager step of a head on a packed and on a padded batch."""
    check = prepare(task, None)
    step = make_step(check.loss, check.ours, args, dtype, graphs=False)
    layouts = to_device(check.batches["ours"][0], args.device), check.padded[0]
    found = [check.measure(step, batch, 0) for batch in layouts]
    return {"limits": check.compute_limits(dtype), "found": find_worst(found), **describe_graphs(step)}


def find_worst(found: list[dict[str, float]]) -> dict[str, float]:
    """Returns the largest of each distance; NaN if one is NaN."""
    return {name: float(np.max([distances[name] for distances in found])) for name in found[0]}


# --- two processes ------------------------------------------------------------------------------------------------


def process_rows(args: argparse.Namespace) -> Rows:
    """Yields the row of `processes`."""
    yield f"{PROCESSES} processes with gloo | SnugBERT", partial(compare_processes, args)


def compare_processes(args: argparse.Namespace) -> dict[str, Any]:
    """Trains in one process and in two, with the same examples in each step.

    Returns:
        `loss` and `weights`, distances with their limits, infinite if the weights of two processes differ; `seconds`
        of a step; `without_ddp`; `graphs` of the first process.
    """
    results = []
    for processes in (1, PROCESSES):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        folder = args.output_dir / f"work/{processes}"
        command = [sys.executable, __file__, "worker", "--output_dir", str(folder)] + ["--rehearse"] * args.rehearse
        # All processes use the same GPU, so each is the first of its machine.
        shared = {"WORLD_SIZE": processes, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        running = []
        for rank in range(processes):
            environment = {name: str(value) for name, value in (shared | {"RANK": rank}).items()}
            running.append(subprocess.Popen(command, env=os.environ | (environment if processes > 1 else {})))
        if sum(process.wait() != 0 for process in running):
            raise RuntimeError(f"{processes} processes failed")
        results += [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(processes)]
    one, two, other = results
    losses = [abs(a / b - 1) for a, b in zip(two["losses"], one["losses"], strict=True)]
    weights = ((two["weights"] - one["weights"]).norm() / one["change"]).item()
    is_same = two["weights"].equal(other["weights"])
    return {
        "found": {"loss": max(losses), "weights": weights if is_same else float("inf")},
        "limits": {"loss": LOSS_TOLERANCE, "weights": WEIGHT_TOLERANCE},
        "seconds": [one["seconds"], two["seconds"]],
        **{name: two[name] for name in ("without_ddp", "graphs")},
        "reason": "",
    }


def train_worker(args: argparse.Namespace) -> None:
    """Trains in one of the processes of `processes`, which start with other weights, and writes its results."""
    longest, processes = args.sizes.shapes[-1][1], int(os.environ.get("WORLD_SIZE", "1"))
    batch_size = args.sizes.batch * PROCESSES
    lengths = draw_lengths(PAIR_LENGTHS, batch_size * STEPS_OF_PROCESSES, longest, np.random.default_rng(0))
    trainer_args = PretrainingArguments(
        output_dir=str(args.output_dir / "run"),
        overwrite_output_dir=True,
        per_device_train_batch_size=batch_size // processes,
        max_steps=STEPS_OF_PROCESSES,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        use_cpu=args.rehearse,
        pad_to_multiple_of=batch_size // processes * longest,  # one size
        dataloader_num_workers=0,
        disable_tqdm=True,
        ddp_backend="gloo" if processes > 1 else None,
    )
    rank, lines = int(os.environ.get("RANK", "0")), []
    logging.getLogger("snugbert.gpu.cuda_graphs").addFilter(lambda line: lines.append(line.msg) or True)
    transformers.set_seed(args.seed + rank)
    examples, collate = make_pretraining_examples(lengths, args.sizes.vocabulary, np.random.default_rng(0))
    trainer = PretrainingTrainer(
        model=SnugBertForPreTraining(make_config(args.sizes, 0.0)),
        args=trainer_args,
        train_dataset=examples,
        data_collator=collate,
    )
    initial = flatten(trainer.model)
    start = time.perf_counter()
    trainer.train()
    result = {
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "weights": flatten(trainer.model),
        "change": (flatten(trainer.model) - initial).norm(),
        "seconds": (time.perf_counter() - start) / STEPS_OF_PROCESSES,
        "without_ddp": trainer.model_wrapped is trainer.model,
        "graphs": sum(line.startswith("CUDA graph %d") for line in lines),
    }
    torch.save(result, args.output_dir / f"{rank}.pt")


def flatten(model: PreTrainedModel) -> torch.Tensor:
    """Returns all weights as one vector on the CPU."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


# --- running a piece ----------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "correctness": correctness_rows,
    "steps": step_rows,
    "lengths": length_rows,
    "processes": process_rows,
}


def main(argv: list[str]) -> None:
    """Measures the rows of a piece that are not in its file.

    Raises:
        SystemExit: the GPU refuses further work after an error. A new process can continue.
    """
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.piece == "worker":
        train_worker(args)
        return
    log = logging.FileHandler(args.output_dir / "log.txt")
    package = logging.getLogger("snugbert")
    package.setLevel(logging.INFO)
    package.addHandler(log)
    try:
        rows = [("device", lambda: {"machine": describe_machine(args.device)}), *PIECES[args.piece](args)]
        measure_rows(args.piece, rows, args.output_dir / f"{args.piece}.jsonl", args.deadline)
    finally:
        package.removeHandler(log)
        log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
