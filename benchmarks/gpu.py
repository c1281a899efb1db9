"""The pieces of `benchmarks/gpu.sh quick`: SnugBERT and stock BERT on one GPU.

    python benchmarks/gpu.py steps --output_dir gpu-results

Pieces:

- `products`: the kernels of a pretraining step one by one, at its real sizes: matrix products, attention, dropout with
  residual and LayerNorm, sums of bias gradients.
- `correctness`: losses and gradients against stock BERT's. First the compiled step and the step in CUDA graphs, then
  the eager step with every head.
- `steps`: whole pretraining steps (forward, backward, fused AdamW), with the lengths of real sentence pairs.
- `profile`: milliseconds and number of kernels of each class, how busy the GPU is, and where the CPU waits for it.
- `lengths`: steps of a classifier at the lengths of GLUE tasks.

A piece appends lines to `<output_dir>/<piece>.jsonl`, see `gpu_rows.py`. The last line of a row counts. Rows in the
file are not measured again. `<output_dir>/log.txt` has the tracebacks and SnugBERT's log lines. The most important
rows come first.

No data is needed: token ids are random, and lengths follow the tables in `gpu_batches.py`. Batches are on the GPU
before the clock starts. A round of steps waits for the GPU once, after its last step.
"""

import argparse
import copy
import gc
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from itertools import cycle, product
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
    draw_lengths,
    make_fine_tuning_batches,
    make_pretraining_batches,
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
    matmul_rate,
    needed_flops,
    to_device,
)
from torch import _inductor as inductor
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from snugbert import SnugBertConfig, SnugBertPreTrainedModel
from snugbert.gpu.compilation import compile_model
from snugbert.gpu.cuda_graphs import CudaGraphs, note_waits
from snugbert.gpu.row_sizes import choose_fine_tuning_multiple, choose_pretraining_multiple, pad_row
from snugbert.kernels_snugbert import MULTIPLE, grouped_attention, has_own_kernels, ragged_attention
from snugbert.trainers.pretraining.training_log import TRAINING_COST

# In bfloat16, our gradients may differ from stock BERT's float32 gradients by this times what stock BERT's own differ.
BFLOAT16_FACTOR = 1.5
CHECKED_BATCHES = 3
# Passes over all batches before a measurement. CudaGraphs records the third batch of a size.
WARMUP_PASSES = 3
REPEATS, ROUNDS = 20, 5  # of a kernel
UNCACHED = 100 * 10**6  # bytes that no cache holds: twice an H100's
# Cycles that the GPU sleeps before each round of a kernel, about 20 ms. Meanwhile the CPU starts the whole round, so
# launch time is not measured.
SLEEP = 40_000_000
DROPOUT = 0.1
SHOWN_KERNELS = 8
PROFILED_STEPS = 3
# Classes of kernels by their names, see `classify`. The first match counts. They are the classes of step_budget.py as
# far as names show them.
KERNEL_CLASSES = (
    ("compiled, pointwise", "^triton_poi"),
    ("compiled, with sums", "^triton_"),  # LayerNorm, cross entropy and gradients of biases
    ("attention", "flash|fmha|sdpa|cudnn"),
    ("AdamW", "adam"),
    ("gradients: zero and copy", "multi_tensor"),
    ("matrix products", "nvjet|gemm|cutlass|cublas|splitk|gemv"),
    ("vocabulary", "softmax|nll"),
    ("embeddings", "embedding|index|gather|scatter|sort|radix|compute_grad_weight|krn_partial"),
    ("pointwise", "layer_?norm|gammabeta|dropout|masked_scale|gelu"),
    ("sums", "reduce"),
    ("casts and copies", "copy|memcpy|memset|fill|cat"),
    ("pointwise", "elementwise"),
)


