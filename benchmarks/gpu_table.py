"""The table of `benchmarks/gpu.sh quick`, as Markdown. It needs neither torch nor a GPU.

Ratios compare rows of one file only, because each file is from one call on one card. Speeds and memory are divided by
the fastest side of stock BERT.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from reporting import format_machine, format_table

Row = dict[str, Any]
NOT_MEASURED = "not measured: the time was over"
# Dense bfloat16 FLOPs per second in NVIDIA's datasheets. The first name that is part of the device's name counts.
DATASHEET = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
STEP_HEADER = (
    "work",
    "side",
    "ms (range)",
    "tokens/s",
    "MFU of the datasheet",
    "peak MB (reserved)",
    "speed / best stock",
    "reserved / best stock",
    "last loss",
    "warmup, s",
)
STEP_NOTE = (
    "Compiled parts of SnugBERT: layers, embeddings, and masked token head with its loss. Of the others, the whole "
    "forward pass with the loss is compiled, on batches padded to one size. The last loss is of the same batch on all "
    "sides, except ModernBERT's, which has other weights and no sentence pairs. The warmup is three rounds, and "
    "compiles."
)


def read_rows(path: Path) -> dict[str, Row]:
    """Reads the rows of a piece by name; none if it has not run. The last line of a row counts.

    Lines that are not complete, because the process was killed, are left out.
    """
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["row"]] = row
    return rows


def format_results(output_dir: Path, pieces: Iterable[str]) -> str:
    """Formats the results of all pieces in a folder.

    Raises:
        SystemExit: there are none.
    """
    rows = {piece: read_rows(output_dir / f"{piece}.jsonl") for piece in pieces}
    devices = [found.pop("device") for found in rows.values() if "machine" in found.get("device", {})]
    if not devices:
        raise SystemExit(f"error: --output_dir: no results in {output_dir}.")
    machine = devices[0]["machine"]
    datasheet = next((flops for name, flops in DATASHEET.items() if name in machine["device"]), None)
    steps = measured(rows["steps"] | rows["lengths"])
    sections = [
        "# SnugBERT and its rivals on one GPU",
        f"{format_machine(machine)}.",
        format_section("Steps", format_steps(steps, datasheet)),
        format_section("Slowest kernels", format_profiles(steps)),
        format_section("Losses, gradients and weights", format_checks(rows["correctness"] | rows["processes"])),
        format_section("Not measured", format_errors(rows)),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def format_section(title: str, text: str) -> str:
    """Adds a title; nothing without text."""
    return text and f"## {title}\n\n{text}"


def measured(rows: dict[str, Row]) -> dict[str, Row]:
    """Returns the rows without an error."""
    return {name: row for name, row in rows.items() if "error" not in row}


def format_checks(rows: dict[str, Row]) -> str:
    """Formats `correctness` and `processes`: distances from stock BERT in float32, and from one process."""
    lines = []
    for name, row in measured(rows).items():
        work, _, side = name.partition(" | ")
        found, limits = row["found"], row["limits"]
        details = [] if row["graphs"] is None else [format_graphs(row)]
        if "seconds" in row:
            one, several = row["seconds"]
            details += [f"{1e3 * several:.0f} ms a step, one process {1e3 * one:.0f}"]
            details += ["without DDP" if row["without_ddp"] else "with DDP"]
        verdict = "equal" if all(found[key] <= limits[key] for key in limits) else "**DIFFERENT**"
        distances = [f"{key} {found[key]:.1e} ({limits[key]:.1e})" for key in limits]
        lines.append([work, ", ".join([side, *details]), verdict, *distances])
    return format_table(("work", "side", "", "distance (limit)", "distance (limit)"), lines)


def format_graphs(row: Row) -> str:
    """Formats the number of CUDA graphs."""
    return f"{row['graphs'] or 'none'} recorded" + (f": {row['reason']}" if row["reason"] else "")


def milliseconds(row: Row) -> list[float]:
    """Returns the ms of a step in each round, in order of size."""
    return sorted(1e3 * seconds / row["steps"] for seconds in row["seconds"])


def format_steps(rows: dict[str, Row], datasheet: float | None) -> str:
    """Formats `steps` and `lengths`. MFU is a share of the datasheet's FLOPs per second."""
    lines = []
    works = list(dict.fromkeys(name.partition(" | ")[0] for name in rows))
    for name, row in sorted(rows.items(), key=lambda item: works.index(item[0].partition(" | ")[0])):
        work, _, side = name.partition(" | ")
        stocks = [other for key, other in rows.items() if key.startswith(f"{work} | stock")]
        best = min(stocks, key=lambda other: median(other["seconds"]), default=None)
        ms, seconds = milliseconds(row), median(row["seconds"])
        if row["graphs"] is not None:
            side += f" ({format_graphs(row)}, fill {row['fill']:.1%})"
        repeats = row["losses"][0] == row["losses"][1]  # a CUDA graph must draw another dropout each time
        lines.append(
            [
                work,
                side,
                f"{median(ms):.1f} ({ms[0]:.1f}-{ms[-1]:.1f})",
                f"{row['tokens'] / seconds:,.0f}",
                f"{row['needed_flops'] / seconds / datasheet:.1%}" if datasheet else "",
                f"{row['peak_mb']:,.0f} ({row['reserved_mb']:,.0f})" if row["peak_mb"] else "",
                f"{median(milliseconds(best)) / median(ms):.2f}" if best else "",
                f"{row['reserved_mb'] / best['reserved_mb']:.2f}" if best and row["peak_mb"] else "",
                f"{row['losses'][0]:.3f}" + (" **DROPOUT REPEATS**" if repeats else ""),
                f"{row['warmup_seconds']:.1f}",
            ]
        )
    return format_table(STEP_HEADER, lines) + (f"\n\n{STEP_NOTE}" if lines else "")


def format_profiles(rows: dict[str, Row]) -> str:
    """Formats the slowest kernels of our best side, and where the CPU waits."""
    parts = []
    for name, row in rows.items():
        if "kernels" in row:
            facts = f"{row['number']:,.0f} kernels in a step, GPU busy {row['busy']:.0%}"
            lines = [f"{name.partition(' | ')[0]}: {facts}", ""]
            lines += [f"- {ms:.2f} ms, {number:.0f}: `{key[:90]}`" for key, (ms, number) in row["kernels"].items()]
            lines += [f"- {count:.1f} waits at {place}" for place, count in row["waits"].items()]
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def format_errors(rows: dict[str, dict[str, Row]]) -> str:
    """Lists the rows with an error, and the pieces without rows."""
    lines = []
    for piece, found in rows.items():
        errors = [(name, row["error"]) for name, row in found.items() if "error" in row]
        lines += [f"- {piece}: {name.replace(' | ', ', ')}: {error}" for name, error in errors]
        if not found:
            lines.append(f"- {piece}: no rows")
    return "\n".join(lines)
