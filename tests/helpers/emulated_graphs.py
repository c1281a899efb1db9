"""Records and replays kernels on a CPU, as a CUDA graph does on a GPU.

A replay repeats the operations with the tensors of the recording, and runs no Python code of the model. So it shows
whether results depend on anything else: on values that Python reads, on tensors that are replaced, or on Python's
state.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from host_waits import OperatorMode, count_host_waits
from reference_kernels import acting_as_gpu
from torch.utils._pytree import tree_leaves

from snugbert.gpu import cuda_graphs


class Recording(OperatorMode):
    """Records the operations that reach a device. They also run, because later ones need the shapes of results."""

    def __init__(self):
        super().__init__()
        self.operations: list[tuple[Callable, tuple, dict, list[torch.Tensor | None]]] = []
        self.own: set[int] = set()  # memory of the recording
        # Other tensors, and their values before.
        self.changed: dict[tuple[int, torch.Size], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in find_changed(func, args, kwargs):
            place = tensor.data_ptr(), tensor.shape  # gradients share a storage
            if locate(tensor) not in self.own and place not in self.changed:
                self.changed[place] = tensor, tensor.detach().clone()
        result = func(*args, **kwargs)
        inputs = set(map(locate, find_tensors((args, kwargs))))
        # A view, or what was written to, needs no copy when it is replayed.
        results = [None if locate(tensor) in inputs else tensor for tensor in find_tensors(result)]
        self.own.update(locate(tensor) for tensor in results if tensor is not None)
        self.operations.append((func, args, kwargs, results))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.operations:
            for tensor, new in zip(results, find_tensors(func(*args, **kwargs)), strict=True):
                if tensor is not None:
                    tensor.copy_(new)


def find_tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def locate(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def find_changed(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Returns the tensors that an operation writes to."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    written = {argument.name for argument in func._schema.arguments if argument.is_write}
    return find_tensors([value for name, value in given.items() if name in written])


def record(function: Callable[[], Any], memory: Any) -> tuple[Callable[[], None], Any, Any]:
    """As [`cuda_graphs.record`]. Nothing has happened when it returns."""
    state = torch.get_rng_state()
    recording = Recording()
    with count_host_waits() as waits, recording:
        result = function()
    assert not waits, waits
    torch.set_rng_state(state)
    with torch.no_grad():
        for tensor, before in reversed(recording.changed.values()):
            tensor.copy_(before)
    return recording.replay, None, result


@contextmanager
def emulated_graphs(attention: str = "flash", gpu_seconds: float = 1.0) -> Iterator[None]:
    """Makes [`cuda_graphs`] and the model do on a CPU what they do on a GPU.

    The host takes a second for each batch, and the GPU `gpu_seconds`.
    """

    @contextmanager
    def note_waits(places: list[str]) -> Iterator[None]:
        with count_host_waits() as waits:
            yield
        places += waits

    @contextmanager
    def compare_clocks(seconds: list[float]) -> Iterator[None]:
        yield
        seconds += [1.0, gpu_seconds]

    with acting_as_gpu(attention), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "are_on_gpu", lambda tensors: True)
        patch.setattr(cuda_graphs, "on_side_stream", nullcontext)
        patch.setattr(cuda_graphs, "note_waits", note_waits)
        patch.setattr(cuda_graphs, "compare_clocks", compare_clocks)
        patch.setattr(cuda_graphs, "record", record)
        yield
