"""The table of `benchmarks/gpu.sh quick`, as Markdown. It needs neither torch nor a GPU.

Ratios and gains compare rows of one file only, because each file is from one call on one card.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
# Dense bfloat16 FLOPs per second in NVIDIA's datasheets. The first name that is part of the device's name counts.
DATASHEET = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
STEP_HEADER = (
    "work",
    "side",
    "ms (range)",
    "tokens/s",
    "MFU",
    "peak MB (reserved)",
    "speed / stock",
    "memory / stock",
)
# What a change gains: its name, the side without it, the side with it.
CHANGES = (
    ("compiled", "SnugBERT", "SnugBERT, compiled"),
    ("graphs", "SnugBERT", "SnugBERT, graphs"),
    ("graphs, if compiled", "SnugBERT, compiled", "SnugBERT, compiled, graphs"),
    ("compiled, stock BERT", "stock sdpa", "stock sdpa, compiled"),
)
# The same, from single kernels. The gain is for all layers of a step.
KERNEL_CHANGES = (
    ("q, k, v in one product", "q, k, v, three products", "q, k, v, one product"),
    ("cuDNN attention, packed", "flash attention, packed", "cuDNN attention, packed"),
    ("cuDNN attention, padded, mask", "flash attention, packed", "cuDNN attention, padded, mask"),
    ("dropout, residual, LayerNorm compiled", "dropout, residual, LayerNorm", "the same, compiled"),
    ("bfloat16 residual, if compiled", "the same, compiled", "the same, compiled, bfloat16 residual"),
)


def read_rows(path: Path) -> dict[str, Row]:
    """Reads the rows of a piece by name; none if it has not run. The last line of a row counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["row"]: row for row in map(json.loads, lines)}


