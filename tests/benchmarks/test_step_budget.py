"""A training step on a GPU needs no more kernels, bytes and FLOPs than before, and no tensor on the CPU."""

import warnings

import pytest
import torch
from benchmark_files import BENCHMARKS
from markdown_tables import cells
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from snugbert import SnugBertConfig, SnugBertForPreTraining

# The limits. If a count changes on purpose: python benchmarks/step_budget.py > benchmarks/results/step_budget.md
LIMITS = BENCHMARKS / "results/step_budget.md"


pytestmark = [
    pytest.mark.long,
    # inductor uses functions of torch that are deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]


def read_limits(side: str) -> tuple[str, list[list[str]]]:
    """The version of torch, and the rows of a table."""
    text = LIMITS.read_text()
    table = text.split(f"### {side}, 256 x 128\n")[1].split("\n#")[0]
    return text.split("torch ")[1].split(",")[0], cells(table)[1:]


@pytest.mark.parametrize("side", ["SnugBERT", "stock BERT, sdpa", "SnugBERT, compiled"])
def test_a_step_needs_no_more_than_the_table_says(side, new_compiler, monkeypatch, capsys):
    import step_budget

    version, limits = read_limits(side)
    same = torch.__version__.split("+")[0] == version
    if "compiled" in side and not same:
        pytest.skip(f"inductor of torch {version} fuses differently")
    monkeypatch.setattr(step_budget, "SIDES", (side,))
    monkeypatch.setattr(step_budget, "SIZES", ((256, 128),))
    step_budget.main([])
    _, *rows = cells(capsys.readouterr().out)
    for row, limit in zip(rows, limits, strict=True):
        fits = all(ours <= most for ours, most in zip(numbers(row), numbers(limit), strict=True))
        assert fits, f"{row} instead of {limit}. If that is on purpose, update the table (see LIMITS)"
        if row != limit and same:
            warnings.warn(f"{row} instead of {limit}. Update the table (see LIMITS)", stacklevel=1)


def numbers(row: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in row[1:]]


def test_the_documentation_shows_the_sums():
    from step_budget import SIDES

    ours, compiled, stock = (float(read_limits(side)[1][-1][-1]) for side in SIDES)
    page = (BENCHMARKS.parent / "docs/explanation/performance.md").read_text()
    assert f"needs at least {ours:.0f} ms, compiled {compiled:.0f}, and stock BERT's {stock:.0f}." in page


def test_bytes_and_flops_of_operators_are_counted():
    """Inputs are read once, outputs are written once. A repeated row is read once, and a lookup reads few rows."""
    import step_budget

    values, weight, ids = torch.zeros(2000, 768), torch.zeros(4, 768), torch.zeros(2, dtype=torch.long)
    with step_budget.Counter(torch.nn.Linear(768, 4)) as counter:
        product = values @ weight.T
        product.add_(product.new_zeros(1, 4).expand(2000, 4))
        torch.nn.functional.embedding(ids, values)
    budget = counter.budget
    assert budget["matrix products"] == step_budget.Need(1, 4 * (2000 * 768 + 4 * 768 + 2000 * 4), 2 * 2000 * 768 * 4)
    assert budget["other"] == step_budget.Need(2, 4 * 4 + 4 * (2 * 2000 * 4 + 4))
    assert budget["embeddings"] == step_budget.Need(1, 2 * 8 + 2 * 4 * 2 * 768)


class Devices(TorchDispatchMode):
    """Notes the devices of all tensors."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **kwargs or {})
        tree_map_only(torch.Tensor, lambda tensor: self.found.add(tensor.device.type), (args, kwargs, output))
        return output


def test_a_step_creates_no_tensor_on_the_cpu():
    """So it fits a CUDA graph. Fake tensors also refuse to be read.

    The device "cpu" plays the GPU: model and batch are there. The meta device plays the CPU: it is the default device
    of new tensors.
    """
    import step_budget

    counts = {"num_items_in_batch": torch.tensor(9), "num_sequences_in_batch": torch.tensor(4)}
    batch = step_budget.draw_batches(4, 128)["ours"] | counts
    with step_budget.act_as_cuda(), FakeTensorMode() as mode:
        model = SnugBertForPreTraining(SnugBertConfig.from_size("tiny")).train()
        fake = tree_map_only(torch.Tensor, mode.from_tensor, batch)
        with torch.device("meta"), Devices() as devices:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**fake).loss
            loss.backward()
    assert devices.found == {"cpu"}
