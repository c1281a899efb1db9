"""Trainer on any number of processes: DDP, FSDP2, and checkpoints that are the same for both.

Checkpoints have one format, whether one process wrote them, several with DDP, or several with FSDP2.
`model.safetensors` holds complete weights, and `optimizer.pt` the complete optimizer state by parameter name. So any
run can resume any checkpoint, and `from_pretrained` opens all of them. BERT is small enough to gather in one process:
BERT-large has 335M parameters, 4 GB with AdamW's state.
"""

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, Trainer

from snugbert.checkpoints.weight_files import read_torch_file
from snugbert.errors import InputError

logger = logging.getLogger(__name__)

GATHERED = StateDictOptions(full_state_dict=True, cpu_offload=True)  # in the first process; the others get nothing


class ProcessesTrainer(Trainer):
    """Trainer whose checkpoints have one format under DDP, under FSDP2 and in one process.

    A run can resume in any of the three. On a CPU, with the same kind and number of processes, the result is
    bit-identical. On a GPU, data, order, masks and dropout are the same, but some kernels add up in an order that
    differs from run to run ("Resuming on a GPU" in the documentation). With another kind or number, the result agrees
    within rounding, except for dropout: every process has its own random state.
    """

    model: Any
    lr_scheduler: Any

    # --- FSDP2 --------------------------------------------------------------------------------------------------

    def create_accelerator_and_postprocess(self) -> None:
        """As in Trainer. `--fsdp` also works on CPUs."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp_plugin_args and self.args.world_size > 1 and not self.is_fsdp_enabled:
            # On CPUs accelerate (1.15) silently uses DDP instead of FSDP, which torch supports there.
            state = self.accelerator.state
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            self.is_fsdp_enabled = True

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """As in Trainer. Under FSDP2 all parameters outside the layers form one group."""
        if self.args.world_size > 1:
            how = "FSDP2, sharded weights" if self.is_fsdp_enabled else "DDP, all weights in each process"
            logger.info("%d processes (%s)", self.args.world_size, how)
        if not self.is_fsdp_enabled or self._is_sharded:
            return super()._prepare_for_training(*args, **kwargs)
        # The vocabulary projection shares its weight with the word embeddings and its bias with the head. Shared
        # parameters must be in one group. But accelerate makes separate groups of the embeddings (`_no_split_modules`)
        # and of the two modules that the methods below return.
        model, plugin = self.model, self.accelerator.state.fsdp_plugin
        # Weights and sums of gradients stay in float32. 16 bits come from autocast, as under DDP. accelerate's policy
        # would convert the weights, so that residuals and layer norms are computed in 16 bits as well.
        plugin.mixed_precision_policy = None
        plugin.transformer_cls_names_to_wrap = plugin.transformer_cls_names_to_wrap or ["SnugBertLayer"]
        model.get_input_embeddings = model.get_output_embeddings = lambda: None
        try:
            return super()._prepare_for_training(*args, **kwargs)
        finally:
            del model.get_input_embeddings, model.get_output_embeddings

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Autocast around the model under FSDP2. Otherwise, accelerate has added it to the model's `forward`."""
        if self._is_sharded:
            return self.accelerator.autocast()
        return super().autocast_smart_context_manager(cache_enabled)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Trainer. Saves complete weights, also under FSDP2."""
        if not self._is_sharded:
            return super().save_model(output_dir, _internal_call)
        sharded, weights = self.model, get_model_state_dict(self.model, options=GATHERED)
        if self.args.should_save:
            self.model = _unsharded(sharded, weights)
            self._save(output_dir)
            self.model = sharded

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        optimizer = _bare(self.optimizer)
        state = get_optimizer_state_dict(self.model, optimizer, options=GATHERED)
        if self.args.should_save:
            torch.save({"optimizer": type(optimizer).__name__, **state}, Path(output_dir) / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not self._is_sharded:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        weights: Any = {}
        if self.args.process_index == 0:
            weights = load_file(Path(resume_from_checkpoint) / "model.safetensors")
            weights |= {
                name: weights[source] for name, source in self.model.get_expanded_tied_weights_keys(True).items()
            }
        set_model_state_dict(self.model, weights, options=self._broadcast)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizer = _bare(self.optimizer)
        state = {}
        if self.args.process_index == 0:
            state = _load_optimizer_state(Path(checkpoint) / "optimizer.pt")
        set_optimizer_state_dict(self.model, optimizer, state, options=self._broadcast)
        self.lr_scheduler.load_state_dict(read_torch_file(Path(checkpoint) / "scheduler.pt"))

    @property
    def _is_sharded(self) -> bool:
        # Any module, because ELECTRA's two models are saved one by one. The type of the parameters does not show it:
        # those outside the layers stay whole after an evaluation.
        return self.is_fsdp_enabled and any(isinstance(module, FSDPModule) for module in self.model.modules())

    @property
    def _broadcast(self) -> StateDictOptions:
        """Options that send the state in the first process to all processes."""
        return StateDictOptions(full_state_dict=True, broadcast_from_rank0=dist.is_initialized())


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    # torch initializes an empty state with a step. accelerate's wrapper would skip it.
    return optimizer.optimizer


def _unsharded(model: Any, weights: Any) -> PreTrainedModel:
    """A model of the class that `model` had before it was sharded, with complete `weights`."""
    model_class: Any = next(base for base in type(model).__mro__ if not issubclass(base, FSDPModule))
    with torch.device("meta"):
        whole = model_class(model.config)
    whole.load_state_dict(weights, assign=True)
    whole.tie_weights()
    return whole


def _load_optimizer_state(file: Path) -> dict[str, Any]:
    """Reads the optimizer state that [`ProcessesTrainer`] wrote.

    Raises:
        InputError: the file is missing or has another format.
    """
    content = read_torch_file(file) if file.is_file() else {}
    if content.pop("optimizer", None) is None:
        raise InputError(
            f"{file} is missing, or was written by an older version of SnugBERT. Start a new run from the weights: "
            f"--model_name_or_path {file.parent}."
        )
    return content