@dataclass(frozen=True)
class Sizes:
    """How much to measure.

    Attributes:
        model: name of the model's size.
        vocabulary: number of tokens.
        shapes: batch size and maximum length of the pretraining steps.
        round_tokens: a round of steps has at least so many tokens, unless it would need more than `most_steps`.
        most_steps: most steps of a round, each on its own batch.
        rounds: measured rounds.
        batch: batch size of fine-tuning.
        checked_batch: batch size of the checks. With 64 filled rows, compiled layers run what they run at 256 x 128:
            from 6,827 tokens on, inductor fuses LayerNorm's backward pass.
        tasks: names in [`GLUE_LENGTHS`].
        checked: heads in [`HEADS`], and dtypes, of the compiled steps and the steps in graphs.
        heads: heads of the eager steps that are checked, in bfloat16.
        backend: backend of torch.compile.
    """

    model: str
    vocabulary: int
    shapes: tuple[tuple[int, int], ...]
    round_tokens: int
    most_steps: int
    rounds: int
    batch: int
    checked_batch: int
    tasks: tuple[str, ...]
    checked: tuple[tuple[str, str], ...]
    heads: tuple[str, ...]
    backend: str


BASE = Sizes(
    model="base",
    vocabulary=30_522,
    shapes=((256, 128), (32, 128)),
    round_tokens=160_000,
    most_steps=10,
    rounds=5,
    batch=32,
    checked_batch=64,
    tasks=("sst2", "mrpc", "qnli"),
    checked=(
        ("pretraining", "bfloat16"),
        ("classification", "bfloat16"),
        ("classification", "float32"),
        ("pretraining", "float32"),
    ),
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
COMPILED, GRAPHS, STOCK_COMPILED = (
    Side("SnugBERT, compiled", "ours", compiled=True),
    Side("SnugBERT, graphs", "ours", graphs=True),
    Side("stock sdpa, compiled layers", "stock", compiled=True),
)
STEP_SIDES = (
    STOCK,
    BEST,
    COMPILED,
    EAGER,
    GRAPHS,
    STOCK_COMPILED,
)  # sides of one model are neighbors: it is built once


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("gpu-results"))
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU, to test this script")
    args = parse_piece(parser, PIECES, argv)
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


@dataclass(frozen=True)
class Examples:
    """The examples of both sides' batches, as the trainer's rule for the sizes of rows reads a dataset.

    Attributes:
        lengths: tokens of each example.
        max_seq_length: most tokens of an example.
    """

    lengths: np.ndarray
    max_seq_length: int

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input_ids": [0] * int(self.lengths[row])}


def read_lengths(batches: dict[str, list[Batch]]) -> np.ndarray:
    """Returns the tokens of each example."""
    return np.concatenate([batch["attention_mask"].sum(1).numpy() for batch in batches["stock"]])


def choose_multiple(shape: tuple[int, int], batches: dict[str, list[Batch]]) -> int:
    """Returns the multiple of tokens up to which PretrainingTrainer fills rows."""
    return choose_pretraining_multiple(shape[0], Examples(read_lengths(batches), shape[1]))


def format_shape(shape: tuple[int, int]) -> str:
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


def describe_step(sizes: Sizes, shape: tuple[int, int]) -> Step:
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
        "cuDNN attention, scattered to padded rows": lambda step: time_packed_attention(
            step, config, args, attend_scattered
        ),
        "cuDNN attention, padded, no scattering": lambda step: time_padded_attention(
            step, config, "CUDNN_ATTENTION", args
        ),
        "flash attention, padded, no scattering": lambda step: time_padded_attention(
            step, config, "FLASH_ATTENTION", args
        ),
        "dropout, residual, LayerNorm": lambda step: time_residual(step, config, torch.float32, False, args),
        "the same, compiled": lambda step: time_residual(step, config, torch.float32, True, args),
        "the same, compiled, bfloat16 residual": lambda step: time_residual(step, config, torch.bfloat16, True, args),
        "the same, compiled, no mix-order reduction": lambda step: time_residual(
            step, config, torch.float32, True, args, **{"triton.mix_order_reduction": False}
        ),
        "bias sum, hidden": lambda step: time_bias_sum(step.tokens, H, 5 * layers, args),
        "bias sum, feed-forward": lambda step: time_bias_sum(step.tokens, inner, layers, args),
        "feed-forward, up": lambda step: time_linear(step.tokens, H, inner, layers, args),
        "feed-forward, down": lambda step: time_linear(step.tokens, inner, H, layers, args),
        "attention output": lambda step: time_linear(step.tokens, H, H, layers, args),
        "vocabulary": lambda step: time_linear(step.labeled, H, vocabulary, 1, args),
        # Last: this use is untested and may crash the process.
        "cuDNN attention, packed": lambda step: time_packed_attention(step, config, args, attend_with_cudnn),
    }
    if not hasattr(inductor.config.triton, "mix_order_reduction"):
        del kernels["the same, compiled, no mix-order reduction"]
    yield "copy", partial(time_copy, args)
    for name, shape in product(kernels, args.sizes.shapes):
        yield f"{format_shape(shape)} | {name}", partial(time_kernel, kernels[name], shape, args)


