"""Finds places where the host would wait for a GPU, on a CPU.

Reading a value, or a result whose shape depends on values, makes the host wait until the GPU has computed it. Copies
from the CPU to the GPU cannot be seen on a CPU.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {
    "_local_scalar_dense",  # item(), bool(), int(), float(), and many checks inside torch
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "nonzero_numpy",
    "repeat_interleave",  # without `output_size`
    "unique_consecutive",
    "unique_dim",
    "_unique",
    "_unique2",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# These read the values of a CPU tensor without an operation. Of a GPU tensor, they copy it first.
METHODS = ("tolist", "numpy", "cpu", "__array__")
OUR_FOLDERS = tuple(str(Path(__file__).parents[2] / name) for name in ("snugbert", "tests", "benchmarks"))


def _find_caller() -> str:
    """Returns the file and line in this repository that ran the operation. *Example:* modeling_snugbert.py:12"""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OUR_FOLDERS) and file != __file__:
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside the repository"


class OperatorMode(TorchDispatchMode):
    """A mode that also sees the operators of compiled code."""

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Keeps compiled code from running eagerly, as it does in other modes."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """The same, in newer versions of torch."""
        return True


class _Recorder(OperatorMode):
    def __init__(self, waits: list[str]):
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        waits = name in READS and "output_size" not in kwargs
        if name in INDEXING:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if waits:
            self.waits.append(f"{name} in {_find_caller()}")
        return func(*args, **kwargs)


@contextmanager
def count_host_waits() -> Iterator[list[str]]:
    """Yields a list, to which each wait adds the name of the operation and the line that ran it."""
    waits: list[str] = []

    def record(name, method):
        def recorded(*args, **kwargs):
            caller = _find_caller()
            if not caller.startswith("reference_kernels.py"):  # they stand for kernels on the GPU
                waits.append(f"{name} in {caller}")
            return method(*args, **kwargs)

        return recorded

    with pytest.MonkeyPatch.context() as patch, _Recorder(waits):
        for name in METHODS:
            patch.setattr(torch.Tensor, name, record(name, getattr(torch.Tensor, name)))
        yield waits
