"""Computes how long each size takes from measured speeds, and prints the tables of docs/how-to/sizes.md.

    python benchmarks/sizes.py

Speeds were measured in benchmarks/results/sizes_epyc-2-cores_202611.md and gpu_quick_h100_202611.md. The speeds of the
other sizes on an H100 are computed, see [`compute_gpu_speeds`].
"""

from typing import NamedTuple

import torch
from reporting import format_header, format_line

from snugbert.configuration_snugbert import SIZES, SnugBertConfig
from snugbert.trainers.pretraining.training_log import pretraining_flops

TOKENS_PER_BYTE = 236e6 / 1e9  # of English, benchmarks/results/scale_epyc-2-cores_202611.md
LENGTH, EPOCHS = 128, 3
TEXTS = {"10 MB": 1e7, "100 MB": 1e8, "1 GB": 1e9, "10 GB": 1e10}
ROWS = (500, 5_000, 50_000, 500_000)
# Two cores of an AMD EPYC with AVX512-BF16, in bfloat16: tokens/s of pretraining, rows/s of fine-tuning.
CPU_TOKENS = {"tiny": 33_100, "mini": 9_960, "small": 3_620, "base": 586, "large": 141}
CPU_ROWS = {"tiny": 485, "mini": 157, "small": 67.9, "base": 9.60, "large": 1.96}
# One H100: `base` with 256 x 128 tokens, and with batches of 32 texts of 56 tokens (here: 64) in CUDA graphs.
GPU_TOKENS, GPU_ROWS = 615_443, 32 / 8.4e-3 * 56 / 64
MOST_GPU_TOKENS = 1.6e6  # several runs of `mini` on one machine together; the cores that make batches are the limit
GPUS = 8


class Device(NamedTuple):
    """A device, with the speed of each size in the tables. `measured` lists the sizes that were not computed."""

    name: str
    tokens: dict[str, float]
    rows: dict[str, float]
    measured: tuple[str, ...]


def count_flops(size: str) -> int:
    """Counts the FLOPs of a sequence of `LENGTH` tokens with 15 % masks."""
    config = SnugBertConfig.from_size(size, vocab_size=30_522)
    return pretraining_flops(config, torch.tensor([LENGTH]), torch.tensor([round(0.15 * LENGTH)]))


def compute_gpu_speeds() -> tuple[dict[str, float], dict[str, float]]:
    """Computes tokens/s and rows/s on an H100 from the measured speed of `base`.

    The time of larger models grows with their FLOPs. CPU cores limit smaller models in pretraining. In fine-tuning,
    the number of kernels limits them, and grows with the layers.
    """
    base, tokens, rows = count_flops("base"), {}, {}
    for size in CPU_TOKENS:
        more = count_flops(size) / base
        tokens[size] = min(GPU_TOKENS / more, MOST_GPU_TOKENS)
        rows[size] = GPU_ROWS / (more if more > 1 else SIZES[size][0] / SIZES["base"][0])
    return tokens, rows


def list_devices() -> list[Device]:
    """Returns the devices of the tables."""
    tokens, rows = compute_gpu_speeds()
    eight = [{size: GPUS * speeds[size] for size in ("base", "large")} for speeds in (tokens, rows)]
    return [
        Device("two cores", CPU_TOKENS, CPU_ROWS, tuple(CPU_TOKENS)),
        Device("one H100", tokens, rows, ("base",)),
        Device(f"{GPUS} H100", *eight, ()),
    ]


def round_number(number: float) -> str:
    """Formats a number with two digits."""
    return f"{float(f'{number:.2g}'):,.{0 if number >= 10 else 1}f}".removesuffix(".0")


def format_time(seconds: float) -> str:
    """Formats a time with two digits, in the unit that a person would use."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("min", 60), ("s", 1)):
        if seconds >= (2 if unit == "days" else 1) * length:
            return f"{round_number(seconds / length)} {unit}"
    return "< 1 s"


def format_tables() -> list[str]:
    """Returns the tables of pretraining and of fine-tuning. A star marks computed times."""
    pretraining = [format_header(["device", "size", "tokens/s", *TEXTS])]
    fine_tuning = [format_header(["device", "size", "rows/s", *(f"{rows:,} rows" for rows in ROWS)])]
    for device in list_devices():
        for size in device.tokens:
            name = size if size in device.measured else f"{size}*"
            tokens, rows = device.tokens[size], device.rows[size]
            times = [format_time(length * TOKENS_PER_BYTE / tokens) for length in TEXTS.values()]
            pretraining.append(format_line([device.name, name, round_number(tokens), *times]))
            times = [format_time(EPOCHS * number / rows) for number in ROWS]
            fine_tuning.append(format_line([device.name, name, round_number(rows), *times]))
    return ["\n".join(pretraining), "\n".join(fine_tuning)]


if __name__ == "__main__":
    print("\n\n".join(format_tables()))
