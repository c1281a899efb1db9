"""What a training step on a GPU needs: kernels, bytes and FLOPs of each class of kernel, counted without a GPU.

    python benchmarks/step_budget.py

A pretraining step of BERT base in bfloat16 with dropout 0.1, forward, backward, clipping and fused AdamW, on packed
rows with the lengths of real sentence pairs (SnugBERT, eager, and compiled in CUDA graphs), and on the same pairs
padded (stock BERT with sdpa). As in Trainer, accelerate converts the outputs to float32. Graphs copy the gradients to
their places. Tensors are fake: they have shapes and no values. So a step at full size takes a second and no memory.

- Kernels: operators that compute something, and in compiled code the kernels that inductor generates. Some operators
  start more than one kernel on a GPU, for example AdamW and the backward pass of attention.
- Bytes: each kernel reads its inputs once and writes its outputs once. Caches and repeated reads do not count.
- FLOPs: matrix products and attention only, by torch's formulas.

Times are the bytes at 90 % of an H100's memory rate, and the FLOPs at the rate of large matrix products. A class takes
at least the longer of the two. The last row is the sum.

Operators run as on CUDA. `act_as_cuda` replaces what a CPU would do differently: dropout is one kernel, attention
with a mask is memory-efficient attention, and autocast computes LayerNorm and cross entropy in float32. Compiled code
is planned by inductor for a CPU and never compiled. On a GPU, inductor also splits sums over many rows into two
kernels, and may fuse the sums of LayerNorm's backward pass.
"""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from accelerate.utils import convert_to_fp32
from functorch.compile import make_boxed_func
from gpu_batches import PAIR_LENGTHS, draw_lengths, make_pretraining_batches
from reporting import format_header, format_line
from side_by_side import Batch
from torch import _inductor as inductor
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import Layout, MultiOutput
from torch._inductor.scheduler import NopKernelSchedulerNode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from transformers import BertConfig, BertForPreTraining, PreTrainedConfig, PreTrainedModel

from snugbert import SnugBertConfig, SnugBertForPreTraining, kernels_snugbert, modeling_snugbert
from snugbert.gpu.compilation import compile_model
from snugbert.gpu.flat_gradients import FlatGradients
from snugbert.trainers.pretraining.training_log import count_sequence_tokens

SIDES = ("SnugBERT", "SnugBERT, compiled", "stock BERT, sdpa")
SIZES = ((256, 128), (32, 128))  # pairs of at most 128 tokens
# Milliseconds of a step on one H100 (benchmarks/results/gpu_quick_h100_202611.md), without clipping and without
# accelerate, before graphs stopped to zero gradients and to add to them. Compiled steps ran in CUDA graphs.
MEASURED = {
    ("SnugBERT", 256): 64.0,
    ("SnugBERT", 32): 25.2,
    ("SnugBERT, compiled", 256): 51.6,
    ("SnugBERT, compiled", 32): 10.9,
    ("stock BERT, sdpa", 256): 102.3,
    ("stock BERT, sdpa", 32): 36.2,
}
VOCABULARY = 30_522
LOGITS = {VOCABULARY, VOCABULARY + -VOCABULARY % kernels_snugbert.MULTIPLE}  # in a row, also with padding
# An H100's datasheet has 3.35 TB/s. Kernels that only copy reach about 90 % (e).
BYTES_PER_SECOND = 0.9 * 3.35e12
FLOPS_PER_SECOND = 640e12  # matrix products of these sizes (e); the datasheet has 989e12
CLASSES = (
    "matrix products",
    "attention",
    "pointwise",  # dropout, residual, LayerNorm, GELU
    "sums",  # over tokens: gradients of biases, in compiled code also of LayerNorm's weights
    "casts of activations",
    "casts of weights",  # and of their gradients
    "vocabulary",  # cross entropy, and whatever else has the size of the logits
    "embeddings",  # and indexing
    "other",
    "outputs to float32",
    "gradients of graphs",
    "clipping",
    "AdamW",
)
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
EMBEDDINGS = {"embedding", "embedding_dense_backward", "index_select", "index_add", "gather", "sort", "searchsorted"}
LOOKUPS = {"embedding", "index_select", "gather"}  # read no more of their first tensor than they return
OVERWRITES = {"copy_", "_foreach_copy_", "fill_", "zero_"}  # do not read what they change
CREATIONS = {"new_zeros", "new_full", "zeros_like", "ones_like", "full_like"}  # read no values
# Start no kernel. The guards of compiled code read floats with torch 2.11. Reading a value of the model is an error.
FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "lift_fresh",
    "promote_types",
    "_local_scalar_dense",
}
POINTWISE_SIZE = 2**20  # values. What is smaller than a layer's activations is "other"
TOKEN_SUM = 2**10  # a sum over more values than a hidden state has is a sum over tokens