def time_kernel(
    measure: Callable[[Step], dict[str, Any]], shape: tuple[int, int], args: argparse.Namespace
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
    size = 2**30 if args.device == "cuda" else 2**10
    source = torch.randint(256, (size,), dtype=torch.uint8, device=args.device)
    target = torch.empty_like(source)
    return {"ms": {"copy": time_function(lambda: target.copy_(source), args)}, "bytes": 2 * source.nbytes}


def time_bias_sum(rows: int, columns: int, per_step: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measures the sum of a bias gradient over tokens, as autograd runs it and as a product with ones.

    Gradients take turns, so that none of them is in the cache.
    """
    gradient = random_tensor(rows, columns, args=args)
    count = 1 if args.device == "cpu" else UNCACHED // gradient.nbytes + 1
    turns = cycle([gradient, *(torch.randn_like(gradient) for _ in range(count))])
    ones = torch.ones(1, rows, device=args.device, dtype=gradient.dtype)
    ms = {
        "sum": time_function(lambda: next(turns).sum(0, keepdim=True), args),
        "product": time_function(lambda: ones @ next(turns), args),
    }
    return {"ms": ms, "bytes": gradient.nbytes, "per_step": per_step}


def time_with_gradients(
    function: Callable[..., list[torch.Tensor]], inputs: list[torch.Tensor], per_step: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures the forward and the backward pass of a function with random inputs that need gradients."""
    inputs = [value.requires_grad_() for value in inputs]
    gradients = [torch.randn_like(output) for output in function(*inputs)]
    forward = time_function(lambda: function(*inputs), args)
    both = time_function(lambda: torch.autograd.grad(function(*inputs), inputs, gradients), args)
    return {"ms": {"forward": forward, "backward": both - forward}, "per_step": per_step}


@dataclass(frozen=True)
class Attention:
    """The arguments of attention on packed sequences, apart from queries, keys and values: (tokens, heads, size).

    Attributes:
        starts: start of each sequence, and the number of tokens.
        longest: tokens of a padded row.
        scaling: factor of the scores.
        positions: place of each token in padded rows, which are one after the other.
        mask: whether a place in padded rows is a token. *Shape:* (sequences, 1, 1, longest)
    """

    starts: torch.Tensor
    longest: int
    scaling: float
    positions: torch.Tensor
    mask: torch.Tensor


def describe_attention(step: Step, scaling: float, device: str) -> Attention:
    """Returns the arguments of attention for the sequences of a step."""
    mask = torch.arange(step.longest) < step.starts.diff()[:, None]
    positions = mask.flatten().nonzero().flatten()
    tensors = (step.starts, positions, mask[:, None, None])
    starts, positions, mask = (tensor.to(device) for tensor in tensors)
    return Attention(starts, step.longest, scaling, positions, mask)


def attend_packed(attention: Attention, dropout: float, *qkv: torch.Tensor) -> torch.Tensor:
    """Runs SnugBERT's attention. A CPU that does not act as a GPU has other kernels."""
    starts, longest = attention.starts, attention.longest
    if has_own_kernels(qkv[0]):
        return grouped_attention(*qkv, starts, starts, attention.scaling, dropout)
    return ragged_attention(*qkv, starts, starts, longest, longest, attention.scaling, dropout)


def attend_with_cudnn(attention: Attention, dropout: float, *qkv: torch.Tensor) -> torch.Tensor:
    """Runs cuDNN's attention on packed sequences, which torch calls for nested tensors."""
    if not qkv[0].is_cuda:
        return attend_packed(attention, dropout, *qkv)
    starts, longest = attention.starts, attention.longest
    attend = torch.ops.aten._cudnn_attention_forward.default
    bounds = (starts, starts, longest, longest)
    return attend(*qkv, None, *bounds, True, dropout, False, False, scale=attention.scaling)[0]


def attend_scattered(attention: Attention, dropout: float, *qkv: torch.Tensor) -> torch.Tensor:
    """Scatters packed sequences to padded rows, runs cuDNN's attention with a mask, and gathers the tokens."""
    pairs, longest = len(attention.mask), attention.longest
    _, heads, size = qkv[0].shape
    padded = [
        values.new_zeros(pairs * longest, heads, size)
        .index_copy(0, attention.positions, values)
        .view(pairs, longest, heads, size)
        .transpose(1, 2)
        for values in qkv
    ]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if qkv[0].is_cuda else SDPBackend.MATH):
        output = F.scaled_dot_product_attention(*padded, attention.mask, dropout, scale=attention.scaling)
    return output.transpose(1, 2).reshape(-1, heads, size).index_select(0, attention.positions)


def time_packed_attention(
    step: Step, config: SnugBertConfig, args: argparse.Namespace, attend: Callable[..., torch.Tensor] = attend_packed
) -> dict[str, Any]:
    """Measures attention on packed sequences.

    `distance` is the largest relative distance from SnugBERT's attention, of the output and of the gradients, without
    dropout.
    """
    heads = config.num_attention_heads
    shape = (step.tokens, heads, config.hidden_size // heads)
    inputs = [random_tensor(*shape, args=args) for _ in range(3)]
    attention = describe_attention(step, shape[-1] ** -0.5, args.device)
    row = time_with_gradients(lambda *qkv: [attend(attention, DROPOUT, *qkv)], inputs, config.num_hidden_layers, args)
    gradient = random_tensor(*shape, args=args)
    results = []
    for function in (attend, attend_packed):
        output = function(attention, 0.0, *inputs)
        results.append([output, *torch.autograd.grad(output, inputs, gradient)])
    row["distance"] = max(
        ((found - expected).float().norm() / expected.float().norm()).item()
        for found, expected in zip(*results, strict=True)
    )
    return row


def time_padded_attention(
    step: Step, config: SnugBertConfig, backend: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures attention on full rows, without a mask."""
    heads = config.num_attention_heads
    shape = (step.pairs, step.longest, heads, config.hidden_size // heads)
    # As in stock BERT: the view of a product's output.
    inputs = [random_tensor(*shape, args=args).transpose(1, 2) for _ in range(3)]
    with sdpa_kernel(SDPBackend.MATH if args.device == "cpu" else getattr(SDPBackend, backend)):
        return time_with_gradients(
            lambda *qkv: [F.scaled_dot_product_attention(*qkv, dropout_p=DROPOUT)],
            inputs,
            config.num_hidden_layers,
            args,
        )


def time_residual(
    step: Step,
    config: SnugBertConfig,
    dtype: torch.dtype,
    compiled: bool,
    args: argparse.Namespace,
    **options: Any,
) -> dict[str, Any]:
    """Measures dropout, the sum with the residual in `dtype`, LayerNorm in float32, and the cast for the next product.

    `options` are inductor's.
    """
    H = config.hidden_size

    def normalize(
        values: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> list[torch.Tensor]:
        total = (F.dropout(values, DROPOUT) + residual).float()
        output = F.layer_norm(total, (H,), weight, bias, config.layer_norm_eps)
        return [output.bfloat16()] if dtype == torch.bfloat16 else [output, output.bfloat16()]

    inputs = [random_tensor(step.tokens, H, args=args), random_tensor(step.tokens, H, args=args, dtype=dtype)]
    inputs += [random_tensor(H, args=args, dtype=torch.float32) for _ in range(2)]
    function = torch.compile(normalize, backend=args.sizes.backend, dynamic=True) if compiled else normalize
    with inductor.config.patch(options) if options else nullcontext():
        return time_with_gradients(function, inputs, 2 * config.num_hidden_layers, args)


# --- steps --------------------------------------------------------------------------------------------------------


def make_loader(args: argparse.Namespace, head: str) -> Callable[[str, bool], PreTrainedModel]:
    """Returns a function that loads a model with the same initial weights for both sides.

    Its arguments are "ours" or "stock", and whether to compile the model. It keeps the last model, so that neighboring
    rows compile only once.

    Args:
        args: the arguments.
        head: the models are SnugBertFor<head> and BertFor<head>.
    """
    work = Work("", head, make_config(args.sizes, DROPOUT, num_labels=LABELS), None, {}, {}, steps=1, trains=True)
    initial: dict[str, torch.Tensor] = {}  # on the CPU, so that they do not add to the GPU's memory

    @lru_cache(1)
    def make(side: str, compiled: bool) -> PreTrainedModel:
        torch.compiler.reset()
        model = build(side, work, args)
        if compiled:
            compile_side(model, args.sizes.backend, dynamic=head != "PreTraining")
        return model

    def load(side: str, compiled: bool) -> PreTrainedModel:
        if not initial:
            values = build("ours", work, args).state_dict()
            initial.update({name: value.to("cpu", copy=True) for name, value in values.items()})
        model = make(side, compiled)
        model.load_state_dict(initial)
        model.zero_grad()
        return model

    return load


def compile_side(model: PreTrainedModel, backend: str, dynamic: bool) -> None:
    """Compiles a model in place: ours as the trainers do, stock BERT's layers.

    Stock BERT's layers are compiled for each shape of a batch, or once for all shapes (`dynamic`).
    """
    if isinstance(model, SnugBertPreTrainedModel):
        compile_model(model, backend=backend)
        return
    for layer in model.base_model.encoder.layer:
        layer.compile(backend=backend, dynamic=dynamic)


def make_step(
    model: PreTrainedModel, args: argparse.Namespace, dtype: str, graphs: bool
) -> Callable[[Batch], torch.Tensor]:
    """Returns a function that runs forward and backward on a batch, and returns the loss."""

    def step(batch: Batch) -> torch.Tensor:
        with autocast(args, dtype):
            loss = model(**batch).loss
        loss.backward()
        return loss.detach()

    return CudaGraphs(step, model) if graphs else step


def place_batches(side: Side, head: str, batches: dict[str, list[Batch]], multiple: int, device: str) -> list[Batch]:
    """Returns the batches of a side on the device, as PretrainingTrainer passes them.

    Rows for graphs are filled up to a multiple of tokens.
    """
    own = batches[side.model]
    if side.graphs:
        own = [pad_row(batch, multiple) for batch in own]
    options = {"detach_logits": True} if side.model == "ours" and head == "PreTraining" else {}
    return [to_device(batch, device) | options for batch in own]


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
    load: Callable[[str, bool], PreTrainedModel],
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
        `tokens` and `needed_flops` of a round; `steps` of a round; `seconds` of each round and of the warmup;
        `compiled`, the graphs that torch.compile made, and `cached`, the hits in its cache; `losses`, of the last
        batch after all rounds, twice with the same weights and another dropout; `fill`, the share of positions that
        are tokens; `graphs` and `reason`, see [`describe_graphs`]; peak memory in MB (10^6 bytes): allocated, and
        reserved by torch. With graphs it includes the warmup, because torch counts a graph's memory only while it is
        recorded.
    """
    counted = count_compilations()
    model = load(side.model, side.compiled)
    moved = place_batches(side, head, batches, multiple, args.device)
    step = make_step(model, args, args.dtype, side.graphs)
    run = make_run(step, model, args.device)
    reset_peak_memory(args.device)
    warmup = sum(run(moved) for _ in range(WARMUP_PASSES))
    if not side.graphs:
        reset_peak_memory(args.device)
    seconds = [run(moved) for _ in range(args.sizes.rounds)]
    tokens = count_tokens(batches["stock"])
    return {
        "tokens": tokens,
        "needed_flops": TRAINING_COST * sum(needed_flops(head, model.config, batch) for batch in batches["stock"]),
        "steps": len(moved),
        "seconds": seconds,
        "warmup_seconds": warmup,
        **{name: number - counted[name] for name, number in count_compilations().items()},
        "fill": tokens / sum(batch["input_ids"].numel() for batch in moved),
        "peak_mb": torch.cuda.max_memory_allocated() / 1e6 if args.device == "cuda" else None,
        "reserved_mb": torch.cuda.max_memory_reserved() / 1e6 if args.device == "cuda" else None,
        "losses": [step(moved[-1]).item() for _ in range(2)],
        **describe_graphs(step),
    }


def count_compilations() -> dict[str, int]:
    """Counts the graphs that torch.compile made in this process, and the hits in its cache."""
    cached = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    return {"compiled": counters["stats"]["unique_graphs"], "cached": cached}


def describe_graphs(step: Callable[[Batch], Any]) -> dict[str, Any]:
    """Returns the number of recorded `graphs`, and the `reason` if there are none; None without CUDA graphs."""
    if not isinstance(step, CudaGraphs):
        return {"graphs": None, "reason": None}
    return {"graphs": step.count, "reason": step.reason}


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
    side: Side, load: Callable[[str, bool], PreTrainedModel], shape: tuple[int, int], args: argparse.Namespace
) -> dict[str, Any]:
    """Measures pretraining steps."""
    batches = pretraining_batches(args.sizes, shape)
    return time_steps(side, load, "PreTraining", batches, choose_multiple(shape, batches), args)


def length_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `lengths`."""
    load = make_loader(args, "SequenceClassification")
    for side, task in product(STEP_SIDES, args.sizes.tasks):
        yield f"classifier, lengths of {task} | {side.name}", partial(time_fine_tuning, side, load, task, args)


@cache
def fine_tuning_batches(sizes: Sizes, task: str) -> dict[str, list[Batch]]:
    """Returns the batches of a round of a classifier at the lengths of a task, for both sides."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(GLUE_LENGTHS[task], sizes.most_steps * sizes.batch, 128, rng)
    return make_fine_tuning_batches("classification", lengths, sizes.batch, sizes.vocabulary, rng)


def time_fine_tuning(
    side: Side, load: Callable[[str, bool], PreTrainedModel], task: str, args: argparse.Namespace
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
        compiled: whether our model is compiled.
    """

    def __init__(self, args: argparse.Namespace, task: str, compiled: bool):
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
        if compiled:
            compile_side(self.ours, sizes.backend, dynamic=True)

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
    prepare: Callable[[str, bool], Check], task: str, dtype: str, side: Side, args: argparse.Namespace
) -> dict[str, Any]:
    """Compares a compiled step, or one in CUDA graphs.

    The step first sees every batch three times, so that graphs are recorded. Then it runs on each of them again. A
    graph that read an earlier batch's inputs, or kept its gradients, would differ.
    """
    check = prepare(task, side.compiled)
    step = make_step(check.ours, args, dtype, side.graphs)
    one_size = args.sizes.checked_batch * args.sizes.shapes[0][1]  # the most tokens that a batch can have
    batches = place_batches(side, HEADS[task], check.batches, one_size, args.device)
    for batch in WARMUP_PASSES * batches:
        check.ours.zero_grad()
        step(batch)
    found = [check.measure(step, batch, index) for index, batch in enumerate(batches)]
    farthest = {name: max(distances[name] for distances in found) for name in found[0]}
    return {"limits": check.compute_limits(dtype), "found": {"packed": farthest}, **describe_graphs(step)}


def check_head(
    prepare: Callable[[str, bool], Check], task: str, dtype: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Compares the eager step of a head on a packed and on a padded batch."""
    check = prepare(task, False)
    step = make_step(check.ours, args, dtype, graphs=False)
    layouts = {"packed": to_device(check.batches["ours"][0], args.device), "padded": check.padded[0]}
    found = {name: check.measure(step, batch, 0) for name, batch in layouts.items()}
    return {"limits": check.compute_limits(dtype), "found": found, **describe_graphs(step)}


# --- profile ------------------------------------------------------------------------------------------------------


def profile_rows(args: argparse.Namespace) -> Rows:
    """Yields the rows of `profile`."""
    load = make_loader(args, "PreTraining")
    for side, shape in product((BEST, EAGER), args.sizes.shapes):
        yield f"pretraining, {format_shape(shape)} | {side.name}", partial(profile_steps, side, load, shape, args)


def profile_steps(
    side: Side, load: Callable[[str, bool], PreTrainedModel], shape: tuple[int, int], args: argparse.Namespace
) -> dict[str, Any]:
    """Profiles pretraining steps.

    Returns:
        `ms` of a step without the profiler; `classes`, the ms and the number of the kernels of each class in a step;
        `kernels`, the slowest ones; `busy`, the time of all kernels / the time of a step without the profiler;
        `attention`, the names of its kernels; `waits` of the CPU for the GPU in a step, by place in the code.
    """
    model = load(side.model, side.compiled)
    batches = pretraining_batches(args.sizes, shape)
    moved = place_batches(side, "PreTraining", batches, choose_multiple(shape, batches), args.device)
    run = make_run(make_step(model, args, args.dtype, side.graphs), model, args.device)
    for _ in range(WARMUP_PASSES):
        run(moved)
    profiled = moved[:PROFILED_STEPS]
    seconds = min(run(profiled) for _ in range(3)) / len(profiled)  # the profiler makes the CPU several times slower
    waits: list[str] = []
    with note_waits(waits) if args.device == "cuda" else nullcontext():
        run(profiled)
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


def sum_classes(kernels: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Sums the ms and the number of kernels of a class."""
    classes: dict[str, list[float]] = {}
    for name, (ms, number) in kernels.items():
        total = classes.setdefault(classify(name), [0.0, 0.0])
        total[0] += ms
        total[1] += number
    return classes


def classify(kernel: str) -> str:
    """Returns the class of a kernel by its name."""
    return next((name for name, pattern in KERNEL_CLASSES if re.search(pattern, kernel, re.IGNORECASE)), "other")


# --- running a piece ----------------------------------------------------------------------------------------------

PIECES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "products": product_rows,
    "correctness": correctness_rows,
    "steps": step_rows,
    "profile": profile_rows,
    "lengths": length_rows,
}


def run_piece(args: argparse.Namespace) -> None:
    """Measures the rows of a piece that are not in its file.

    Raises:
        SystemExit: the GPU refuses further work after an error. A new process can continue.
    """
    rows = [("device", partial(describe_device, args)), *PIECES[args.piece](args)]
    measure_rows(args.piece, rows, args.output_dir / f"{args.piece}.jsonl", args.deadline)


def describe_device(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the machine, and the FLOPs per second of large products."""
    return {
        "machine": describe_machine(args.device),
        "bfloat16_flops": matmul_rate(8192, 8192, 8192, args.device, torch.bfloat16),
    }


def main(argv: list[str]) -> None:
    """Runs a piece."""
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    log = logging.FileHandler(args.output_dir / "log.txt")
    package = logging.getLogger("snugbert")
    package.setLevel(logging.INFO)
    package.addHandler(log)
    try:
        run_piece(args)
    finally:
        package.removeHandler(log)
        log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
