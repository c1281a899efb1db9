"""The pieces of `benchmarks/gpu.sh quick`: SnugBERT and stock BERT on one GPU.

    python benchmarks/gpu.py steps --output_dir gpu-results

Pieces:

- `products`: the kernels of a pretraining step one by one, at its real sizes: matrix products, attention, dropout with
  residual and LayerNorm, sums of bias gradients.
- `correctness`: losses and gradients against stock BERT's. First the compiled step and the step in CUDA graphs, then
  the eager step with every head.
- `steps`: whole pretraining steps (forward, backward, fused AdamW), with the lengths of real sentence pairs.
- `profile`: milliseconds and launches of each class of kernel, how busy the GPU is, and where the CPU waits for it.
- `lengths`: steps of a classifier at the lengths of GLUE tasks.

A piece appends one line per row to `<output_dir>/<piece>.jsonl`. A row is recorded before it starts, so a row that
hangs or crashes the process remains as "did not finish". Rows in the file are not measured again. A failed row records
its error, and the next row runs. The most important rows come first.

No data is needed: token ids are random, and lengths follow the tables in `gpu_batches.py`. Batches are on the GPU
before the clock starts. A round of steps waits for the GPU once, after its last step.
"""

import argparse
import copy
import gc
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from gpu_batches import (
    GLUE_LENGTHS,
    HEADS,
    LABELS,
    PAIR_LENGTHS,
    count_labels,
    draw_lengths,
    make_fine_tuning_batches,
    make_pretraining_batches,
    make_task_batches,
    shortest_length,
)
from gpu_table import read_rows
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
    count_tokens,
    describe_machine,
    gradient_distance,
    needed_flops,
    to_device,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from snugbert import SnugBertConfig
from snugbert.cuda_graphs import CudaGraphs
from snugbert.kernels_snugbert import MULTIPLE, grouped_attention, has_own_kernels, ragged_attention
from snugbert.packed_batches import pad_row
from snugbert.trainers.compilation import compile_model
from snugbert.trainers.pretraining.throughput import TRAINING_COST, peak_flops

Rows = Iterator[tuple[str, Callable[[], dict[str, Any]]]]  # names, and functions that measure
# In bfloat16, our gradients may differ from stock BERT's float32 gradients by this times what stock BERT's own differ.
BFLOAT16_FACTOR = 1.5
CHECKED_BATCHES = 3
# Passes over all batches before a measurement. CudaGraphs records the third batch of a size.
WARMUP_PASSES = 3
# Rows of `lengths` are filled up to multiples of this times a whole number, about a tenth of a batch.
ROW_MULTIPLE = 64
REPEATS, ROUNDS = 20, 5  # of a kernel
# Cycles that the GPU sleeps before each round of a kernel, about 20 ms. Meanwhile the CPU starts the whole round, so
# the time between two kernels is not the CPU's.
SLEEP = 40_000_000
DROPOUT = 0.1
SHOWN_KERNELS = 8
PROFILED_STEPS = 3
# Classes of kernels by their names, see `classify`. The first match counts.
KERNEL_CLASSES = (
    ("fused by the compiler", "^triton_"),
    ("attention", "flash|fmha|sdpa|cudnn"),
    ("optimizer", "multi_tensor|adam"),
    ("matrix products", "nvjet|gemm|cutlass|cublas|splitk|gemv"),
    ("layer norm", "layer_?norm|gammabeta"),
    ("dropout", "dropout"),
    ("GELU", "gelu"),
    ("softmax and loss", "softmax|nll"),
    ("embeddings and indexing", "embedding|index|gather|scatter|sort|radix"),
    ("sums", "reduce"),
    ("copies and casts", "copy|memcpy|memset|fill|cat"),
    ("other elementwise", "elementwise"),
)
WAIT = "called a synchronizing CUDA operation"  # torch's warning


