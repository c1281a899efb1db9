"""Compiles the parts of a model with torch.compile, runs steps with CUDA graphs, and decides which runs do either."""

import functools
import logging
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState, TrainingArguments

from snugbert import kernels_snugbert
from snugbert.errors import InputError
from snugbert.gpu import cuda_graphs
from snugbert.modeling_snugbert import SnugBertEmbeddings, SnugBertLayer, SnugBertPreTrainingHeads
from snugbert.trainers.run.processes import wait_for_all

# A fine-tuning run with at least this many forward and backward passes compiles by default. On an H100, compiling
# took 21 s without a cache and 6 s with a cache. In CUDA graphs, it saved 0.6 to 1.0 ms in each pass of 32 examples of
# BERT base. So it pays off after 21,000 to 36,000 passes without a cache, and after 6,000 to 10,000 with a cache.
COMPILE_PASSES = 20_000
# All layers of all models in the process share this maximum number of graphs. Beyond it, torch silently stops
# compiling. The default is 8, but training, evaluation, frozen layers, the shorter last layer and batches of one
# sequence each need their own graphs.
RECOMPILE_LIMIT = 64
# torch's modes with CUDA graphs record a graph for every number of tokens. The modes below use no graphs.
MODES_WITHOUT_CUDA_GRAPHS = {"reduce-overhead": None, "max-autotune": "max-autotune-no-cudagraphs"}

# Code of these packages computes losses from the batch, the weights and random numbers only.
KNOWN_PACKAGES = ("snugbert", "transformers", "torch", "peft")
NUM_ITEMS, NUM_BATCHES = "num_items_in_batch", "num_batches_in_step"

logger = logging.getLogger(__name__)


def compile_model(
    model: torch.nn.Module, backend: str = "inductor", mode: str | None = None, device: torch.device | None = None
) -> list[str]:
    """Compiles the parts of a model in place, with one graph for batches of most sizes. The first batches are slow.

    The parts are the layers, and on a GPU also the embeddings and the masked token head with its loss. On a CPU,
    embeddings and head have their own kernels. On a GPU, layers of BERT base are compiled again for batches from 6,827
    tokens on, because inductor then fuses LayerNorm's backward pass. Parts that are not SnugBERT's stay as they are.
    No `mode` uses torch's CUDA graphs, see `MODES_WITHOUT_CUDA_GRAPHS`. Returns the names of the compiled parts.
    """
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
        if module_class is SnugBertPreTrainingHeads:  # it may have only the next-sentence head
            modules = [head for head in modules if hasattr(head, "predictions")]
        for module in modules:
            module.compile(dynamic=True, backend=backend, mode=mode)
        compiled += [name] * bool(modules)
    return compiled


@functools.cache
def find_compiler_problem(device: torch.device) -> str | None:
    """Returns why torch's compiler does not work for a GPU, and what to do. None: it works.

    Compiles a small function to find out. That takes a few seconds, once per process.
    """
    try:
        torch.compile(lambda values: values + 1, dynamic=True)(torch.zeros(2, device=device))
    except Exception as error:  # the GPU may be too old. Triton, a C compiler or Python's headers may be missing
        return f"torch's compiler failed ({shorten_error(error)}). It needs Triton, a C compiler and Python's headers."
    return None


def shorten_error(error: Exception) -> str:
    """Returns the start of a compiler's error, which can fill pages."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 300, placeholder=" ...")


def compile_as_requested(model: Any, args: TrainingArguments) -> None:
    """Compiles a model for a run with `--torch_compile`, including evaluation without training."""
    device = args.device
    if device.type == "cuda" and args.torch_compile_backend == "inductor":
        if problem := find_compiler_problem(device):
            raise InputError(f"--torch_compile: {problem} To train without compiling, add --torch_compile false.")
    compile_model(model, str(args.torch_compile_backend), args.torch_compile_mode, device)


class Compilation(TrainerCallback):
    """Compiles the model when training starts, if `torch_compile` is set.

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


