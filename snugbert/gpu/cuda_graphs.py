"""CUDA graphs: the kernels of a function are recorded once for each size of batch, and then started all at once.

A training step of BERT-base starts about 900 kernels. With 32 sequences of 128 tokens, starting the kernels one by one
takes longer than running them. Starting a recorded graph takes microseconds.
"""

import logging
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from snugbert.errors import InputError
from snugbert.gpu.flat_gradients import FlatGradients
from snugbert.modeling_snugbert import has_hooks

logger = logging.getLogger(__name__)

# On the first batch of a size, torch compiles and the libraries choose kernels. If the second batch does not wait for
# the GPU, the third batch is recorded. Otherwise, more batches are tried, because the second batch may also have
# compiled something.
EAGER_BATCHES = 4
# If the share of masked tokens falls or sequences get longer, about 6 new sizes occur, or 12 with gradient
# accumulation. Recording a graph takes a tenth of a second.
MOST_GRAPHS = 64
# A size is not recorded if the GPU takes at least this multiple of the host's time. The GPU is then busy even without
# graphs. On an H100, graphs of 256 x 128 tokens saved 0.1 of 51.7 ms and took 11 GB.
GPU_LIMIT = 1.5
MOST_SIZES = 128  # after this many sizes without a graph, sizes repeat too rarely to record
SHORT_MEMORY = "the GPU has too little free memory (--cuda_graphs false turns graphs off)"
WAIT = "called a synchronizing CUDA operation"  # torch's warning
# Graphs of one device may share memory and streams, so only one thread runs a graph at a time.
_lock = threading.RLock()


@dataclass
class Size:
    """What is known about the batches of one size. Batches that add to existing gradients count as another size."""

    eager_batches: int = 0  # number of batches that ran eagerly
    is_recorded: bool | None = None  # whether to record it. None: not decided
    trained: list[nn.Parameter] = field(default_factory=list)  # parameters whose gradient the graph writes
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)  # the tensors that the graph reads
    replay: Callable[[], None] | None = None  # starts the graph; None before it is recorded
    result: Any = None  # the function's result, in tensors that the graph writes