@dataclass(frozen=True)
class Sizes:
    """How much to measure.

    Attributes:
        model: name of the model's size.
        vocabulary: number of tokens.
        shapes: batch size and maximum length of the pretraining steps, and the multiple of tokens to which rows are
            filled up for CUDA graphs.
        round_tokens: a round of steps has at least so many tokens, unless it would need more than `most_steps`.
        most_steps: most steps of a round, each on its own batch.
        rounds: measured rounds.
        batch: batch size of fine-tuning and of the checks.
        tasks: names in [`GLUE_LENGTHS`].
        checked: heads in [`HEADS`], and dtypes, of the compiled steps and of those in graphs.
        backend: backend of torch.compile.
    """

    model: str
    vocabulary: int
    shapes: tuple[tuple[int, int, int], ...]
    round_tokens: int
    most_steps: int
    rounds: int
    batch: int
    tasks: tuple[str, ...]
    checked: tuple[tuple[str, str], ...]
    backend: str


BASE = Sizes(
    model="base",
    vocabulary=30_522,
    shapes=((256, 128, 1024), (32, 128, 128)),
    round_tokens=160_000,
    most_steps=10,
    rounds=5,
    batch=32,
    tasks=("sst2", "mrpc", "qnli"),
    checked=(
        ("pretraining", "bfloat16"),
        ("classification", "float32"),
        ("classification", "bfloat16"),
        ("pretraining", "float32"),
    ),
    backend="inductor",
)
REHEARSAL = Sizes(
    model="tiny",
    vocabulary=300,
    shapes=((4, 24, 16),),
    round_tokens=150,
    most_steps=3,
    rounds=2,
    batch=4,
    tasks=("sst2",),
    checked=(("pretraining", "float32"),),
    backend="eager",
)


@dataclass(frozen=True)
class Side:
    """A way to run a step.

    Attributes:
        name: as in the table.
        model: "ours" or "stock".
        compiled: whether the model is compiled.
        graphs: whether forward and backward run as CUDA graphs, on rows that are filled up.
    """

    name: str
    model: str
    compiled: bool = False
    graphs: bool = False


STOCK, EAGER, BEST = (
    Side("stock sdpa", "stock"),
    Side("SnugBERT", "ours"),
    Side("SnugBERT, compiled, graphs", "ours", compiled=True, graphs=True),
)
GRAPHS, COMPILED, STOCK_COMPILED = (
    Side("SnugBERT, graphs", "ours", graphs=True),
    Side("SnugBERT, compiled", "ours", compiled=True),
    Side("stock sdpa, compiled", "stock", compiled=True),
)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=[*PIECES])
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument("--seconds", type=float, default=480.0, help="no row starts later than this")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU, to test this script")
    args = parser.parse_args(argv)
    args.sizes = REHEARSAL if args.rehearse else BASE
    args.device = "cpu" if args.rehearse else "cuda"
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU. --rehearse tests this script on a CPU.")
    return args


def make_config(sizes: Sizes, dropout: float, **fields: Any) -> SnugBertConfig:
    """Returns the model's configuration."""
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return SnugBertConfig.from_size(sizes.model, vocab_size=sizes.vocabulary, **rates, **fields)


def step_arguments(args: argparse.Namespace, *flags: str) -> argparse.Namespace:
    """Returns the arguments of `side_by_side.py` for training steps."""
    return argument_parser(None, trains=True).parse_args(["--device", args.device, *flags])


