r"""The host's work in a training step on a GPU, measured on a CPU with kernels that do nothing.

    python benchmarks/host_time.py

At small batches, a GPU computes faster than Python can start kernels. This script measures the host's side: a
pretraining step of BERT with 12 layers on 32 packed pairs, dropout 0.1, the update by fused AdamW, under bfloat16
autocast and in float32. It runs SnugBERT's code for a GPU and stock BERT with sdpa.

The model runs the same operations as BERT-base on tiny tensors: hidden states have 8 dimensions, and sequences 2 to 6
tokens. `host_kernels.cpp` replaces matrix products, attention, LayerNorm, GELU and dropout by kernels that only
allocate their results. The other kernels run on about a thousand numbers. The script prints the time of one such
operation, which is included in every time. On a GPU, each kernel adds a launch, about 2 to 5 microseconds. The update
treats all tensors at once on a GPU, and one after the other here. Times are of the processor, so that other processes
matter little. The sides take turns.

Operations are counted exactly, in a step that is not timed. One count has every operation that reaches a device. The
count of kernels leaves out views and allocations.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nested._internal.sdpa as nested
from gpu_batches import make_pretraining_batches
from reporting import format_header, format_line, format_machine
from side_by_side import Batch, describe_machine
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.cpp_extension import include_paths, library_paths
from transformers import BertConfig, BertForPreTraining, PreTrainedModel

from snugbert import SnugBertConfig, SnugBertForPreTraining, kernels_snugbert

PHASES = ("forward", "backward", "update")
VOCABULARY = 62  # like 30,522, not a multiple of 8
PAIRS = 32
FIELDS = {
    "hidden_size": 8,
    "num_attention_heads": 1,
    "intermediate_size": 32,
    "num_hidden_layers": 12,
    "vocab_size": VOCABULARY,
}
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh")
COLUMNS = ("side", "dtype", *(f"{phase}: operations (kernels), ms" for phase in PHASES), "ms")


def load_kernels() -> None:
    """Compiles and loads `host_kernels.cpp`. Takes about ten seconds."""
    source = Path(__file__).with_name("host_kernels.cpp")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "host_kernels.so"
        options = [
            "-O1",
            "-std=c++20",
            "-shared",
            "-fPIC",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        ]
        paths = [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
        libraries = ["-ltorch", "-ltorch_cpu", "-lc10"]
        subprocess.run(["g++", *options, *paths, str(source), "-o", str(library), *libraries], check=True)
        torch.ops.load_library(library)


def act_as_gpu() -> None:
    """Makes SnugBERT run on a CPU what it runs on a GPU."""
    kernels_snugbert.OWN_KERNELS.clear()
    # Versions that used nested tensors. On a CPU, torch would choose no fused kernel for them.
    nested.can_use_flash_attention = lambda params, debug=False: params.query.dtype != torch.float32
    nested.can_use_efficient_attention = lambda params, debug=False: True


def make_batches() -> dict[str, Batch]:
    """Returns a batch of each side."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 7, PAIRS).tolist()
    return {side: batches[0] for side, batches in make_pretraining_batches(lengths, PAIRS, VOCABULARY, rng).items()}


class Counter(TorchDispatchMode):
    """Counts operations and kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts one operation. Nested tensors are asked to run theirs on plain tensors first."""
        if any(kind is not torch.Tensor and not issubclass(kind, torch.nn.Parameter) for kind in types):
            return NotImplemented
        self.operations += 1
        self.kernels += not (func.is_view or func._overloadpacket.__name__ in ALLOCATIONS)
        return func(*args, **kwargs or {})


def make_phases(model: PreTrainedModel, batch: Batch, dtype: torch.dtype) -> list[Callable[[], None]]:
    """Returns the phases of a step. Called in order, they make one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    losses = []

    def forward() -> None:
        with nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype):
            losses.append(model(**batch).loss)

    def backward() -> None:
        losses.pop().backward()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return [forward, backward, update]


def count_operations(phase: Callable[[], None]) -> str:
    """Runs a phase, and returns its operations and kernels."""
    with Counter() as counter:
        phase()
    return f"{counter.operations:,} ({counter.kernels:,})"


def time_phases(sides: list[list[Callable[[], None]]], steps: int) -> list[list[float]]:
    """Returns the median milliseconds of each phase of each side. The sides take turns."""
    times: list[list[list[float]]] = [[[] for _ in phases] for phases in sides]
    gc.disable()
    for _ in range(steps):
        for phases, measured in zip(sides, times, strict=True):
            for phase, milliseconds in zip(phases, measured, strict=True):
                start = time.process_time()
                phase()
                milliseconds.append(1e3 * (time.process_time() - start))
    gc.enable()
    return [[median(milliseconds[steps // 5 :]) for milliseconds in measured] for measured in times]


def time_operation(operation: Callable[[], Any]) -> float:
    """Returns the microseconds of an operation."""
    rounds = []
    for _ in range(20):
        start = time.process_time()
        for _ in range(1000):
            operation()
        rounds.append(1e3 * (time.process_time() - start))
    return median(rounds)


def print_rows(steps: int) -> None:
    """Prints the rows of both sides."""
    batches = make_batches()
    for dtype in (torch.bfloat16, torch.float32):
        torch.manual_seed(0)
        ours = SnugBertForPreTraining(SnugBertConfig(**FIELDS))
        stock = BertForPreTraining(BertConfig(**FIELDS, attn_implementation="sdpa"))
        models = {"SnugBERT": (ours, batches["ours"]), "stock BERT": (stock, batches["stock"])}
        phases = [make_phases(model.train(), batch, dtype) for model, batch in models.values()]
        for side, own_phases, times in zip(models, phases, time_phases(phases, steps), strict=True):
            counts = [count_operations(phase) for phase in own_phases]
            cells = [f"{count}, {ms:.1f}" for count, ms in zip(counts, times, strict=True)]
            print(format_line([side, str(dtype).removeprefix("torch."), *cells, f"{sum(times):.1f}"]), flush=True)


def main(argv: list[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    load_kernels()
    act_as_gpu()
    values, left = torch.zeros(128, 8), torch.zeros(8, 8)
    addition, product = time_operation(lambda: values + values), time_operation(lambda: values @ left)
    print(format_machine(describe_machine("cpu")))
    print(f"Microseconds of an addition: {addition:.2f}; of a product without a kernel: {product:.2f}.\n")
    print(format_header(COLUMNS), flush=True)
    print_rows(args.steps)


if __name__ == "__main__":
    main(sys.argv[1:])
