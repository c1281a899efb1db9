"""Throughput of DDP and FSDP2 on many GPUs, computed from message sizes, step times and bandwidths. Nothing runs.

    python benchmarks/gpu_scaling.py

S is the size in bytes of all gradients, which is also the size of all weights: both are float32. A machine has g GPUs,
and there are N machines.

- DDP: one all-reduce in each step, in buckets. On a machine it sends 2 (g-1)/g S over NVLink, and between machines
  2 (N-1)/N S through the network ports of each machine. A flat ring over 64 GPUs sends 12 % more between machines,
  over 1,000 GPUs 1 %.
- FSDP2: two gathers of the weights, for the forward and the backward pass, and one reduce-scatter of the gradients.
  Each is half of an all-reduce.
- Accumulation over k batches: DDP sends once. FSDP2 gathers for each batch and reduces once.
- Each message also takes the latency in NCCL's own cost model: all-reduces use a tree, and gathers and
  reduce-scatters a ring through all GPUs.

The script prints two bounds. With overlap, DDP hides messages behind the backward pass, two thirds of a step, and
FSDP2 behind the whole step. Parameters outside the layers, mostly embeddings that the head shares, get their gradients
last and are needed first, so their messages are never hidden. Without overlap, times add up. Stragglers, congestion
and the data pipeline are left out.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from steps import format_table

from snugbert import SnugBertConfig, SnugBertForPreTraining
from snugbert.trainers.pretraining.training_log import pretraining_flops

GPUS = (8, 64, 1000)
SEQUENCES, LENGTH = 256, 128  # of a GPU in a batch
ACCUMULATION = 8
# benchmarks/results/gpu_quick_h100_202611.md: tokens without padding, and seconds of a step of BERT base, compiled.
TOKENS = 124  # of a sequence: 615,443 tokens/s x 51.6 ms / 256
GPU_SECONDS = {32: 10.9e-3, 256: 51.6e-3}  # in CUDA graphs, so that the GPU is busy
HOST_SECONDS = 24.7e-3  # 32 sequences without graphs: Python limits the speed. Graphs are off with several processes
FORWARD = 1 / 3  # share of a step
LABELED = 0.15
FLOAT32 = 4
BUCKET = 25 * 2**20  # torch's default for DDP
# Seconds of a hop in NCCL's cost model, protocol LL128: hwLat in src/graph/tuning.cc.
TREE_NVLINK, TREE_NETWORK, RING_NVLINK, RING_NETWORK = 1.25e-6, 8.5e-6, 1.9e-6, 4.0e-6


@dataclass(frozen=True)
class Cluster:
    """A kind of machine and its network. Bandwidths are bytes per second in one direction."""

    name: str
    gpus: int  # of a machine
    nvlink: float  # of a GPU
    network: float  # of all ports of a machine


# NVLink: bus bandwidth of 8 H100 in an all-reduce of 134 MB. 400 Gb/s: 46 to 48 GB/s of each port. Both are in
# https://github.com/NVIDIA/nccl-tests/issues/290. Ethernet: 90 % of one port, an assumption.
CLUSTERS = (
    Cluster("8 x 400 Gb/s InfiniBand", 8, 383e9, 8 * 46e9),
    Cluster("100 Gb/s Ethernet", 8, 383e9, 0.9 * 12.5e9),
)
# For comparison: BERT large on 64 DGX-2H, NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md
# (2020). 64 sequences of a GPU take 16 x 64 / 3,379 seconds on one machine. 16-bit gradients, sent after the backward
# pass of the last of DGX2_BATCHES / machines batches: a step always has 65,536 sequences. Bandwidths: 92 % of 8 ports
# of 100 Gb/s, and 80 % of 150 GB/s.
DGX2 = Cluster("DGX-2H", 16, 0.8 * 150e9, 0.92 * 8 * 12.5e9)
DGX2_SECONDS, DGX2_BATCHES = 16 * 64 / 3379.2, 64
DGX2_MEASURED = {4: 3.76 / 4, 16: 15.37 / 16, 64: 55.66 / 64}


@dataclass(frozen=True)
class Work:
    """What a GPU does in a batch."""

    name: str
    parameters: int
    outside: int  # parameters outside the layers
    groups: int  # of parameters, under FSDP2: each layer and the rest
    seconds: float


@cache
def make_work(size: str, sequences: int) -> Work:
    """Describes a batch of a model. The large model takes as long per FLOP as the base model: it was not measured."""
    base, config = SnugBertConfig.from_size("base"), SnugBertConfig.from_size(size)
    with torch.device("meta"):
        parameters = {name: each.numel() for name, each in SnugBertForPreTraining(config).named_parameters()}
    outside = sum(number for name, number in parameters.items() if ".layer." not in name)
    factor = count_flops(config) / count_flops(base)
    (few, least), (many, most) = GPU_SECONDS.items()
    on_gpu = least + (sequences - few) * (most - least) / (many - few)
    on_host = HOST_SECONDS * config.num_hidden_layers / base.num_hidden_layers
    seconds = max(factor * on_gpu, on_host)
    return Work(size, sum(parameters.values()), outside, config.num_hidden_layers + 1, seconds)


def count_flops(config: SnugBertConfig) -> int:
    """Returns the FLOPs of a sequence."""
    return pretraining_flops(config, torch.tensor([TOKENS]), torch.tensor([round(LABELED * TOKENS)]))


# --- messages ---------------------------------------------------------------------------------------------------


def count_machines(gpus: int, cluster: Cluster) -> tuple[int, int]:
    """Returns the number of machines, and of GPUs on each."""
    return -(-gpus // cluster.gpus), min(gpus, cluster.gpus)


def gather_seconds(size: int, messages: int, gpus: int, cluster: Cluster) -> float:
    """Seconds to gather `size` bytes in some messages, or to reduce and scatter them: a ring."""
    machines, each = count_machines(gpus, cluster)
    seconds = (each - 1) / each * size / cluster.nvlink + (machines - 1) / machines * size / cluster.network
    hops = (gpus - machines) * RING_NVLINK + (machines - 1) * RING_NETWORK
    return seconds + messages * hops


def all_reduce_seconds(size: int, messages: int, gpus: int, cluster: Cluster) -> float:
    """Seconds to add up `size` bytes of each GPU in some messages: as many bytes as two gathers, in a tree."""
    machines, each = count_machines(gpus, cluster)
    hops = 2 * ((each - 1) * TREE_NVLINK + math.floor(math.log2(machines)) * TREE_NETWORK)
    return 2 * gather_seconds(size, 0, gpus, cluster) + messages * hops


def step_seconds(method: str, accumulation: int, work: Work, gpus: int, cluster: Cluster) -> tuple[float, float]:
    """Seconds of a step, with overlap and without.

    Args:
        method: "DDP" or "FSDP2".
        accumulation: batches of a step.
        work: of a GPU in a batch.
        gpus: number of GPUs.
        cluster: the machines.
    """
    size, computed = FLOAT32 * work.parameters, accumulation * work.seconds
    rest, earlier = FLOAT32 * work.outside, computed - work.seconds
    if method == "DDP":
        sent = all_reduce_seconds(size, -(-size // BUCKET), gpus, cluster)
        exposed = all_reduce_seconds(rest, 1, gpus, cluster)
        last = FORWARD * work.seconds + max((1 - FORWARD) * work.seconds, sent - exposed) + exposed
        return earlier + last, computed + sent
    one = gather_seconds(size, work.groups, gpus, cluster)
    exposed = gather_seconds(rest, 1, gpus, cluster)
    earlier = (accumulation - 1) * (max(work.seconds, 2 * one - exposed) + exposed)
    last = max(work.seconds, 3 * one - 2 * exposed) + 2 * exposed
    return earlier + last, computed + (2 * accumulation + 1) * one


# --- tables -----------------------------------------------------------------------------------------------------


def format_throughput() -> str:
    """Makes the table of all models, clusters, methods and numbers of GPUs."""
    rows = [["model", "network", "GPUs", "method", "sequences of a GPU", "messages, ms"]]
    rows[0] += [f"{each}, with overlap / without" for each in ("step, ms", "million tokens/s", "efficiency, %")]
    cases = [(SEQUENCES, gpus) for gpus in GPUS] + [(SEQUENCES // 4, GPUS[-1])]
    methods = (("DDP", 1), ("DDP", ACCUMULATION), ("FSDP2", 1))
    for size in ("base", "large"):
        for cluster in CLUSTERS:
            for sequences, gpus in cases:
                if gpus <= cluster.gpus and cluster != CLUSTERS[0]:  # one machine needs no network
                    continue
                for method, accumulation in methods if sequences == SEQUENCES else methods[:1]:
                    rows.append(format_row(method, accumulation, make_work(size, sequences), sequences, gpus, cluster))
    return format_table(rows)


def format_row(method: str, accumulation: int, work: Work, sequences: int, gpus: int, cluster: Cluster) -> list[str]:
    """Makes a row of the table. The efficiency is relative to as many GPUs that send nothing."""
    computed = accumulation * work.seconds
    bounds = step_seconds(method, accumulation, work, gpus, cluster)
    tokens = accumulation * gpus * sequences * TOKENS
    title = method if accumulation == 1 else f"{method}, {accumulation} batches accumulated"
    network = "NVLink" if gpus <= cluster.gpus else cluster.name
    return [
        *(work.name, network, f"{gpus:,}", title, str(sequences), f"{1e3 * (bounds[1] - computed):.1f}"),
        " / ".join(f"{1e3 * seconds:.1f}" for seconds in bounds),
        " / ".join(f"{tokens / seconds / 1e6:,.1f}" for seconds in bounds),
        " / ".join(f"{100 * computed / seconds:.0f}" for seconds in bounds),
    ]


def format_comparison() -> str:
    """Makes the table of published measurements beside the formulas."""
    size = 2 * make_work("large", SEQUENCES).parameters
    rows = [["GPUs", "batches accumulated", "efficiency measured, %", "by the formulas, without overlap, %"]]
    one = all_reduce_seconds(size, 1, DGX2.gpus, DGX2) / DGX2_BATCHES  # the measured time of one machine has it
    for machines, measured in DGX2_MEASURED.items():
        batches = DGX2_BATCHES // machines
        sent = all_reduce_seconds(size, 1, machines * DGX2.gpus, DGX2) / batches
        computed = 100 * DGX2_SECONDS / (DGX2_SECONDS + sent - one)
        rows.append([f"{machines * DGX2.gpus:,}", str(batches), f"{100 * measured:.0f}", f"{computed:.0f}"])
    return format_table(rows)


def report() -> str:
    """Makes both tables."""
    works = [make_work(size, SEQUENCES) for size in ("base", "large")]
    sizes = ", ".join(f"{work.name} {FLOAT32 * work.parameters / 1e6:,.0f} MB" for work in works)
    return (
        f"Gradients in float32: {sizes}. A batch of {SEQUENCES} x {LENGTH} on one GPU: "
        + ", ".join(f"{work.name} {1e3 * work.seconds:.1f} ms" for work in works)
        + f".\n\n{format_throughput()}\n\nBERT large on DGX-2H (V100), 64 sequences of a GPU, as published by NVIDIA, "
        f"relative to one machine:\n\n{format_comparison()}"
    )


if __name__ == "__main__":
    print(report())