@cache
def pretraining_batches(sizes: Sizes, shape: tuple[int, int, int]) -> dict[str, list[Batch]]:
    """Returns the batches of a round, for both sides."""
    rng, (size, longest, _) = np.random.default_rng(0), shape
    count = min(sizes.most_steps, -(-sizes.round_tokens // (size * longest)))
    lengths = draw_lengths(PAIR_LENGTHS[128 if longest <= 128 else 512], size * count, longest, rng)
    return make_pretraining_batches(lengths, size, sizes.vocabulary, rng)


def format_shape(shape: tuple[int, int, int]) -> str:
    """Formats batch size and maximum length."""
    return f"{shape[0]} x {shape[1]}"


# --- kernels one by one -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The sizes of a pretraining step: batch size, tokens, labeled tokens, and the start of each sequence."""

    pairs: int
    longest: int
    tokens: int
    labeled: int
    starts: torch.Tensor


def describe_step(sizes: Sizes, shape: tuple[int, int, int]) -> Step:
    """Returns the sizes of the first batch."""
    batch = pretraining_batches(sizes, shape)["ours"][0]
    tokens, labeled = batch["input_ids"].shape[1], len(batch["label_indices"])
    return Step(shape[0], batch["max_length_q"], tokens, labeled, batch["cu_seq_lens_q"])


def product_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `products`. The kernels whose speed decides the next change come first."""
    config = make_config(args.sizes, DROPOUT)
    H, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    vocabulary = -(-config.vocab_size // MULTIPLE) * MULTIPLE
    kernels: dict[str, Callable[[Step], dict[str, Any]]] = {
        "q, k, v, three products": lambda step: time_linear(step.tokens, H, H, layers, args, parts=3),
        "q, k, v, one product": lambda step: time_linear(step.tokens, H, H, layers, args, parts=3, joined=True),
        "flash attention, packed": lambda step: time_packed_attention(step, config, args),
        "cuDNN attention, padded": lambda step: time_padded_attention(step, config, "CUDNN_ATTENTION", False, args),
        "cuDNN attention, padded, mask": lambda step: time_padded_attention(
            step, config, "CUDNN_ATTENTION", True, args
        ),
        "flash attention, padded": lambda step: time_padded_attention(step, config, "FLASH_ATTENTION", False, args),
        "dropout, residual, LayerNorm": lambda step: time_residual(step, config, torch.float32, False, args),
        "the same, compiled": lambda step: time_residual(step, config, torch.float32, True, args),
        "the same, compiled, bfloat16 residual": lambda step: time_residual(step, config, torch.bfloat16, True, args),
        "bias sum, hidden": lambda step: time_bias_sum(step.tokens, H, 5 * layers, args),
        "bias sum, feed-forward": lambda step: time_bias_sum(step.tokens, inner, layers, args),
        "feed-forward, up": lambda step: time_linear(step.tokens, H, inner, layers, args),
        "feed-forward, down": lambda step: time_linear(step.tokens, inner, H, layers, args),
        "attention output": lambda step: time_linear(step.tokens, H, H, layers, args),
        "vocabulary": lambda step: time_linear(step.labeled, H, vocabulary, 1, args),
        # Last, because nothing else calls it like this: it may end the process.
        "cuDNN attention, packed": lambda step: time_packed_attention(step, config, args, attend_with_cudnn),
    }
    yield "copy", partial(time_copy, args)
    for name, shape in product(kernels, args.sizes.shapes):
        yield f"{format_shape(shape)} | {name}", partial(time_kernel, kernels[name], shape, args)


def time_kernel(
    measure: Callable[[Step], dict[str, Any]], shape: tuple[int, int, int], args: argparse.Namespace
) -> dict[str, Any]:
    """Measures a kernel with the sizes of a step. Results do not depend on the rows before."""
    torch.manual_seed(0)
    torch.compiler.reset()
    return measure(describe_step(args.sizes, shape))


def time_function(function: Callable[[], Any], args: argparse.Namespace) -> float:
    """Returns the milliseconds of a function on the GPU: the median of some rounds, without a wait between them."""
    for _ in range(3):
        function()
    if args.device == "cpu":
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    for start_event, end_event in events:
        torch.cuda._sleep(SLEEP)
        start_event.record()
        for _ in range(REPEATS):
            function()
        end_event.record()
    torch.cuda.synchronize()
    return median(start_event.elapsed_time(end_event) / REPEATS for start_event, end_event in events)


def random_tensor(*shape: int, args: argparse.Namespace, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Draws normal values. A GPU multiplies constants faster, because that takes less power."""
    return torch.randn(*shape, device=args.device, dtype=dtype)


def time_linear(
    rows: int,
    inner: int,
    columns: int,
    per_step: int,
    args: argparse.Namespace,
    parts: int = 1,
    joined: bool = False,
) -> dict[str, Any]:
    """Measures linear layers as autograd runs them, in bfloat16.

    Args:
        rows, inner, columns: the layer maps (rows, inner) to (rows, columns).
        per_step: how often a step runs it.
        args: the arguments.
        parts: number of layers with the same input.
        joined: whether the weights are concatenated to one layer. The time includes concatenating weights and
            gradients.

    Returns:
        `ms` of the forward pass, of the gradient of the input and of the gradient of the weights; `flops` of each.
    """
    values = random_tensor(rows, inner, args=args)
    weights = [random_tensor(columns, inner, args=args) for _ in range(parts)]
    biases = [random_tensor(columns, args=args) for _ in range(parts)]
    gradients = [random_tensor(rows, columns, args=args) for _ in range(parts)]

    def forward() -> list[torch.Tensor]:
        if joined:
            return [F.linear(values, torch.cat(weights), torch.cat(biases))]
        return [F.linear(values, weight, bias) for weight, bias in zip(weights, biases, strict=True)]

    def differentiate_input() -> torch.Tensor:
        if joined:
            return torch.cat(gradients, 1) @ torch.cat(weights)
        return reduce(torch.add, (gradient @ weight for gradient, weight in zip(gradients, weights, strict=True)))

    together = torch.cat(gradients, 1)

    def differentiate_weight() -> list[torch.Tensor]:
        return [gradient.t() @ values for gradient in ([together] if joined else gradients)]

    functions = {"forward": forward, "input": differentiate_input, "weight": differentiate_weight}
    with torch.no_grad():
        ms = {name: time_function(function, args) for name, function in functions.items()}
    return {"ms": ms, "flops": 2 * rows * inner * columns * parts, "per_step": per_step}


def time_copy(args: argparse.Namespace) -> dict[str, Any]:
    """Measures a copy of 1 GiB. `bytes` are read and written."""
    source = torch.zeros(2**30 if args.device == "cuda" else 2**10, dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    return {"ms": {"copy": time_function(lambda: target.copy_(source), args)}, "bytes": 2 * source.nbytes}


def time_bias_sum(rows: int, columns: int, per_step: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measures the sum of a bias gradient over tokens, as autograd runs it and as a product with ones."""
    gradient = random_tensor(rows, columns, args=args)
    ones = torch.ones(1, rows, device=args.device, dtype=gradient.dtype)
    ms = {
        "sum": time_function(lambda: gradient.sum(0, keepdim=True), args),
        "product": time_function(lambda: ones @ gradient, args),
    }
    return {"ms": ms, "bytes": gradient.nbytes, "per_step": per_step}


def time_with_gradients(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], per_step: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures the forward and the backward pass of a function with random inputs that need gradients."""
    inputs = [value.requires_grad_() for value in inputs]
    gradient = torch.randn_like(function(*inputs))
    forward = time_function(lambda: function(*inputs), args)
    both = time_function(lambda: torch.autograd.grad(function(*inputs), inputs, gradient), args)
    return {"ms": {"forward": forward, "backward": both - forward}, "per_step": per_step}


def attend_packed(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, longest: int, scaling: float
) -> torch.Tensor:
    """Runs SnugBERT's attention. A CPU that does not act as a GPU has other kernels."""
    if has_own_kernels(query):
        return grouped_attention(query, key, value, starts, starts, scaling, DROPOUT)
    return ragged_attention(query, key, value, starts, starts, longest, longest, scaling, DROPOUT)


def attend_with_cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, longest: int, scaling: float
) -> torch.Tensor:
    """Runs cuDNN's attention on packed sequences, which torch calls for nested tensors."""
    if not query.is_cuda:
        return attend_packed(query, key, value, starts, longest, scaling)
    bounds = (starts, starts, longest, longest)
    attend = torch.ops.aten._cudnn_attention_forward.default
    return attend(query, key, value, None, *bounds, True, DROPOUT, False, False, scale=scaling)[0]


def time_packed_attention(
    step: Step, config: SnugBertConfig, args: argparse.Namespace, attend: Callable[..., torch.Tensor] = attend_packed
) -> dict[str, Any]:
    """Measures attention on packed sequences."""
    heads = config.num_attention_heads
    shape = (step.tokens, heads, config.hidden_size // heads)
    starts = step.starts.to(args.device)
    inputs = [random_tensor(*shape, args=args) for _ in range(3)]
    bounds = (starts, step.longest, shape[-1] ** -0.5)
    return time_with_gradients(lambda *qkv: attend(*qkv, *bounds), inputs, config.num_hidden_layers, args)


def time_padded_attention(
    step: Step, config: SnugBertConfig, backend: str, with_mask: bool, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures attention on padded sequences. `with_mask` excludes the last key of each sequence."""
    heads = config.num_attention_heads
    shape = (step.pairs, heads, step.longest, config.hidden_size // heads)
    # As stock BERT has them: the view of a product's output.
    inputs = [random_tensor(shape[0], shape[2], heads, shape[3], args=args).transpose(1, 2) for _ in range(3)]
    mask = None
    if with_mask:
        mask = torch.ones(shape[0], 1, step.longest, step.longest, dtype=torch.bool, device=args.device)
        mask[..., -1] = False
    kernel = SDPBackend.MATH if args.device == "cpu" else getattr(SDPBackend, backend)
    with sdpa_kernel(kernel):
        attend = partial(F.scaled_dot_product_attention, attn_mask=mask, dropout_p=DROPOUT)
        return time_with_gradients(attend, inputs, config.num_hidden_layers, args)


def time_residual(
    step: Step, config: SnugBertConfig, dtype: torch.dtype, compiled: bool, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures dropout, the sum with the residual in `dtype`, and LayerNorm in float32."""
    H = config.hidden_size

    def normalize(
        values: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> torch.Tensor:
        total = (F.dropout(values, DROPOUT) + residual).float()
        return F.layer_norm(total, (H,), weight, bias, config.layer_norm_eps).to(dtype)

    inputs = [random_tensor(step.tokens, H, args=args), random_tensor(step.tokens, H, args=args, dtype=dtype)]
    inputs += [random_tensor(H, args=args, dtype=torch.float32) for _ in range(2)]
    function = torch.compile(normalize, backend=args.sizes.backend) if compiled else normalize
    return time_with_gradients(function, inputs, 2 * config.num_hidden_layers, args)


# --- steps --------------------------------------------------------------------------------------------------------


def make_model(
    side: Side, work: Work, settings: argparse.Namespace, backend: str, dynamic: bool | None = None, **fields: Any
) -> PreTrainedModel:
    """Builds the model of a side, and compiles it if the side says so.

    Args:
        side: the side.
        work: head and configuration.
        settings: of [`step_arguments`].
        backend: backend of torch.compile.
        dynamic: whether stock BERT's layers are compiled once for all sizes; None: torch decides.
        fields: fields of the configuration to change.
    """
    torch.compiler.reset()
    model = build(side.model, work, settings, **fields)
    if side.compiled:
        compile_side(side, model, backend, dynamic)
    return model


def compile_side(side: Side, model: PreTrainedModel, backend: str, dynamic: bool | None = None) -> None:
    """Compiles a model in place: ours as the trainers do, stock BERT's layer by layer."""
    if side.model == "ours":
        compile_model(model, backend=backend)
        return
    for layer in model.base_model.encoder.layer:
        layer.compile(backend=backend, dynamic=dynamic)


def make_step(
    model: PreTrainedModel, settings: argparse.Namespace, dtype: str, graphs: bool
) -> Callable[[Batch], torch.Tensor]:
    """Returns a function that runs forward and backward on a batch, and returns the loss."""

    def step(batch: Batch) -> torch.Tensor:
        with autocast(settings, dtype):
            loss = model(**batch).loss
        loss.backward()
        return loss.detach()

    return CudaGraphs(step, model) if graphs else step


def place_batches(side: Side, batches: dict[str, list[Batch]], multiple: int, device: str) -> list[Batch]:
    """Returns the batches of a side on the device. Rows for graphs are filled up to a multiple of tokens."""
    own = batches[side.model]
    if side.graphs:
        own = [pad_row(batch, multiple) for batch in own]
    return [to_device(batch, device) for batch in own]


def make_run(step: Callable[[Batch], Any], model: PreTrainedModel, device: str) -> Callable[[list[Batch]], float]:
    """Returns a function that runs a step and an update per batch, and returns the seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def run(batches: list[Batch]) -> float:
        start = time.perf_counter()
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            step(batch)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return run


def time_steps(
    side: Side,
    config: SnugBertConfig,
    head: str,
    batches: dict[str, list[Batch]],
    multiple: int,
    args: argparse.Namespace,
    dynamic: bool | None = None,
) -> dict[str, Any]:
    """Measures training steps of a side.

    Args:
        side: the side.
        config: our configuration.
        head: the models are SnugBertFor<head> and BertFor<head>.
        batches: the batches of both sides, one per step of a round.
        multiple: of tokens in the rows of graphs.
        args: the arguments.
        dynamic: see [`make_model`].

    Returns:
        `tokens` and `needed_flops` of a round; `steps` of a round; `seconds` of each round and of the warmup; `fill`,
        the share of positions that are tokens; `graphs`, the number of recorded ones; peak memory in MB (10^6 bytes):
        allocated, and reserved by torch. With graphs it includes the warmup, because torch counts a graph's memory
        only while it is recorded.
    """
    settings = step_arguments(args)
    work = Work("", head, config, None, {}, {}, steps=len(batches["stock"]), trains=True)
    model = make_model(side, work, settings, args.sizes.backend, dynamic)
    moved = place_batches(side, batches, multiple, args.device)
    step = make_step(model, settings, settings.dtype, side.graphs)
    run = make_run(step, model, args.device)
    reset_peak_memory(args.device)
    warmup = sum(run(moved) for _ in range(WARMUP_PASSES))
    if not side.graphs:
        reset_peak_memory(args.device)
    seconds = [run(moved) for _ in range(args.sizes.rounds)]
    tokens = count_tokens(batches["stock"])
    return {
        "tokens": tokens,
        "needed_flops": TRAINING_COST * sum(needed_flops(head, config, batch) for batch in batches["stock"]),
        "steps": len(moved),
        "seconds": seconds,
        "warmup_seconds": warmup,
        "fill": tokens / sum(batch["input_ids"].numel() for batch in moved),
        "graphs": step.count if isinstance(step, CudaGraphs) else None,
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else None,
        "reserved_mb": torch.cuda.max_memory_reserved() / 1e6 if args.device == "cuda" else None,
    }


def reset_peak_memory(device: str) -> None:
    """Starts a new measurement of peak memory, without the memory that torch keeps for later."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def step_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `steps`."""
    for side, shape in product((STOCK, EAGER, BEST, COMPILED, GRAPHS, STOCK_COMPILED), args.sizes.shapes):
        yield f"pretraining, {format_shape(shape)} | {side.name}", partial(time_pretraining, side, shape, args)


def time_pretraining(side: Side, shape: tuple[int, int, int], args: argparse.Namespace) -> dict[str, Any]:
    """Measures pretraining steps."""
    config, batches = make_config(args.sizes, DROPOUT), pretraining_batches(args.sizes, shape)
    return time_steps(side, config, "PreTraining", batches, shape[2], args)


def length_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `lengths`."""
    for side, task in product((STOCK, EAGER, BEST, COMPILED, GRAPHS, STOCK_COMPILED), args.sizes.tasks):
        yield f"classifier, lengths of {task} | {side.name}", partial(time_fine_tuning, side, task, args)


@cache
def fine_tuning_batches(sizes: Sizes, task: str) -> dict[str, list[Batch]]:
    """Returns the batches of a round of a classifier at the lengths of a task, for both sides."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(GLUE_LENGTHS[task], sizes.most_steps * sizes.batch, 128, rng)
    return make_fine_tuning_batches("classification", lengths, sizes.batch, sizes.vocabulary, rng)


def time_fine_tuning(side: Side, task: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measures steps of a classifier. Stock BERT's layers are compiled once, because lengths differ."""
    batches = fine_tuning_batches(args.sizes, task)
    mean = count_tokens(batches["stock"]) / len(batches["stock"])
    multiple = ROW_MULTIPLE * max(1, round(mean / 10 / ROW_MULTIPLE))
    config = make_config(args.sizes, DROPOUT, num_labels=LABELS)
    return time_steps(side, config, "SequenceClassification", batches, multiple, args, dynamic=True)


# --- correctness --------------------------------------------------------------------------------------------------


def correctness_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `correctness`."""
    checked = args.sizes.checked
    for (task, dtype), side in [*product(checked, (GRAPHS, BEST)), *product(checked, (COMPILED,))]:
        yield f"{task}, {dtype} | {side.name}", partial(check_step, task, dtype, side, args)
    for dtype, task in product(("bfloat16", "float32"), HEADS):
        yield f"{task}, {dtype} | {EAGER.name}", partial(check_head, task, dtype, args)


class Check:
    """Compares losses and gradients with stock BERT's in float32, without dropout, on the same weights.

    Args:
        task: name in [`HEADS`].
        dtype: dtype of our side.
        args: the arguments.
        count: number of batches. Their lengths are random.
    """

    def __init__(self, task: str, dtype: str, args: argparse.Namespace, count: int = 1):
        sizes, rng = args.sizes, np.random.default_rng(0)
        lengths = rng.integers(shortest_length(task), sizes.shapes[0][1] + 1, sizes.batch * count)
        lengths[0] = shortest_length(task)
        batches = make_task_batches(task, lengths.tolist(), sizes.batch, sizes.vocabulary, rng)
        config = make_config(sizes, 0.0, num_labels=count_labels(task))
        self.work = Work(task, HEADS[task], config, None, {}, {}, steps=1, trains=True)
        self.settings, self.dtype, self.batches = step_arguments(args), dtype, batches
        torch.compiler.reset()
        self.ours, self.stock = (build(side, self.work, self.settings) for side in SIDES)
        self.stock.load_state_dict(self.ours.state_dict())
        self.reference = copy.deepcopy(self.stock)
        self.padded = [to_device(batch, args.device) for batch in batches["stock"]]

    def run_stock(self, model: PreTrainedModel, index: int, dtype: str) -> float:
        """Runs stock BERT forward and backward on a batch, and returns the loss."""
        model.zero_grad()
        with autocast(self.settings, dtype):
            loss = comparable_loss(self.work, model(**self.padded[index]), self.padded[index])
        loss.backward()
        return loss.item()

    def compute_limits(self) -> dict[str, float]:
        """Returns the allowed distances. In bfloat16, they are multiples of stock BERT's own."""
        limits = {"loss": TOLERANCE[self.dtype], "gradients": GRADIENT_TOLERANCE}
        if self.dtype == "bfloat16":
            expected = self.run_stock(self.reference, 0, "float32")
            distance = abs(self.run_stock(self.stock, 0, self.dtype) / expected - 1)
            limits["loss"] = max(limits["loss"], BFLOAT16_FACTOR * distance)
            limits["gradients"] = BFLOAT16_FACTOR * gradient_distance(self.stock, self.reference)
        return limits

    def measure(self, step: Callable[[Batch], torch.Tensor], batch: Batch, index: int) -> dict[str, float]:
        """Runs our step on a batch, and returns the relative distances of the loss and of the gradients."""
        expected = self.run_stock(self.reference, index, "float32")
        self.ours.zero_grad()
        loss = step(batch).item()
        return {"loss": abs(loss / expected - 1), "gradients": gradient_distance(self.ours, self.reference)}


def check_step(task: str, dtype: str, side: Side, args: argparse.Namespace) -> dict[str, Any]:
    """Compares a compiled step, or one in CUDA graphs.

    The step first sees every batch three times, so that graphs are recorded. Then it runs on each of them again. A
    graph that read an earlier batch's inputs, or kept its gradients, would differ.
    """
    check = Check(task, dtype, args, CHECKED_BATCHES)
    if side.compiled:
        compile_side(side, check.ours, args.sizes.backend)
    step = make_step(check.ours, check.settings, dtype, side.graphs)
    one_size = args.sizes.batch * args.sizes.shapes[0][1]  # the most tokens that a batch can have
    batches = place_batches(side, check.batches, one_size, args.device)
    for batch in WARMUP_PASSES * batches:
        check.ours.zero_grad()
        step(batch)
    found = [check.measure(step, batch, index) for index, batch in enumerate(batches)]
    farthest = {name: max(distances[name] for distances in found) for name in found[0]}
    graphs = step.count if isinstance(step, CudaGraphs) else None
    return {"limits": check.compute_limits(), "found": {"packed": farthest}, "graphs": graphs}


def check_head(task: str, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    """Compares the eager step of a head on a packed and on a padded batch."""
    check = Check(task, dtype, args)
    step = make_step(check.ours, check.settings, dtype, graphs=False)
    packed = to_device(check.batches["ours"][0], args.device)
    layouts = {"packed": packed, "padded": check.padded[0]}
    found = {name: check.measure(step, batch, 0) for name, batch in layouts.items()}
    return {"limits": check.compute_limits(), "found": found}


# --- profile ------------------------------------------------------------------------------------------------------


def profile_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `profile`."""
    for side, shape in product((EAGER, BEST), args.sizes.shapes):
        yield f"pretraining, {format_shape(shape)} | {side.name}", partial(profile_steps, side, shape, args)


def profile_steps(side: Side, shape: tuple[int, int, int], args: argparse.Namespace) -> dict[str, Any]:
    """Profiles pretraining steps.

    Returns:
        `ms` of a step without the profiler; `classes`, the ms and the launches of each class of kernel in a step;
        `kernels`, the slowest ones; `busy`, the time of all kernels / the time of a step without the profiler;
        `attention`, the names of its kernels; `waits` of the CPU for the GPU in a step, by place in the code.
    """
    config, batches = make_config(args.sizes, DROPOUT), pretraining_batches(args.sizes, shape)
    settings = step_arguments(args)
    work = Work("", "PreTraining", config, None, {}, {}, steps=1, trains=True)
    model = make_model(side, work, settings, args.sizes.backend)
    moved = place_batches(side, batches, shape[2], args.device)
    run = make_run(make_step(model, settings, settings.dtype, side.graphs), model, args.device)
    for _ in range(WARMUP_PASSES):
        run(moved)
    profiled = moved[:PROFILED_STEPS]
    seconds = min(run(profiled) for _ in range(3)) / len(profiled)  # the profiler makes the CPU several times slower
    waits = find_waits(lambda: run(profiled)) if args.device == "cuda" else {}
    activities = [torch.profiler.ProfilerActivity.CPU]
    if args.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        run(profiled)
    kernels = average_kernels(profiler.key_averages(), len(profiled))
    slowest = sorted(kernels, key=lambda name: kernels[name], reverse=True)[:SHOWN_KERNELS]
    return {
        "ms": 1e3 * seconds,
        "classes": sum_classes(kernels),
        "kernels": {name: kernels[name] for name in slowest},
        "busy": sum(ms for ms, _ in kernels.values()) / 1e3 / seconds,
        "attention": [name for name in kernels if classify(name) == "attention"],
        "waits": {place: count / len(profiled) for place, count in waits.items()},
    }


def average_kernels(events: Iterable[Any], steps: int) -> dict[str, tuple[float, float]]:
    """Returns the ms and the launches of each kernel in a step, from a profile of some steps."""
    return {
        event.key: (event.self_device_time_total / 1e3 / steps, event.count / steps)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.is_user_annotation  # such as "Optimizer.step"
    }


def sum_classes(kernels: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Sums the ms and the launches of kernels of a class."""
    classes: dict[str, list[float]] = {}
    for name, (ms, launches) in kernels.items():
        total = classes.setdefault(classify(name), [0.0, 0.0])
        total[0] += ms
        total[1] += launches
    return classes


def classify(kernel: str) -> str:
    """Returns the class of a kernel by its name."""
    return next((name for name, pattern in KERNEL_CLASSES if re.search(pattern, kernel, re.IGNORECASE)), "other")


def find_waits(run: Callable[[], Any]) -> dict[str, int]:
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


# --- running a piece ----------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "products": product_rows,
    "correctness": correctness_rows,
    "steps": step_rows,
    "profile": profile_rows,
    "lengths": length_rows,
}


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Appends a line to the rows of a piece."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def run_piece(args: argparse.Namespace) -> None:
    """Measures the rows of a piece that are not in its file.

    Raises:
        SystemExit: the GPU refuses further work after an error. A new process can continue.
    """
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / f"{args.piece}.jsonl"
    done = read_rows(path)
    deadline = time.monotonic() + args.seconds
    for name, measure in [("device", partial(describe_device, args)), *PIECES[args.piece](args)]:
        if name in done:
            continue
        if time.monotonic() > deadline:
            append_row(path, {"row": name, "error": "not measured: the time was over"})
            continue
        start = time.monotonic()
        append_row(path, {"row": name, "error": "did not finish"})
        try:
            row = measure()
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        seconds = time.monotonic() - start
        append_row(path, {"row": name, **row, "measured_in_seconds": seconds})
        print(f"{args.piece}: {name}: {row.get('error', 'measured')}, {seconds:.1f} s", flush=True)
        if "CUDA error" in row.get("error", ""):
            raise SystemExit(f"{args.piece}: a new process continues after: {row['error']}")
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a GPU


def describe_device(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the machine, and the FLOPs per second of large products."""
    return {"machine": describe_machine(args.device), "bfloat16_flops": peak_flops(args.device, torch.bfloat16)}


def main(argv: list[str]) -> None:
    """Runs a piece."""
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    run_piece(args)


if __name__ == "__main__":
    main(sys.argv[1:])
