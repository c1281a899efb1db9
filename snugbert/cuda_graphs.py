"""CUDA graphs: the kernels of a function are recorded once for each size of batch, and then started all at once.

A training step of BERT-base starts about 1,000 kernels. With 32 sequences of 128 tokens, starting them one by one
takes longer than running them. Starting a recorded graph takes microseconds.
"""

import logging
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from snugbert.errors import InputError
from snugbert.modeling_snugbert import has_hooks

logger = logging.getLogger(__name__)

# The first batch of a size compiles, and the libraries choose their kernels. If the second does not wait for the GPU,
# the third is recorded. Otherwise the next ones are tried, because the second may have compiled something, too.
EAGER_BATCHES = 4
MOST_GRAPHS = 8
MOST_SIZES = 64  # without any graph. After that many, no size will repeat often.
WAIT = "called a synchronizing CUDA operation"  # torch's warning


@dataclass
class Size:
    """What is known about the batches of one size.

    Attributes:
        eager_batches: number of batches that ran eagerly.
        is_ready: whether one of them, except the first, did not wait for the GPU.
        trained: parameters that got a gradient in the last eager batch.
        gradients: the tensors to which the graph adds their gradients.
        inputs: the tensors that the graph reads.
        replay: starts the graph; None before it is recorded.
        result: what the function returned, in tensors that the graph writes.
    """

    eager_batches: int = 0
    is_ready: bool = False
    trained: list[nn.Parameter] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    replay: Callable[[], None] | None = None
    result: Any = None


