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
from host_waits import count_host_waits
from reference_kernels import acting_as_gpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snugbert import cuda_graphs


class Recording(TorchDispatchMode):
    """Records the operations that reach a device. They also run, because later ones need the shapes of their results."""

    def __init__(self):
        super().__init__()
        self.operations: list[tuple[Callable, tuple, dict, list[torch.Tensor]]] = []
        self.own: set[int] = set()  # storages of the recording
        self.changed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # other storages, and their values before

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in find_changed(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.own and storage.data_ptr() not in self.changed:
                self.changed[storage.data_ptr()] = tensor, tensor.detach().clone()
        result = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not (func.is_view or find_changed(func, args, kwargs)):
            self.own.update(leaf.untyped_storage().data_ptr() for leaf in results)
        if not func.is_view:
            self.operations.append((func, args, kwargs, results))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, results in self.operations:
            new = func(*args, **kwargs)
            if not find_changed(func, args, kwargs):
                for old_leaf, leaf in zip(results, (x for x in tree_leaves(new) if isinstance(x, torch.Tensor)), strict=True):
                    old_leaf.copy_(leaf)


def find_changed(func: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Returns the tensors that an operation writes to."""
    changed = []
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            changed += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return changed + [
        kwargs[argument.name]
        for argument in func._schema.arguments
        if argument.name in kwargs and argument.alias_info is not None and argument.alias_info.is_write
    ]


def record(function: Callable[[], Any], stream: Any, memory: Any) -> tuple[Callable[[], None], Any, Any]:
    """As [`cuda_graphs.record`]. Nothing has happened when it returns."""
    state = torch.get_rng_state()
    recording = Recording()
    with count_host_waits() as waits, recording:
        result = function()
    assert not waits, waits
    torch.set_rng_state(state)
    with torch.no_grad():
        for tensor, before in recording.changed.values():
            tensor.copy_(before)
    return recording.replay, None, result


@contextmanager
def emulated_graphs(attention: str = "flash") -> Iterator[None]:
    """Makes [`cuda_graphs`] and the model do on a CPU what they do on a GPU."""

    @contextmanager
    def note_waits(places: list[str]) -> Iterator[None]:
        with count_host_waits() as waits:
            yield
        places += waits

    with acting_as_gpu(attention), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_graphs, "are_on_gpu", lambda tensors: True)
        patch.setattr(cuda_graphs, "make_stream", lambda: "stream")
        patch.setattr(cuda_graphs, "on_stream", lambda stream: nullcontext())
        patch.setattr(cuda_graphs, "note_waits", note_waits)
        patch.setattr(cuda_graphs, "record", record)
        yield
