"""Runs the steps of a run with CUDA graphs, and averages the gradients of several processes without DDP."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from snugbert.gpu import cuda_graphs

# Code of these packages computes losses only from the batch, the weights and random numbers.
KNOWN_PACKAGES = ("snugbert", "transformers", "torch", "peft")
NUM_ITEMS, NUM_BATCHES = "num_items_in_batch", "num_batches_in_step"

logger = logging.getLogger(__name__)


class RunGraphs:
    """The CUDA graphs of a run's training steps and evaluation batches, see [`CudaGraphs`].

    With several processes, a run with graphs needs no DDP: after the last batch of a step, one all-reduce averages the
    gradients. It is not part of a graph, because the processes have rows of different sizes.
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
        """Whether several processes average their gradients without DDP. It must be the same in all processes."""
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
        return self._training(batch)

    def average_gradients(self, numbers: torch.Tensor) -> torch.Tensor:
        """Averages gradients and `numbers` over the processes, see [`FlatGradients.average`]."""
        return self._training.gradients.average(numbers)  # type: ignore[union-attr]

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
        trainer, args = self.trainer, self.trainer.args
        if not cuda_graphs.are_on_gpu([torch.empty(0, device=args.device)]):
            return "they need a CUDA GPU"
        if args.world_size > 1 and trainer.model_init is not None:
            return "model_init replaces the model"
        if trainer.accelerator.scaler is not None:
            return "float16 scales the loss (--bf16 does not)"
        # transformers 5.17 has only `gradient_checkpointing`.
        wants_checkpoints = getattr(args, "activation_checkpointing", args.gradient_checkpointing)
        if wants_checkpoints or any(
            getattr(each, "gradient_checkpointing", False) for each in trainer.model.modules()
        ):
            return "gradient checkpointing reads the random state, which a graph cannot do"
        if len({parameter.dtype for parameter in trainer.model.parameters() if parameter.requires_grad}) > 1:
            return "the trained weights have several dtypes"
        if args.torch_empty_cache_steps is not None:
            return "--torch_empty_cache_steps frees memory within a step"
        if args.cuda_graphs is None and (name := self._find_own_code()) is not None:
            return f"{name} may depend on more than the batch. If {name} reads only the batch, set cuda_graphs=True"
        return None

    def _find_own_code(self) -> str | None:
        """Returns the name of user code that helps to compute the loss. Replaying a CUDA graph does not run Python."""
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