def format_results(output_dir: Path, pieces: Iterable[str]) -> str:
    """Formats the results of all pieces in a folder.

    Raises:
        SystemExit: there are none.
    """
    rows = {piece: read_rows(output_dir / f"{piece}.jsonl") for piece in pieces}
    devices = [found.pop("device") for found in rows.values() if "device" in found]
    machine = next((row["machine"] for row in devices if "machine" in row), None)
    if machine is None:
        raise SystemExit(f"error: --output_dir: no results in {output_dir}.")
    datasheet = next((flops for name, flops in DATASHEET.items() if name in machine["device"]), None)
    best = max(row["bfloat16_flops"] for row in devices if "machine" in row)
    facts = [f"Best bfloat16 product: {best / 1e12:,.1f} TFLOP/s"]
    if datasheet:
        facts.append(f"datasheet: {datasheet / 1e12:,.0f}")
    copied = rows["products"].get("copy", {})
    if "ms" in copied:
        facts.append(f"copy: {copied['bytes'] / copied['ms']['copy'] / 1e9:.2f} TB/s")
    sections = [
        "# SnugBERT and stock BERT on one GPU",
        ", ".join(f"{name} {value}" for name, value in machine.items()) + f".\n{', '.join(facts)}.",
        format_section("Losses and gradients", format_checks(rows["correctness"])),
        format_section("Steps", format_steps(rows["steps"] | rows["lengths"], datasheet or best)),
        format_section("Gains, ms of a step", format_gains(rows["steps"], rows["products"])),
        format_section("Kernels of a step, ms: launches", format_profiles(rows["profile"])),
        format_section("Single kernels", format_kernels(rows["products"])),
        format_section("Not measured", format_errors(rows)),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def format_section(title: str, text: str) -> str:
    """Adds a title; nothing without text."""
    return text and f"## {title}\n\n{text}"


def format_table(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Formats a Markdown table; nothing without lines."""
    header, lines = list(header), [list(line) for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines)) if lines else ""


def split(name: str) -> tuple[str, str]:
    """Splits the name of a row into work and side."""
    work, _, side = name.partition(" | ")
    return work, side


def measured(rows: dict[str, Row]) -> dict[str, Row]:
    """Returns the rows without an error."""
    return {name: row for name, row in rows.items() if "error" not in row}


def list_works(rows: dict[str, Row]) -> list[str]:
    """Returns the works of rows, each once."""
    return list(dict.fromkeys(split(name)[0] for name in rows))


def format_checks(rows: dict[str, Row]) -> str:
    """Formats `correctness`: relative distances from stock BERT in float32."""
    lines = []
    for name, row in measured(rows).items():
        work, side = split(name)
        if row.get("graphs") == 0:
            side += " (none recorded)"
        limits = row["limits"]
        found = {key: worst(distances[key] for distances in row["found"].values()) for key in limits}
        verdict = "equal" if all(found[key] <= limits[key] for key in limits) else "**DIFFERENT**"
        distances = [f"{found[key]:.1e} ({limits[key]:.1e})" for key in ("loss", "gradients")]
        lines.append([work, side, " and ".join(row["found"]), verdict, *distances])
    return format_table(("head, dtype", "side", "batch", "", "loss (limit)", "gradients (limit)"), lines)


def worst(distances: Iterable[float]) -> float:
    """Returns the largest distance; NaN if one is NaN."""
    return max(distances, key=lambda distance: (distance != distance, distance))


def milliseconds(row: Row) -> list[float]:
    """Returns the ms of a step in each round, in order of size."""
    return sorted(1e3 * seconds / row["steps"] for seconds in row["seconds"])


def format_steps(rows: dict[str, Row], peak: float) -> str:
    """Formats `steps` and `lengths`. MFU is a share of `peak` FLOPs per second. Stock is stock sdpa, not compiled."""
    lines = []
    works = list_works(rows)
    for name, row in sorted(measured(rows).items(), key=lambda item: works.index(split(item[0])[0])):
        work, side = split(name)
        if row["graphs"] is not None:
            side += f" ({row['graphs'] or 'none'} recorded, fill {row['fill']:.1%})"
        ms = milliseconds(row)
        seconds = median(row["seconds"])
        stock = measured(rows).get(f"{work} | stock sdpa")
        memory, speed, memory_ratio = "", "", ""
        if row["peak_mb"]:
            memory = f"{row['peak_mb']:,.0f} ({row['reserved_mb']:,.0f})"
        if stock:
            speed = f"{median(milliseconds(stock)) / median(ms):.2f}"
            memory_ratio = f"{row['peak_mb'] / stock['peak_mb']:.2f}" if row["peak_mb"] else ""
        lines.append(
            [
                work,
                side,
                f"{median(ms):.1f} ({ms[0]:.1f}-{ms[-1]:.1f})",
                f"{row['tokens'] / seconds:,.0f}",
                f"{row['needed_flops'] / seconds / peak:.1%}",
                memory,
                speed,
                memory_ratio,
            ]
        )
    return format_table(STEP_HEADER, lines)


def format_gains(steps: dict[str, Row], products: dict[str, Row]) -> str:
    """Formats how much each change gains, from whole steps and from single kernels."""
    shapes = list(dict.fromkeys(work.rpartition(", ")[2] for work in list_works(steps | products) if work != "copy"))
    pretraining = {name.removeprefix("pretraining, "): row for name, row in measured(steps).items()}
    lines = []
    for changes, rows, ms in ((CHANGES, pretraining, step_ms), (KERNEL_CHANGES, measured(products), kernel_ms)):
        for change, before, after in changes:
            pairs = [(rows.get(f"{shape} | {before}"), rows.get(f"{shape} | {after}")) for shape in shapes]
            cells = [format_gain(*pair, ms) for pair in pairs]
            if any(cells):
                lines.append([change, "whole steps" if ms is step_ms else "single kernels", *cells])
    return format_table(("change", "measured with", *shapes), lines)


def step_ms(row: Row) -> float:
    """Returns the median ms of a step."""
    return median(milliseconds(row))


def kernel_ms(row: Row) -> float:
    """Returns the ms of a kernel, forward and backward, in all layers of a step."""
    return sum(row["ms"].values()) * row["per_step"]


def format_gain(before: Row | None, after: Row | None, ms: Callable[[Row], float]) -> str:
    """Formats the gain of a change in ms; nothing if a row is missing."""
    if before is None or after is None:
        return ""
    return f"{ms(before) - ms(after):+.1f} ({ms(before):.1f} to {ms(after):.1f})"


def format_profiles(rows: dict[str, Row]) -> str:
    """Formats `profile`: a column per row, a line per class of kernel, and the slowest kernels."""
    rows = measured(rows)
    names = sorted({name for row in rows.values() for name in row["classes"]})
    names.sort(key=lambda name: -max(row["classes"].get(name, [0])[0] for row in rows.values()))
    lines = []
    for name in names:
        found = [row["classes"].get(name) for row in rows.values()]
        lines.append([name, *(f"{ms_and[0]:.2f}: {ms_and[1]:.0f}" if ms_and else "" for ms_and in found)])
    totals = [[sum(column) for column in zip(*row["classes"].values(), strict=True)] for row in rows.values()]
    lines.append(["all kernels", *(f"{total[0]:.2f}: {total[1]:.0f}" if total else "" for total in totals)])
    lines.append(["step, without the profiler", *(f"{row['ms']:.2f}" for row in rows.values())])
    lines.append(["GPU busy", *(f"{row['busy']:.0%}" for row in rows.values())])
    lines.append(["waits of the CPU", *(f"{sum(row['waits'].values()):.1f}" for row in rows.values())])
    text = format_table(("kernels", *(name.replace(" | ", ", ") for name in rows)), lines if rows else [])
    for name, row in rows.items():
        text += f"\n\nSlowest kernels of {name.replace(' | ', ', ')}:\n" if row["kernels"] else ""
        text += "".join(
            f"\n- {ms:.2f} ms, {launches:.0f}: `{kernel[:90]}`" for kernel, (ms, launches) in row["kernels"].items()
        )
        text += "".join(f"\n- {count:.1f} waits at {place}" for place, count in row["waits"].items())
    return text


def format_kernels(rows: dict[str, Row]) -> str:
    """Formats `products`: a column per shape, a line per kernel."""
    rows = {name: row for name, row in measured(rows).items() if name != "copy"}
    shapes = list_works(rows)
    lines = []
    for kernel in dict.fromkeys(split(name)[1] for name in rows):
        found = [rows.get(f"{shape} | {kernel}") for shape in shapes]
        lines.append([kernel, *(format_kernel(row) if row else "" for row in found)])
    return format_table(("kernel, ms of one call", *shapes), lines)


def format_kernel(row: Row) -> str:
    """Formats the ms of one call, and the rate if it is known."""
    ms = row["ms"]
    rates = {name: f" ({row['bytes'] / ms[name] / 1e9:.2f} TB/s)" if "bytes" in row else "" for name in ms}
    text = ", ".join(f"{name} {ms[name]:.3f}{rates[name]}" for name in ms)
    if "flops" in row:
        text += f"; {row['flops'] * len(ms) / sum(ms.values()) / 1e9:,.0f} TFLOP/s"
    return text


def format_errors(rows: dict[str, dict[str, Row]]) -> str:
    """Lists the rows with an error."""
    errors = [
        (piece, name, row["error"]) for piece, found in rows.items() for name, row in found.items() if "error" in row
    ]
    return "\n".join(f"- {piece}: {name.replace(' | ', ', ')}: {error}" for piece, name, error in errors)
