"""The table of `benchmarks/gpu.sh quick`, as Markdown. It needs neither torch nor a GPU.

Ratios and gains compare rows of one file only, because each file is from one call on one card.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from reporting import format_machine, format_table

Row = dict[str, Any]
NOT_MEASURED = "not measured: the time was over"
BUDGET = Path(__file__).with_name("results") / "step_budget.md"
# Dense bfloat16 FLOPs per second in NVIDIA's datasheets. The first name that is part of the device's name counts.
DATASHEET = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H200": 989e12, "A100": 312e12}
STEP_HEADER = (
    "work",
    "side",
    "ms (range)",
    "tokens/s",
    "{mfu}",
    "peak MB (reserved)",
    "speed / stock sdpa",
    "memory / stock sdpa",
    "last loss",
    "warmup, s",
)
STEP_NOTE = (
    "Compiled parts: SnugBERT's layers, embeddings, and masked token head with its loss; stock BERT's layers, for "
    "each shape in pretraining and once for all lengths of a classifier. The last loss is of the same batch on all "
    "sides. The warmup is three rounds, and compiles. The next row of a compiled side uses its code, but layers are "
    "compiled again from 6,827 tokens on. Mix-order reduction matters only there."
)
# What a change gains: its name, the side without it, the side with it.
CHANGES = (
    ("compiled", "SnugBERT", "SnugBERT, compiled"),
    ("graphs", "SnugBERT", "SnugBERT, graphs"),
    ("graphs, if compiled", "SnugBERT, compiled", "SnugBERT, compiled, graphs"),
    ("compiled layers, stock BERT", "stock sdpa", "stock sdpa, compiled layers"),
)
# The same, from single kernels. The gain is for all layers of a step.
KERNEL_CHANGES = (
    ("q, k, v in one product", "q, k, v, three products", "q, k, v, one product"),
    ("cuDNN attention, packed", "flash attention, packed", "cuDNN attention, packed"),
    (
        "cuDNN attention, scattered to padded rows",
        "flash attention, packed",
        "cuDNN attention, scattered to padded rows",
    ),
    ("dropout, residual, LayerNorm compiled", "dropout, residual, LayerNorm", "the same, compiled"),
    ("bfloat16 residual, if compiled", "the same, compiled", "the same, compiled, bfloat16 residual"),
    ("no mix-order reduction", "the same, compiled", "the same, compiled, no mix-order reduction"),
)
# Classes of kernels by name, and the classes of the budget that they are. In compiled code only the first three match.
BUDGET_CLASSES = {
    "matrix products": ["matrix products"],
    "attention": ["attention"],
    "AdamW": ["AdamW"],
}
EAGER_BUDGET_CLASSES = {
    "pointwise": ["pointwise"],
    "sums": ["sums"],
    "casts and copies": ["casts of activations", "casts of weights"],
    "vocabulary": ["vocabulary"],
    "embeddings": ["embeddings"],
}
REST = "all but products, attention and AdamW"


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
    best = max(row["bfloat16_flops"] for row in devices)
    facts = [f"Best bfloat16 product: {best / 1e12:,.1f} TFLOP/s"]
    if datasheet:
        facts.append(f"datasheet: {datasheet / 1e12:,.0f}")
    copied = rows["products"].get("copy", {})
    if "ms" in copied:
        facts.append(f"copy: {copied['bytes'] / copied['ms']['copy'] / 1e9:.2f} TB/s")
    sections = [
        "# SnugBERT and stock BERT on one GPU",
        f"{format_machine(machine)}.\n{', '.join(facts)}.",
        format_section("Single kernels", format_kernels(rows["products"])),
        format_section(
            "Kernels of a step: ms, number [GB and least ms by the budget]", format_profiles(rows["profile"])
        ),
        format_section("Losses and gradients", format_checks(rows["correctness"])),
        format_section("Not measured", format_errors(rows)),
        format_section("Steps", format_steps(rows["steps"] | rows["lengths"], best, datasheet)),
        format_section("Gains, ms of a step", format_gains(rows["steps"], rows["products"])),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def format_section(title: str, text: str) -> str:
    """Adds a title; nothing without text."""
    return text and f"## {title}\n\n{text}"


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
        if row["graphs"] == 0:
            side += f" ({format_graphs(row)})"
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


def format_graphs(row: Row) -> str:
    """Formats the number of CUDA graphs."""
    return f"{row['graphs'] or 'none'} recorded" + (f": {row['reason']}" if row["reason"] else "")


def format_steps(rows: dict[str, Row], best: float, datasheet: float | None) -> str:
    """Formats `steps` and `lengths`. MFU is a share of the datasheet's FLOPs per second, or of the best product's."""
    mfu = f"MFU of {'the datasheet' if datasheet else 'the best product'}'s rate"
    lines = []
    works = list_works(rows)
    for name, row in sorted(measured(rows).items(), key=lambda item: works.index(split(item[0])[0])):
        work, side = split(name)
        if row["graphs"] is not None:
            side += f" ({format_graphs(row)}, fill {row['fill']:.1%})"
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
                f"{row['needed_flops'] / seconds / (datasheet or best):.1%}",
                memory,
                speed,
                memory_ratio,
                format_losses(row["losses"]),
                format_warmup(row),
            ]
        )
    return format_table((cell.format(mfu=mfu) for cell in STEP_HEADER), lines) + (f"\n\n{STEP_NOTE}" if lines else "")


def format_losses(losses: list[float]) -> str:
    """Formats two losses of a batch, which differ by dropout. A CUDA graph must draw another one each time."""
    return f"{losses[0]:.3f}" + (" **DROPOUT REPEATS**" if losses[0] == losses[1] else "")


def format_warmup(row: Row) -> str:
    """Formats the seconds of the warmup, and what was compiled."""
    compiled = f" ({row['compiled']} graphs compiled, {'with' if row['cached'] else 'without'} a cache)"
    return f"{row['warmup_seconds']:.1f}" + (compiled if row["compiled"] else "")


def format_gains(steps: dict[str, Row], products: dict[str, Row]) -> str:
    """Formats how much each change gains, from whole steps and from single kernels."""
    shapes = list(
        dict.fromkeys(
            work.rpartition(", ")[2] for work in list_works(steps | products) if work not in ("copy", "device")
        )
    )
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
    budgets = {name: read_budget(name) for name in rows}
    names = sorted({name for row in rows.values() for name in row["classes"]})
    names.sort(key=lambda name: -max(row["classes"].get(name, [0])[0] for row in rows.values()))
    lines = []
    for name in names:
        lines.append([name, *(format_class([name], row, budgets[key].get(name)) for key, row in rows.items())])
    for title, without in ((REST, BUDGET_CLASSES), ("all kernels", ())):
        found = [[name for name in row["classes"] if name not in without] for row in rows.values()]
        cells = zip(found, rows.items(), strict=True)
        lines.append([title, *(format_class(kept, row, budgets[key].get(title)) for kept, (key, row) in cells)])
    lines.append(["step, without the profiler", *(f"{row['ms']:.2f}" for row in rows.values())])
    lines.append(["GPU busy", *(f"{row['busy']:.0%}" for row in rows.values())])
    lines.append(["waits of the CPU", *(f"{sum(row['waits'].values()):.1f}" for row in rows.values())])
    text = format_table(("class of kernel", *(name.replace(" | ", ", ") for name in rows)), lines if rows else [])
    for name, row in rows.items():
        text += f"\n\nSlowest kernels of {name.replace(' | ', ', ')}:\n" if row["kernels"] else ""
        text += "".join(
            f"\n- {ms:.2f} ms, {number:.0f}: `{kernel[:90]}`" for kernel, (ms, number) in row["kernels"].items()
        )
        text += "".join(f"\n- {count:.1f} waits at {place}" for place, count in row["waits"].items())
    return text


def format_class(names: list[str], row: Row, budget: tuple[float, float] | None) -> str:
    """Formats the ms and the number of the kernels of some classes, and what the budget says of them."""
    found = [row["classes"][name] for name in names if name in row["classes"]]
    if not found:
        return ""
    ms, number = map(sum, zip(*found, strict=True))
    return f"{ms:.2f}, {number:.0f}" + (f" [{budget[0]:.2f} GB, {budget[1]:.2f}]" if budget else "")


def read_budget(name: str) -> dict[str, tuple[float, float]]:
    """Returns the GB and the least ms of classes of kernels, for a row of `profile`, from the budget of a step.

    Clipping is left out, because the steps do not clip.
    """
    work, side = split(name)
    side = side.removesuffix(", graphs")
    _, _, section = BUDGET.read_text().partition(f"### {side}, {work.removeprefix('pretraining, ')}\n")
    cells = [line.strip("|").split("|") for line in section.partition("\n#")[0].splitlines() if line.startswith("| ")]
    needs = {cell[0].strip(): (float(cell[2]), float(cell[6])) for cell in cells[2:] if cell[0] != " all "}
    if not needs:
        return {}
    needs.pop("clipping")
    classes = BUDGET_CLASSES | ({} if "compiled" in side else EAGER_BUDGET_CLASSES)
    rest = [name for name in needs if name not in BUDGET_CLASSES]
    classes = classes | {REST: rest, "all kernels": list(needs)}
    return {
        name: (sum(needs[part][0] for part in parts), sum(needs[part][1] for part in parts))
        for name, parts in classes.items()
    }


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
    """Formats the ms of one call, and the rate and the distance if they are known."""
    ms = row["ms"]
    rates = {name: f" ({row['bytes'] / ms[name] / 1e9:.2f} TB/s)" if "bytes" in row else "" for name in ms}
    text = ", ".join(f"{name} {ms[name]:.3f}{rates[name]}" for name in ms)
    if "flops" in row:
        text += f"; {row['flops'] * len(ms) / sum(ms.values()) / 1e9:,.0f} TFLOP/s"
    if "distance" in row:
        text += f"; distance {row['distance']:.0e}"
    return text


def format_errors(rows: dict[str, dict[str, Row]]) -> str:
    """Lists the rows with an error, and the pieces without rows."""
    lines = []
    for piece, found in rows.items():
        errors = [(name, row["error"]) for name, row in found.items() if "error" in row]
        lines += [f"- {piece}: {name.replace(' | ', ', ')}: {error}" for name, error in errors]
        if not found:
            lines.append(f"- {piece}: no rows")
    return "\n".join(lines)
