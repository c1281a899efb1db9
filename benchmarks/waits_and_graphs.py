r"""Waits for a GPU in a training step, graph breaks and recompilations of torch.compile, for every head, on a CPU.

    python benchmarks/waits_and_graphs.py

SnugBERT runs its code for a GPU, see `host_time.py`. A wait is an operation that reads a value from the device, or
whose result has a shape that depends on values. `tests/helpers/host_waits.py` finds them in a forward and a backward
pass. Data workers and collators run before and are not counted. This script needs pytest, from the dependency group
`dev`.

`torch.compile(dynamic=True)` compiles the whole model. Eight batches follow, each with other lengths. The table has
the number of graph breaks, the number of graphs that the first batch compiled, and how many each later batch added.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gpu_batches import HEADS, count_labels, make_task_batches, shortest_length
from host_time import FIELDS, VOCABULARY, act_as_gpu, load_kernels
from reporting import format_header, format_line
from side_by_side import Batch
from torch._dynamo.utils import counters

import snugbert
from snugbert import SnugBertConfig

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from host_waits import count_host_waits

LAYERS = 3
BATCHES, EXAMPLES = 8, 6
COLUMNS = ("head", "layout", "waits", "graph breaks", "graphs of the first batch", "graphs of the later ones")


def make_batches(task: str) -> dict[str, list[Batch]]:
    """Returns batches for a name in [`HEADS`], packed (ours) and padded (stock)."""
    rng = np.random.default_rng(0)
    choices = 2 if task == "multiple choice" else 1
    lengths = rng.integers(shortest_length(task), 40, BATCHES * EXAMPLES * choices).tolist()
    return make_task_batches(task, lengths, EXAMPLES, VOCABULARY, rng)


def run_step(model: Any, batch: Batch) -> None:
    """Runs a forward and a backward pass."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()


def count_graphs(model: torch.nn.Module, batches: list[Batch]) -> tuple[int, list[int]]:
    """Returns the number of graph breaks, and the number of graphs that each batch compiled."""
    compiled = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    torch._dynamo.reset()
    counters.clear()
    whole = torch.compile(model, dynamic=True, backend=backend)
    totals = [0]
    for batch in batches:
        run_step(whole, batch)
        totals.append(compiled)
    return sum(counters["graph_break"].values()), np.diff(totals).tolist()


def print_rows() -> None:
    """Prints the rows of every head."""
    for task, head in HEADS.items():
        batches = make_batches(task)
        config = SnugBertConfig(
            **{**FIELDS, "num_hidden_layers": LAYERS},
            num_labels=count_labels(task),
        )
        for layout, side in (("packed", "ours"), ("padded", "stock")):
            torch.manual_seed(0)
            model = getattr(snugbert, f"SnugBertFor{head}")(config).train()
            run_step(model, batches[side][0])
            with count_host_waits() as waits:
                run_step(model, batches[side][1])
            try:
                breaks, graphs = count_graphs(model, batches[side])
                cells = [str(breaks), str(graphs[0]), ", ".join(map(str, graphs[1:]))]
            except Exception as error:
                cells = [f"fails: {type(error).__name__}", "", ""]
            print(format_line([task, layout, str(len(waits)), *cells]), flush=True)


def main(argv: list[str]) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args(argv)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    load_kernels()
    act_as_gpu()
    print(format_header(COLUMNS), flush=True)
    print_rows()


if __name__ == "__main__":
    main(sys.argv[1:])