class CudaGraphs:
    """Runs a function on batches, and records a CUDA graph for each size of batch.

    A graph repeats the kernels, not the Python code. So the result may depend only on the batch, on parameters and
    dropout modules that exist when this object is made, on torch's random state, and on tensors that keep their place
    in memory. New graphs are recorded if parameters move, or if `requires_grad` or a dropout probability changes.

    The first two batches of a size run eagerly, or up to four if they wait for the GPU. The next batch is recorded.
    At most 64 sizes (`MOST_GRAPHS`) are recorded, and none for which the GPU takes 1.5 times as long as the host
    (`GPU_LIMIT`). Results are the same as without graphs: a graph draws the random numbers that the function would
    draw, and adds to gradients of earlier batches. The memory of the gradients stays allocated between steps.

    The function always runs eagerly on other devices, if the model has hooks, if the function waits for the GPU (as
    with padded batches), if a tensor of a batch is on the CPU, in an autocast that caches weights, if batches have too
    many sizes, or if the GPU has too little free memory. `reason` and a log line give the cause. The function may call
    `backward`. A batch is a dictionary of tensors and Python numbers.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], model: nn.Module):
        self.model = model
        self._function = function
        self._modules = list(model.modules())
        self._parameters = list(model.parameters())
        self._dropouts = [module for module in self._modules if isinstance(module, nn.Dropout)]
        self._sizes: dict[Hashable, Size] = {}
        self._weights: Hashable = None  # the parameters that recorded graphs use
        self.gradients = FlatGradients(self._parameters)
        self._memory: Any = None  # all graphs share it, because one runs at a time
        self.reason: str | None = None

    @property
    def count(self) -> int:
        """Number of graphs."""
        return sum(size.replay is not None for size in self._sizes.values())

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        """Returns the result of the function."""
        tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
        if self.reason is None and are_on_gpu(self._parameters[:1]):
            if not are_on_gpu(tensors.values()):
                self.turn_off("a tensor of a batch is not on the GPU")
            elif torch.is_autocast_cache_enabled() and torch.is_autocast_enabled(self._parameters[0].device.type):
                self.turn_off("autocast keeps copies of the weights")
        if self.reason is not None or not are_on_gpu(tensors.values()):
            return self._function(dict(batch))
        trains = torch.is_grad_enabled()
        # A graph recorded in inference mode would make torch 2.11 refuse later graphs of training.
        with _lock, torch.inference_mode(False), torch.set_grad_enabled(trains):
            try:
                return tree_map_only(torch.Tensor, torch.clone, self._run(batch, tensors))
            except torch.OutOfMemoryError:
                self.turn_off(SHORT_MEMORY)  # a retry needs the memory of the graphs
                raise

    def turn_off(self, reason: str) -> None:
        """Runs the function eagerly from now on, and logs the reason."""
        logger.info("CUDA graphs: off, because %s.", reason)
        self.reason = reason
        self._drop_graphs()
        torch.cuda.empty_cache()  # no other stream can use the memory that the side stream keeps

    def _drop_graphs(self) -> None:
        self._sizes.clear()
        self.gradients.free()
        self._memory = None

    def _run(self, batch: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
        # Hooks of transformers and of FSDP do not count.
        if (
            has_hooks(self._modules)
            or any(each._backward_hooks or each._post_accumulate_grad_hooks for each in self._parameters)
            or nn.modules.module._has_any_global_hook()
        ):
            self.turn_off("the model has hooks, which a graph would not call")
            return self._function(dict(batch))
        # Only the first batch of a step finds no gradients. Writing gradients is faster than zeroing and adding.
        adds = torch.is_grad_enabled() and any(parameter.grad is not None for parameter in self._parameters)
        size = self._find_size(batch, adds)
        if size.replay is not None:
            torch._foreach_copy_(list(size.inputs.values()), [tensors[name] for name in size.inputs])
        elif size.is_recorded and self.count < MOST_GRAPHS:
            size.replay = self._record(size, batch, tensors, adds)
        if size.replay is None:
            return self._run_eagerly(size, batch)
        if adds:
            self.gradients.attach(size.trained)
        size.replay()
        if size.trained:
            places = self.gradients.find_places()
            for parameter in size.trained:
                parameter.grad = places[parameter]
        return size.result

    def _find_size(self, batch: Mapping[str, Any], adds: bool) -> Size:
        trains = torch.is_grad_enabled()
        weights = tuple((parameter.data_ptr(), trains and parameter.requires_grad) for parameter in self._parameters)
        if weights != self._weights:  # graphs of the old weights will hardly be needed again
            self._drop_graphs()
            self._weights = weights
        values = tuple(
            (name, value.shape, value.dtype) if isinstance(value, torch.Tensor) else (name, value)
            for name, value in batch.items()
        )
        device = next(value.device.type for value in batch.values() if isinstance(value, torch.Tensor))
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        key = values, autocast, tuple(dropout.p for dropout in self._dropouts), adds
        size = self._sizes.get(key, Size())
        if len(self._sizes) < MOST_SIZES:
            self._sizes[key] = size
        return size

    def _run_eagerly(self, size: Size, batch: Mapping[str, Any]) -> Any:
        size.eager_batches += 1
        waits: list[str] = []
        seconds: list[float] = []
        is_tried = size.eager_batches > 1 and size.is_recorded is None
        # Runs on the stream that will record, because libraries and autograd keep a state for each stream.
        with on_side_stream(), compare_clocks(seconds) if is_tried else nullcontext():
            with note_waits(waits) if is_tried else nullcontext():
                result = self._function(dict(batch))
        if is_tried and not waits:
            host, gpu = seconds
            if gpu >= GPU_LIMIT * host and not any(each.is_recorded is False for each in self._sizes.values()):
                clocks = f"the GPU takes {1e3 * gpu:.1f} ms for a batch, and the host {1e3 * host:.1f} ms"
                logger.info("CUDA graphs: not for large batches, because the GPU is the limit (%s).", clocks)
            size.is_recorded = gpu < GPU_LIMIT * host
        if waits and size.eager_batches == EAGER_BATCHES:
            self.turn_off(f"the step waits for the GPU at {waits[0]}")
        elif len(self._sizes) == MOST_SIZES and all(each.is_recorded is None for each in self._sizes.values()):
            self.turn_off("nearly every batch has a different size (see pad_to_multiple_of)")
        return result

    def _record(
        self, size: Size, batch: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], adds: bool
    ) -> Callable[[], None] | None:
        """Records the kernels, which do not run, and returns a function that runs them. None: too little memory."""
        start = time.perf_counter()
        size.inputs = {name: tensor.clone() for name, tensor in tensors.items()}
        inputs = {**batch, **size.inputs}
        places = self.gradients.find_places() if torch.is_grad_enabled() else {}
        earlier = {parameter: parameter.grad for parameter in places}

        def run() -> Any:
            # Without gradients to add to, autograd makes new tensors. A few kernels then copy or add all of them.
            for parameter in places:
                parameter.grad = None
            result = self._function(inputs)
            size.trained = [parameter for parameter in places if parameter.grad is not None]
            if size.trained:
                write = torch._foreach_add_ if adds else torch._foreach_copy_
                targets, sources = zip(*((places[each], each.grad) for each in size.trained), strict=True)
                with torch.no_grad():
                    write(targets, sources)
            for parameter in size.trained:  # frees memory for the next graph
                parameter.grad = None
            return result

        try:
            replay, self._memory, size.result = record(run, self._memory)
        except Exception as error:
            cause = error.__context__ or error  # before this error, torch ends the recording, which may also fail
            if isinstance(cause, torch.OutOfMemoryError):
                self.turn_off(SHORT_MEMORY)
                return None
            raise InputError(
                f"The CUDA graph of a step could not be recorded ({type(cause).__name__}: {cause}). Run again without "
                "graphs: --cuda_graphs false, or cuda_graphs=False in Python."
            ) from error
        finally:
            for parameter, gradient in earlier.items():
                parameter.grad = gradient
        logger.info("CUDA graph %d: recorded in %.1f s", self.count + 1, time.perf_counter() - start)
        return replay


# --- CUDA --------------------------------------------------------------------------------------------------------
# The tests replace these functions, to record and replay on a CPU.


def are_on_gpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all tensors are on the current CUDA GPU."""
    return all(tensor.is_cuda and tensor.device.index == torch.cuda.current_device() for tensor in tensors)