class CudaGraphs:
    """Runs a function on batches, and records a CUDA graph for each size of batch.

    A graph repeats the kernels, not the Python code. So the result may depend only on the batch, on the parameters, on
    torch's random state and on tensors that keep their place in memory. A new graph is recorded if parameters move, or
    if `requires_grad` or a dropout probability changes.

    The first two batches of a size run eagerly, and the third is recorded. Results are the same as without graphs: a
    graph draws the random numbers that the function would draw, and it adds to the gradients. The tensors of gradients
    stay allocated between steps.

    The function runs eagerly, and a log line says why, if hooks are registered, if it waits for the GPU (padded
    batches do), or if batches have too many sizes. It always does so on other devices.

    Args:
        function: takes a batch and may call `backward`. The batch is a dictionary of tensors and Python numbers.
        model: the model that the function runs.

    Raises:
        InputError: recording a graph fails.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], model: nn.Module):
        self._function = function
        self._model = model
        self._parameters = list(model.parameters())
        self._dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
        self._sizes: dict[Hashable, Size] = {}
        self._gradients: dict[nn.Parameter, torch.Tensor] = {}
        self._is_off = False
        self._stream: Any = None
        self._memory: Any = None  # all graphs share it, because one runs at a time

    @property
    def count(self) -> int:
        """Number of recorded graphs."""
        return sum(size.replay is not None for size in self._sizes.values())

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Returns the result of the function. Its tensors are valid until the next call."""
        tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        if self._is_off or not are_on_gpu(tensors.values()):
            return self._function(dict(batch))
        size = self._find_size(batch)
        if size.replay is not None:
            torch._foreach_copy_(list(size.inputs.values()), [tensors[name] for name in size.inputs])
        elif self._may_record(size):
            size.replay = self._record(size, batch, tensors)
        else:
            return self._run_eagerly(size, batch)
        attach_gradients(size.trained, size.gradients)
        size.replay()
        return size.result

    def _find_size(self, batch: Mapping[str, Any]) -> Size:
        values = tuple(
            (name, value.shape, value.dtype) if isinstance(value, torch.Tensor) else (name, value)
            for name, value in batch.items()
        )
        weights = tuple((parameter.data_ptr(), parameter.requires_grad) for parameter in self._parameters)
        # Everything that the kernels depend on.
        key = values, weights, tuple(dropout.p for dropout in self._dropouts)
        size = self._sizes.get(key, Size())
        if len(self._sizes) < MOST_SIZES:
            self._sizes[key] = size
        return size

    def _may_record(self, size: Size) -> bool:
        if not size.is_ready or self.count == MOST_GRAPHS:
            return False
        if has_hooks(self._model.modules()):
            self.turn_off("modules have hooks, which a graph would not call")
        return not self._is_off

    def _run_eagerly(self, size: Size, batch: Mapping[str, Any]) -> Any:
        size.eager_batches += 1
        waits: list[str] = []
        is_tried = size.eager_batches > 1 and not size.is_ready
        if self._stream is None:
            self._stream = make_stream()
        # On the stream that later records: libraries and autograd keep what they set up for a stream.
        with on_stream(self._stream), note_waits(waits) if is_tried else nullcontext():
            result = self._function(dict(batch))
        if torch.is_grad_enabled():
            trained = [parameter for parameter in self._parameters if parameter.requires_grad]
            size.trained = [parameter for parameter in trained if parameter.grad is not None]
        size.is_ready |= is_tried and not waits
        if waits and size.eager_batches == EAGER_BATCHES:
            self.turn_off(f"the step waits for the GPU at {waits[0]}")
        elif len(self._sizes) == MOST_SIZES and self.count == 0:
            self.turn_off("hardly two batches have the same size. Set pad_to_multiple_of")
        return result

    def turn_off(self, reason: str) -> None:
        """Runs the function eagerly from now on, and logs the reason."""
        logger.info("CUDA graphs: off, because %s.", reason)
        self._is_off = True

    def _record(self, size: Size, batch: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Callable[[], None]:
        """Records the kernels, which do not run, and returns a function that runs them."""
        start = time.perf_counter()
        size.inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        inputs = {**batch, **size.inputs}
        for parameter in size.trained:
            if parameter not in self._gradients:
                self._gradients[parameter] = torch.empty_like(parameter)
        size.gradients = [self._gradients[parameter] for parameter in size.trained]
        attach_gradients(size.trained, size.gradients)
        try:
            replay, self._memory, size.result = record(lambda: self._function(inputs), self._stream, self._memory)
        except Exception as error:
            raise InputError(
                f"The CUDA graph of a step could not be recorded ({type(error).__name__}: {error}). Run again without "
                "graphs: --cuda_graphs false."
            ) from error
        logger.info("CUDA graph %d: recorded in %.1f s", self.count + 1, time.perf_counter() - start)
        return replay


def attach_gradients(parameters: list[nn.Parameter], gradients: list[torch.Tensor]) -> None:
    """Makes `gradients` the gradients of `parameters`. They keep their values; None becomes zero."""
    zeroed: list[torch.Tensor] = []
    copied: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        present = parameter.grad
        if present is None:
            zeroed.append(gradient)
        elif present is not gradient:  # of an eager batch of the same step
            copied.append(gradient)
            sources.append(present)
        else:
            continue
        parameter.grad = gradient
    if zeroed:
        torch._foreach_zero_(zeroed)
    if copied:
        torch._foreach_copy_(copied, sources)


# --- CUDA --------------------------------------------------------------------------------------------------------
# The tests replace these functions, to record and replay on a CPU.


def are_on_gpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all tensors are on a CUDA GPU."""
    return all(tensor.is_cuda for tensor in tensors)


def make_stream() -> Any:
    """Makes a stream."""
    return torch.cuda.Stream()


@contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Queues kernels on `stream`, after the kernels that are already queued. Later ones wait for them."""
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


@contextmanager
def note_waits(places: list[str]) -> Iterator[None]:
    """Adds the places at which the host waits for the GPU to `places`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if WAIT in str(warning.message):
            places.append(f"{warning.filename}:{warning.lineno}")
        elif "Synchronization debug mode" not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def record(function: Callable[[], Any], stream: Any, memory: Any) -> tuple[Callable[[], None], Any, Any]:
    """Records the kernels of a function without running them.

    Args:
        function: the function.
        stream: stream on which it ran before.
        memory: memory of earlier graphs, which this one may overwrite; None for the first.

    Returns:
        A function that starts the graph, its memory, and the result of `function`.
    """
    graph = torch.cuda.CUDAGraph()
    # "thread_local": the data loader's thread pins memory meanwhile, which must not end the recording.
    with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
        result = function()
    return graph.replay, graph.pool(), result
