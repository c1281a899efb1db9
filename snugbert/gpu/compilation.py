"""Compiles parts of a model with torch.compile, and decides in which runs this pays off."""

import functools
import logging
import os
import textwrap
from contextlib import suppress
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME
from transformers import TrainerCallback, TrainerState

from snugbert import kernels_snugbert
from snugbert.modeling_snugbert import SnugBertEmbeddings, SnugBertLayer, SnugBertPreTrainingHeads

# A fine-tuning run with at least this many forward and backward passes compiles by default. On an H100, compiling
# took 21 s without and 6 s with a cache. With CUDA graphs, compiled code saved 0.6 to 1.0 ms per pass of BERT base
# with 32 examples. Compiling pays off after 21,000 to 36,000 passes without a cache (6,000 to 10,000 with a cache).
COMPILE_PASSES = 20_000
# Maximum number of graphs of all layers of all models in the process. Beyond it, torch silently stops compiling. The
# default is 8, but training, evaluation, frozen layers, the shorter last layer and batches of one sequence each need
# their own graphs.
RECOMPILE_LIMIT = 64
# torch's modes with CUDA graphs record a graph for every number of tokens. The modes below use no graphs.
MODES_WITHOUT_CUDA_GRAPHS = {"reduce-overhead": None, "max-autotune": "max-autotune-no-cudagraphs"}

logger = logging.getLogger(__name__)


def keep_compiled_code() -> None:
    """Keeps compiled code beside the Hugging Face cache. By default, torch keeps it in a temporary folder."""
    folder = f"{HF_HOME}/snugbert/compiled"
    with suppress(OSError):  # the folder may be read-only
        os.makedirs(folder, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)


def start_compiler(args: Any) -> None:
    """Starts the processes of torch's compiler before the text is prepared, if the run will train on a GPU."""
    if args.uses_cuda and args.do_train and args.torch_compile is not False:
        keep_compiled_code()
        from torch._inductor.async_compile import maybe_warm_pool  # this import takes seconds, now or when compiling

        maybe_warm_pool()


def compile_model(
    model: torch.nn.Module, backend: str = "inductor", mode: str | None = None, device: torch.device | None = None
) -> list[str]:
    """Compiles the parts of a model in place, with one graph for batches of most sizes. The first batches are slow.

    The parts are the layers, and on a GPU also the embeddings and the masked token head with its loss. On a CPU,
    embeddings and head have their own kernels. On a GPU, layers of BERT base are compiled again for batches from 6,827
    tokens on, because inductor then fuses LayerNorm's backward pass. Parts that are not SnugBERT's are not compiled.
    torch's CUDA graphs are never used, see `MODES_WITHOUT_CUDA_GRAPHS`. Returns the names of the compiled parts.
    """
    keep_compiled_code()
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    # Under DDP, torch would split the graphs, so that gradients are sent early. A graph of one layer is small enough.
    torch._dynamo.config.optimize_ddp = False
    mode = MODES_WITHOUT_CUDA_GRAPHS.get(str(mode), mode)
    device = next(model.parameters()).device if device is None else device
    classes: dict[str, type[torch.nn.Module]] = {"layers": SnugBertLayer}
    if device.type not in kernels_snugbert.OWN_KERNELS:
        classes |= {"embeddings": SnugBertEmbeddings, "masked token head": SnugBertPreTrainingHeads}
    compiled = []
    for name, module_class in classes.items():
        modules = [module for module in model.modules() if isinstance(module, module_class)]
        if module_class is SnugBertPreTrainingHeads:  # this class may hold only the next-sentence head
            modules = [head for head in modules if hasattr(head, "predictions")]
        for module in modules:
            module.compile(dynamic=True, backend=backend, mode=mode)
        compiled += [name] * bool(modules)
    return compiled


@functools.cache
def find_compiler_problem(device: torch.device) -> str | None:
    """Returns why torch's compiler fails for a GPU, and what to do. None: it works.

    Compiles a small function to find out. That takes a few seconds, once per process.
    """
    keep_compiled_code()
    try:
        torch.compile(lambda values: values + 1, dynamic=True)(torch.zeros(2, device=device))
    except Exception as error:  # the GPU may be too old. Triton, a C compiler or Python's headers may be missing
        what = textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")
        return f"torch's compiler failed ({what}). It needs Triton, a C compiler and Python's headers."
    return None


class Compilation(TrainerCallback):
    """Compiles the model when training starts, if `torch_compile` is set, but not for evaluation alone.

    By default, a run compiles on a CUDA GPU if the compiler works and the run has at least `passes_to_repay` passes.
    """

    def __init__(self, passes_to_repay: int):
        self._passes_to_repay = passes_to_repay

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Called by Trainer before the first step, with the state of the checkpoint."""
        passes = (state.max_steps - state.global_step) * args.gradient_accumulation_steps
        if args.torch_compile or (args.torch_compile is None and self._repays(args.device, passes)):
            backend = args.torch_compile_backend or "inductor"
            if parts := compile_model(model, backend, args.torch_compile_mode, args.device):
                hint = "The first steps take longer (--torch_compile false: do not compile)."
                logger.info("compiling: %s. %s", ", ".join(parts), hint)

    def _repays(self, device: torch.device, passes: int) -> bool:
        """Whether a run of this many forward and backward passes should compile. If not, logs the reason."""
        if device.type != "cuda":
            return False
        if passes < self._passes_to_repay:
            reason: str | None = (
                f"the run has {passes:,} forward and backward passes. Compiling pays off from about "
                f"{self._passes_to_repay:,} (--torch_compile true: compile)."
            )
        else:
            reason = find_compiler_problem(device)
        if reason is not None:
            logger.info("not compiled: %s", reason)
        return reason is None
