"""Training on several processes with DDP or FSDP2, and checkpoints that are the same for both and for one process.

Checkpoints have one format, whether one process wrote them, several with DDP, or several with FSDP2.
`model.safetensors` holds complete weights, and `optimizer.pt` the complete optimizer state by parameter name. So any
run can resume any checkpoint, and `from_pretrained` opens all of them. BERT is small enough to gather in one process:
BERT-large has 335M parameters, 4 GB with AdamW's state.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, broadcast_object_list
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from snugbert.checkpoints.weight_files import read_torch_file
from snugbert.errors import InputError

logger = logging.getLogger(__name__)

GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)  # only the first process gets the state


class Sharding:
    """Trains on any number of processes, with DDP or FSDP2, and reads and writes checkpoints of one format.

    A run can resume under DDP, under FSDP2 or in one process. On a CPU, with the same kind and number of processes,
    the result is bit-identical. On a GPU, data, order, masks and dropout are the same, but some kernels add up in an
    order that differs from run to run ("Resuming on a GPU" in the documentation). With another kind or number of
    processes, the result agrees within rounding, except for dropout: every process has its own random state.

    Args:
        trainer: the trainer that uses this object.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer

    @property
    def is_active(self) -> bool:
        """Whether the trainer's model is sharded."""
        # Any module, because ELECTRA's two models are saved one by one. The types of the parameters are no criterion,
        # because parameters outside the layers stay whole after an evaluation.
        trainer = self.trainer
        return trainer.is_fsdp_enabled and any(isinstance(module, FSDPModule) for module in trainer.model.modules())

    # --- FSDP2 --------------------------------------------------------------------------------------------------

    def enable_on_cpus(self) -> None:
        """Makes `--fsdp` work on CPUs. Called when the accelerator is created."""
        trainer = self.trainer
        if trainer.args.fsdp_plugin_args and trainer.args.world_size > 1 and not trainer.is_fsdp_enabled:
            # On CPUs, accelerate (1.15) silently uses DDP instead of FSDP, although torch supports FSDP on CPUs.
            state = trainer.accelerator.state
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
            trainer.is_fsdp_enabled = True

    @contextmanager
    def grouping(self) -> Iterator[None]:
        """Under FSDP2, all parameters outside the layers form one group if the block wraps the model."""
        trainer = self.trainer
        if trainer.args.world_size > 1:
            how = "FSDP2, sharded weights" if trainer.is_fsdp_enabled else "DDP, all weights in each process"
            logger.info("%d processes (%s)", trainer.args.world_size, how)
        if not trainer.is_fsdp_enabled or self.is_active:
            yield
            return
        # The vocabulary projection shares its weight with the word embeddings and its bias with the head. Shared
        # parameters must be in one group. But accelerate makes separate groups of the embeddings (`_no_split_modules`)
        # and of the two modules that the methods below return.
        model, plugin = trainer.model, trainer.accelerator.state.fsdp_plugin
        # Weights and sums of gradients stay in float32. 16 bits come from autocast, as under DDP. accelerate's policy
        # would convert the weights, so that residuals and layer norms are computed in 16 bits as well.
        plugin.mixed_precision_policy = None
        plugin.transformer_cls_names_to_wrap = plugin.transformer_cls_names_to_wrap or ["SnugBertLayer"]
        model.get_input_embeddings = model.get_output_embeddings = lambda: None
        try:
            yield
        finally:
            del model.get_input_embeddings, model.get_output_embeddings

    # --- checkpoints --------------------------------------------------------------------------------------------

    def gather_model(self) -> PreTrainedModel:
        """Returns the trainer's model with complete weights in the first process, without weights in others.

        The result has the class of the model before sharding. Every process must call this.
        """
        sharded = self.trainer.model
        weights: Any = get_model_state_dict(sharded, options=GATHERED)
        model_class: Any = next(base for base in type(sharded).__mro__ if not issubclass(base, FSDPModule))
        with torch.device("meta"):
            whole = model_class(sharded.config)
        if self.trainer.args.process_index == 0:
            whole.load_state_dict(weights, assign=True)
            whole.tie_weights()
        return whole

    def load_weights(self, checkpoint: str) -> None:
        """Loads the weights of a checkpoint into the sharded model. Only the first process reads them."""
        weights: Any = {}
        model = self.trainer.model
        if self.trainer.args.process_index == 0:
            weights = load_file(Path(checkpoint) / "model.safetensors")
            weights |= {name: weights[source] for name, source in model.get_expanded_tied_weights_keys(True).items()}
        set_model_state_dict(model, weights, options=_broadcast_options())

    def save_optimizer(self, folder: str) -> None:
        """Writes the optimizer state by parameter name, and the schedule, into a checkpoint."""
        trainer = self.trainer
        # torch initializes the optimizer's state with a step, which accelerate's wrapper would skip.
        optimizer = trainer.optimizer.optimizer
        state = get_optimizer_state_dict(trainer.model, optimizer, options=GATHERED)
        if trainer.args.should_save:
            torch.save({"optimizer": type(optimizer).__name__, **state}, Path(folder) / "optimizer.pt")
            torch.save(trainer.lr_scheduler.state_dict(), Path(folder) / "scheduler.pt")

    def load_optimizer(self, checkpoint: str) -> None:
        """Loads what `save_optimizer` wrote.

        Raises:
            InputError: `optimizer.pt` is missing or has a different format.
        """
        trainer = self.trainer
        state: Any = {}
        if trainer.args.process_index == 0:
            file = Path(checkpoint) / "optimizer.pt"
            state = read_torch_file(file) if file.is_file() else {}
            if state.pop("optimizer", None) is None:
                raise InputError(
                    f"{file} is missing, or was written by an older version of SnugBERT. Start a new run from the "
                    f"weights: --model_name_or_path {checkpoint}."
                )
        with _without_gradient(trainer.model, _list_stateless(state)):
            set_optimizer_state_dict(trainer.model, trainer.optimizer.optimizer, state, options=_broadcast_options())
        trainer.lr_scheduler.load_state_dict(read_torch_file(Path(checkpoint) / "scheduler.pt"))


def _list_stateless(state: dict[str, Any]) -> list[str]:
    """Returns the names of the parameters that have no state yet, because they never got a gradient.

    Args:
        state: the state of an optimizer, by parameter name. Only the first process needs the state.
    """
    names = [name for group in state.get("param_groups", []) for name in group["params"]]
    stateless = [[name for name in names if name not in state["state"]]]
    broadcast_object_list(stateless)
    return stateless[0]


@contextmanager
def _without_gradient(model: torch.nn.Module, names: list[str]) -> Iterator[None]:
    """In the block, torch neither expects nor creates an optimizer state for the parameters `names`."""
    parameters = [each for each in map(model.get_parameter, names) if each.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _broadcast_options() -> StateDictOptions:
    """Options that send the state in the first process to all processes."""
    return StateDictOptions(full_state_dict=True, broadcast_from_rank0=dist.is_initialized())