@dataclass
class Need:
    """What kernels need.

    Attributes:
        kernels: number of kernels.
        bytes: bytes that they read and write.
        flops: FLOPs of matrix products and attention.
    """

    kernels: int = 0
    bytes: int = 0
    flops: int = 0

    def add(self, other: "Need") -> None:
        """Adds the needs of other kernels."""
        self.kernels += other.kernels
        self.bytes += other.bytes
        self.flops += other.flops

    def milliseconds(self) -> tuple[float, float]:
        """Returns the time of the bytes and the time of the FLOPs."""
        return 1e3 * self.bytes / BYTES_PER_SECOND, 1e3 * self.flops / FLOPS_PER_SECOND


Budget = dict[str, Need]  # of each class
COLUMNS = ("class", "kernels", "GB", "TFLOP", "ms for the bytes", "ms for the FLOPs", "ms at least")


# --- one operator -----------------------------------------------------------------------------------------------


def size_of(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor. What `expand` repeats counts once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Returns all tensors in nested lists."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def count_bytes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Returns the bytes that an operator reads and writes."""
    name = func._overloadpacket.__name__
    written = 0 if func._schema.is_mutable else sum(map(size_of, tensors_in(output)))
    read = 0
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        size = sum(map(size_of, tensors_in(value)))
        is_changed = argument.alias_info is not None and argument.alias_info.is_write
        if is_changed and name == "scatter_add_":  # changes as many values as it adds
            size = size_of(args[3])
        if is_changed and not (name == "_fused_adamw_" and argument.name == "grads"):  # only with a gradient scaler
            written += size
        if name not in CREATIONS and not (is_changed and (argument.is_out or name in OVERWRITES)):
            read += min(size, written) if name in LOOKUPS and index == 0 else size
    return read + written


def classify(name: str, shape: tuple[int, ...], weights: set[tuple[int, ...]]) -> str:
    """Returns the class of an operator of the forward and backward pass.

    Args:
        name: the operator's name, or "sum" and "fused" for a kernel of compiled code.
        shape: shape of its largest tensor.
        weights: shapes of the model's parameters.
    """
    if name in PRODUCTS:
        return "matrix products"
    if "attention" in name:
        return "attention"
    if name in EMBEDDINGS or (name == "add" and shape in weights):  # the two gradients of tied embeddings are added
        return "embeddings"
    if name == "sum" and len(shape) > 1:
        return "sums"
    if name == "randint":  # seeds of compiled dropout
        return "other"
    if shape in weights or (len(shape) > 1 and shape[0] in LOGITS):  # the padded weights of the vocabulary head
        return "casts of weights"
    if len(shape) > 1 and shape[-1] in LOGITS:
        return "vocabulary"
    if name == "_to_copy":
        return "casts of activations"
    return "pointwise" if math.prod(shape) >= POINTWISE_SIZE else "other"


class Counter(TorchDispatchMode):
    """Counts what operators and compiled code need.

    Attributes:
        budget: the needs of each class so far.
        phase: class of all operators, for clipping and the update; None: each operator has its own.
        runs_compiled: whether compiled code runs. Then only FLOPs count. `Plan` has its kernels and bytes.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.weights = {tuple(weight.shape) for weight in model.parameters()}
        self.budget: Budget = {name: Need() for name in CLASSES}
        self.phase: str | None = None
        self.runs_compiled = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Keeps compiled code from running eagerly, as it does in other modes."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The same, in newer versions of torch."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts one operator."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        tensors, name = tensors_in((args, kwargs, output)), func._overloadpacket.__name__
        if func.namespace == "aten" and tensors and not func.is_view and name not in FREE:
            largest = max(tensors, key=torch.Tensor.numel)
            need = self.budget[self.phase or classify(name, tuple(largest.shape), self.weights)]
            if name in PRODUCTS:
                need.flops += flop_registry[func._overloadpacket](*args, **kwargs, out_val=output)
            if not self.runs_compiled:
                need.kernels += 1
                need.bytes += count_bytes(func, args, kwargs, output)
        return output


# --- compiled code ----------------------------------------------------------------------------------------------


class Planned(Exception):
    """Ends inductor's work when its plan is complete."""


class Compiler:
    """A backend of torch.compile. It counts what inductor's kernels need, and runs the operators instead of them.

    inductor fuses as for Triton, which need not be installed.

    Attributes:
        counter: receives the needs whenever compiled code runs; None: they are not counted.
    """

    def __init__(self) -> None:
        self.counter: Counter | None = None

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        """Compiles the forward pass of a graph, and later its backward pass."""
        return compile_fx(graph, inputs, inner_compile=self._compile)

    def _compile(self, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        kernels = plan(graph, inputs, **options)

        def run(*tensors: Any) -> Any:
            counter = self.counter
            if counter is None:
                return graph(*tensors)
            for name, shape, size in kernels:
                need = counter.budget[classify(name, shape, counter.weights)]
                need.kernels += 1
                need.bytes += size
            counter.runs_compiled = True
            output = graph(*tensors)
            counter.runs_compiled = False
            return output

        return make_boxed_func(run)


def plan(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> list[tuple[str, tuple[int, ...], int]]:
    """Returns name, shape and bytes of inductor's kernels for a graph. Nothing is compiled.

    Raises:
        RuntimeError: inductor made no plan.
    """
    kernels: list[tuple[str, tuple[int, ...], int]] = []

    def stop(lowering: GraphLowering) -> None:
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        sizes = lowering.sizevars
        hint = sizes.optimization_hint if hasattr(sizes, "optimization_hint") else sizes.size_hint  # torch 2.11
        for node in lowering.scheduler.nodes:
            if not (isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, MultiOutput)):
                kernels.append((*describe(node, hint), node.get_read_write_buffers_sizes()))
        raise Planned

    with (
        patch.object(GraphLowering, "compile_to_module", stop),
        inductor.config.patch(cpu_backend="triton", fx_graph_cache=False),
        suppress(Planned, InductorError),
    ):
        compile_fx_inner(graph, inputs, **options)
    if not kernels:
        raise RuntimeError("inductor made no plan. This script does not fit this version of torch.")
    return kernels


def describe(node: Any, hint: Callable[[Any], int]) -> tuple[str, tuple[int, ...]]:
    """Returns name and shape of a node in inductor's plan.

    The name is an operator's, or "fused", or "sum" for a sum over tokens. The shape of a sum includes what is summed,
    and the shape of another kernel is its largest output's.
    """
    outputs = [output.node for output in node.get_outputs()]
    shapes = [tuple(map(hint, output.get_size())) for output in outputs if isinstance(output.layout, Layout)]
    shape = max(shapes, key=math.prod, default=())
    if node.is_extern():
        return node.node.op_overload._overloadpacket.__name__, shape
    if not node.is_reduction():
        return "fused", shape
    count, summed = map(hint, node.group[1])
    if summed in LOGITS:
        return "fused", (count, summed)
    return ("sum", (summed, count)) if summed > TOKEN_SUM else ("fused", shape)


# --- one step ---------------------------------------------------------------------------------------------------


def act_as_cuda() -> ExitStack:
    """Returns a context in which a CPU runs the operators of CUDA."""

    def dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.ops.aten.native_dropout(values, p, True)[0] if training and p else values

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, scale=None, **kwargs):  # type: ignore[no-untyped-def]
        bias = None
        if attn_mask is not None:
            shape = (*query.shape[:3], key.shape[2])
            bias = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf).expand(shape)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        return kernel(query, key, value, bias, True, dropout_p, False, scale=scale)[0]

    def in_float32(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda values, *args, **kwargs: function(values.float(), *args, **kwargs)

    def project(layer: torch.nn.Linear, values: torch.Tensor) -> torch.Tensor:
        return kernels_snugbert.padded_linear(values, layer.weight, layer.bias)

    context = ExitStack()
    context.enter_context(patch.object(kernels_snugbert, "OWN_KERNELS", set()))
    # Both take fake weights for sharded or quantized ones.
    context.enter_context(patch.object(modeling_snugbert.SnugBertVocabularyProjection, "forward", project))
    context.enter_context(patch.object(modeling_snugbert, "is_plain_linear", lambda layer: True))
    context.enter_context(patch.object(F, "dropout", dropout))
    context.enter_context(patch.object(F, "scaled_dot_product_attention", attention))
    for name in ("layer_norm", "cross_entropy"):
        context.enter_context(patch.object(F, name, in_float32(getattr(F, name))))
    return context


def draw_batches(pairs: int, longest: int) -> dict[str, Batch]:
    """Draws a batch of sentence pairs with real lengths, packed as `ours` and padded as `stock`."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(PAIR_LENGTHS, pairs, longest, rng)
    return {side: batches[0] for side, batches in make_pretraining_batches(lengths, pairs, VOCABULARY, rng).items()}


def count_step(side: str, batches: dict[str, Batch]) -> Budget:
    """Counts what a step of BERT base needs.

    Args:
        side: one of [`SIDES`].
        batches: from [`draw_batches`].
    """
    is_stock = side.startswith("stock")
    batch = batches["stock" if is_stock else "ours"]
    compiler = Compiler()
    with act_as_cuda(), FakeTensorMode() as mode:
        if is_stock:
            model: PreTrainedModel = BertForPreTraining(BertConfig(attn_implementation="sdpa"))
        else:
            model = SnugBertForPreTraining(SnugBertConfig())
        model.train()
        if side.endswith("compiled"):
            compile_model(model, compiler)
        fake = {
            name: mode.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        if not is_stock:
            fake["count_correct"] = True  # as in PretrainingTrainer
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        counter = Counter(model)
        gradients = FlatGradients(model.parameters())

        def step() -> None:
            counter.phase = None
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(**fake)
            counter.phase = "outputs to float32"
            loss = convert_to_fp32(outputs).loss
            counter.phase = None
            loss.backward()
            if side.endswith("compiled"):
                counter.phase = "gradients of graphs"
                gradients.attach(model.parameters())
            counter.phase = "clipping"
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            counter.phase = "AdamW"
            optimizer.step()
            optimizer.zero_grad()

        step()  # compiles, and allocates gradients and the optimizer's state
        compiler.counter = counter
        with counter:
            step()
    counter.budget["attention"].flops += count_attention(model.config, batch, is_stock)
    return counter.budget


def count_attention(config: PreTrainedConfig, batch: Batch, is_stock: bool) -> int:
    """Returns the FLOPs of attention. The backward pass has five products: it computes the scores again."""
    if is_stock:
        rows, length = batch["input_ids"].shape
        pairs = config.num_hidden_layers * rows * length**2
    else:
        lengths, labeled = count_sequence_tokens(batch)
        # The last layer has queries for labeled and first tokens only.
        pairs = int((lengths * ((config.num_hidden_layers - 1) * lengths + labeled + 1)).sum())
    return (2 + 5) * 2 * config.hidden_size * pairs


def format_rows(budget: Budget) -> list[str]:
    """Returns the lines of a table, without its header. The last line is their sum."""
    rows, total, fastest = [], Need(), 0.0
    for name, need in budget.items():
        rows.append(format_row(name, need, max(need.milliseconds())))
        total.add(need)
        fastest += max(need.milliseconds())
    return [*rows, format_row("all", total, fastest)]


def format_row(name: str, need: Need, fastest: float) -> str:
    """Returns a line of a table."""
    cells = [name, f"{need.kernels:,}", f"{need.bytes / 1e9:.2f}", f"{need.flops / 1e12:.2f}"]
    return format_line([*cells, *(f"{time:.2f}" for time in (*need.milliseconds(), fastest))])


def main(argv: list[str]) -> None:
    """Prints a table of each size and side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(argv)
    print("# The budget of a step\n\n    python benchmarks/step_budget.py\n")
    print(f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}")
    for pairs, longest in SIZES:
        batches = draw_batches(pairs, longest)
        tokens, labels = batches["ours"]["input_ids"].numel(), len(batches["ours"]["label_indices"])
        print(f"\n## {pairs} x {longest}: {tokens:,} tokens, {labels:,} labels")
        for side in SIDES:
            rows = format_rows(count_step(side, batches))
            title = f"\n### {side}, {pairs} x {longest}\n"
            print(title, format_header(COLUMNS), *rows, sep="\n", flush=True)
            if (side, pairs) in MEASURED:
                graphs = ", in CUDA graphs" if "compiled" in side else ""
                print(f"\nMeasured on an H100{graphs}: {MEASURED[side, pairs]} ms")


if __name__ == "__main__":
    main(sys.argv[1:])