class RunGraphs:
    """The CUDA graphs of a run's training steps and evaluation batches, see [`CudaGraphs`].

    With several processes, a run with graphs needs no DDP: one all-reduce after the last batch of a step averages the
    gradients, see [`FlatGradients`]. It is not part of a graph, because the processes have rows of different sizes.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.restart()

    def restart(self) -> None:
        """Frees the memory of all graphs. The next step decides again whether to use graphs."""
        self._uses_graphs: bool | None = None  # None: not decided
        self._training: cuda_graphs.CudaGraphs | None = None
        self._evaluation: cuda_graphs.CudaGraphs | None = None

    @property
    def replaces_ddp(self) -> bool:
        """Whether several processes average their gradients without DDP."""
        return self.trainer.args.world_size > 1 and self.are_used()

    def are_used(self) -> bool:
        """Whether training and evaluation use CUDA graphs. Decided once in each run, with a log line."""
        if self._uses_graphs is None:
            args = self.trainer.args
            wanted = getattr(args, "cuda_graphs", False)
            self._uses_graphs = args.uses_cuda if wanted is None else wanted
            if self._uses_graphs and (reason := self._find_reason_against()):
                logger.info("CUDA graphs: off, because %s.", reason)
                self._uses_graphs = False
        return bool(self._uses_graphs)

    def train(self, step: Callable[..., torch.Tensor], model: Any, inputs: dict[str, Any], num_items: Any) -> Any:
        """Runs `step`, a `Trainer.training_step`, in a graph if the size of the batch has occurred before."""
        trainer = self.trainer
        model.train()  # a replayed graph does not set the model or the optimizer to training mode
        if callable(train_optimizer := getattr(trainer.optimizer, "train", None)):
            train_optimizer()
        batch = dict(trainer._prepare_inputs(inputs))
        # With a token budget, the number of sequences varies, and each number would need its own graph.
        if not self._reads_num_sequences(batch):
            batch.pop("num_sequences", None)
        # A graph stores the number of batches. Trainer divides the loss of some models by this number.
        batches = getattr(trainer, "current_gradient_accumulation_steps", 1)
        batch |= {NUM_ITEMS: num_items, NUM_BATCHES: batches}
        if self._training is None or self._training.model is not trainer.model:

            def run(batch: dict[str, Any]) -> torch.Tensor:
                del batch[NUM_BATCHES]
                return step(model, batch, batch.pop(NUM_ITEMS))

            self._training = cuda_graphs.CudaGraphs(run, trainer.model)
            if self.replaces_ddp:
                return self._run_in_turn(batch)
        return self._training(batch)

    def _run_in_turn(self, batch: dict[str, Any]) -> Any:
        """Runs the first batch. One process of each machine compiles, then the others find its code in the cache."""
        is_first = self.trainer.args.local_process_index == 0
        if not is_first:
            wait_for_all()
        result = self._training(batch)
        if is_first:
            wait_for_all()
        return result

    def average_gradients(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Averages gradients and `numbers` over the processes, see [`FlatGradients.average`]."""
        assert self._training is not None
        return self._training.gradients.average(numbers)

    def for_evaluation(self, model: Any) -> Any:
        """Returns `model` for evaluation, or a function that runs it with CUDA graphs."""
        trainer = self.trainer
        if not self.are_used() or trainer.label_smoother is not None:  # label smoothing needs the model itself
            return model
        if self._evaluation is None or self._evaluation.model is not trainer.model:
            self._evaluation = cuda_graphs.CudaGraphs(lambda batch: model(**batch), trainer.model)
        graphs = self._evaluation
        return lambda **inputs: graphs(inputs)

    def _find_reason_against(self) -> str | None:
        # The answer must be the same in all processes.
        trainer, args = self.trainer, self.trainer.args
        if not cuda_graphs.are_on_gpu([torch.empty(0, device=args.device)]):
            return "they need a CUDA GPU"
        if args.n_gpu > 1:
            return "one process uses several GPUs"
        if args.world_size > 1 and trainer.model_init is not None:
            return "model_init replaces the model"
        if trainer.accelerator.scaler is not None:
            return "float16 scales the loss (--bf16 does not)"
        wants = (
            getattr(args, f"{kind}_checkpointing", False) for kind in ("activation", "gradient")
        )  # the second: 5.17
        if any(wants) or any(getattr(module, "gradient_checkpointing", False) for module in trainer.model.modules()):
            return "gradient checkpointing reads the random state, which a graph cannot do"
        if args.torch_empty_cache_steps is not None:
            return "--torch_empty_cache_steps frees memory within a step"
        if args.cuda_graphs is None and (name := self._find_own_code()) is not None:
            return f"{name} may depend on more than the batch. If {name} reads only the batch, set cuda_graphs=True"
        return None

    def _find_own_code(self) -> str | None:
        """Returns the name of a user's code that computes the loss. Replaying a CUDA graph does not run Python."""
        trainer = self.trainer
        parts = [getattr(type(trainer), name) for name in ("training_step", "compute_loss")]
        parts += [] if trainer.compute_loss_func is None else [trainer.compute_loss_func]
        parts += map(type, trainer.model.modules())
        own = (part for part in parts if part.__module__.split(".")[0] not in KNOWN_PACKAGES)
        return next((getattr(part, "__qualname__", str(part)) for part in own), None)

    def _reads_num_sequences(self, batch: dict[str, Any]) -> bool:
        """Whether the loss needs `num_sequences`. In regression and multi-label tasks, -100 is not padding."""
        labels, config = batch.get("labels"), self.trainer.model_config
        if labels is None:
            return False
        numbers = ("regression", "multi_label_classification")
        is_numeric = getattr(config, "problem_type", None) in numbers or getattr(config, "num_labels", None) == 1
        return is_numeric or labels.is_floating_point()