@cache
def get_side_stream(device: int) -> torch.cuda.Stream:
    """Returns the stream that records all graphs of a GPU. Libraries keep memory for each stream that they used."""
    return torch.cuda.Stream(device)


@contextmanager
def on_side_stream() -> Iterator[None]:
    """Queues kernels on the side stream, after the kernels that are already queued. Later kernels wait for them."""
    current, side = torch.cuda.current_stream(), get_side_stream(torch.cuda.current_device())
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@contextmanager
def note_waits(places: list[str]) -> Iterator[None]:
    """Adds to `places` the lines of code at which the host waits for the GPU."""
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


@contextmanager
def compare_clocks(seconds: list[float]) -> Iterator[None]:
    """Adds to `seconds` how long the host queues kernels, and how long the GPU takes to run them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()  # a full queue would block the host
    start.record()
    begin = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - begin)
    end.record()
    end.synchronize()
    seconds.append(start.elapsed_time(end) / 1e3)


def record(function: Callable[[], Any], memory: Any) -> tuple[Callable[[], None], Any, Any]:
    """Records the kernels of a function, which has run on the side stream before, without running them.

    `memory` belongs to earlier graphs, and the new graph may overwrite it. Raises `torch.OutOfMemoryError` if memory
    is too small for the graph, or for batches that run eagerly besides it. Returns a function that starts the graph,
    its memory, and the result of `function`.
    """
    graph = torch.cuda.CUDAGraph()
    current, side = torch.cuda.current_stream(), get_side_stream(torch.cuda.current_device())
    with torch.cuda.stream(side):
        torch.cuda.current_blas_handle()  # a thread's first handle needs memory, which a recording may not allocate
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    try:
        # "thread_local": the data loader's thread pins memory meanwhile, which must not end the recording.
        with torch.cuda.graph(graph, pool=memory, stream=side, capture_error_mode="thread_local"):
            result = function()
    finally:
        torch.cuda.set_stream(current)  # torch does not restore the stream if ending the recording fails
    if torch.cuda.mem_get_info()[0] < torch.cuda.memory_reserved() - reserved:
        raise torch.OutOfMemoryError
    return graph.replay, graph.pool(), result
