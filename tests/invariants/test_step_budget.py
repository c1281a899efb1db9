"""A training step on a GPU needs no more kernels, bytes and FLOPs than before, and fits a CUDA graph."""

from pathlib import Path

import pytest
import torch
from markdown_tables import cells
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from snugbert import SnugBertConfig, SnugBertForPreTraining

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# The limits. If a count changes on purpose: python benchmarks/step_budget.py > benchmarks/results/step_budget.md
LIMITS = BENCHMARKS / "results/step_budget.md"
SIZE = "256 x 128"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)


def read_limits(side: str) -> tuple[str, list[list[str]]]:
    """The version of torch, and the rows of a table."""
    text = LIMITS.read_text()
    table = text.split(f"### {side}, {SIZE}\n")[1].split("\n#")[0]
    return text.split("torch ")[1].split(",")[0], cells(table)[1:]


@pytest.mark.parametrize("side", ["SnugBERT", pytest.param("SnugBERT, compiled", marks=pytest.mark.slow)])
def test_a_step_needs_what_the_table_says(side, new_compiler):
    """With the same version of torch exactly that. Another version's operators may need less."""
    import step_budget

    version, limits = read_limits(side)
    same = torch.__version__.split("+")[0] == version
    if "compiled" in side and not same:
        pytest.skip(f"inductor of torch {version} fuses differently")
    batches = step_budget.draw_batches(*map(int, SIZE.split(" x ")))
    rows = cells("\n".join(step_budget.format_rows(step_budget.count_step(side, batches))))
    for row, limit in zip(rows, limits, strict=True):
        fewer = all(ours <= most for ours, most in zip(numbers(row), numbers(limit), strict=True))
        assert row == limit if same else fewer, f"{row} instead of {limit}, see LIMITS"


def numbers(row: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in row[1:]]
