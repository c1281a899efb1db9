"""Optimizers that Trainer lacks or defines differently: LAMB and Muon.

AdamW, the default, and warmup with linear decay come from Trainer.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import nn
from transformers import TrainingArguments

from snugbert.errors import InputError
from snugbert.kernels_snugbert import has_own_kernels

GPU_NUMBERS = 2**24  # numbers that Muon updates at once on a GPU, 64 MiB in float32: 28 matrices of 768 x 768
CPU_MATRICES = 4  # matrices that a CPU updates at once. More do not fit into its cache


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan, 2024) for the matrices of hidden layers and AdamW for all other parameters, as one optimizer.

    Muon's update is scaled to the size of AdamW's (Liu et al., 2025, "Muon is scalable for LLM training", section
    2.2), so one learning rate and one weight decay fit both. A group of `others` can have its own weight decay. With
    `bf16`, Muon orthogonalizes in bfloat16, as in torch, instead of float32.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        others: list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        bf16: bool = True,
        **options: Any,
    ):
        dtype = torch.bfloat16 if bf16 else torch.float32
        self.muon = BatchedMuon(matrices, dtype, lr=lr, weight_decay=weight_decay, **options)
        self.adamw = torch.optim.AdamW(others, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, fused=True)
        super().__init__(self.muon.param_groups + self.adamw.param_groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Performs a step of both optimizers."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        # Loading a checkpoint replaces the groups and the state of this optimizer. Pass them on every time.
        self.muon.param_groups = [group for group in self.param_groups if "momentum" in group]
        self.adamw.param_groups = [group for group in self.param_groups if "betas" in group]
        for part in (self.muon, self.adamw):
            part.state = self.state
            part.step()
        return loss


class BatchedMuon(torch.optim.Muon):
    """Muon that updates all matrices of a shape together. It has the options and the state of `torch.optim.Muon`.

    On a GPU, torch's Muon launches some 20 small kernels per matrix. Tall matrices are not transposed to join wide
    matrices: BERT-base has 12 tall and 12 wide matrices, and 7 matrices fill a batch. Several processes divide the
    matrices among themselves. `dtype` is the dtype of the orthogonalization. torch uses bfloat16, which takes more
    than 20 times as long as float32 on CPUs without bfloat16 instructions.
    """

    def __init__(self, matrices: list[nn.Parameter], dtype: torch.dtype, **options: Any):
        super().__init__(matrices, adjust_lr_fn="match_rms_adamw", **options)
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Updates the parameters that have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in shapes.items():
                length = CPU_MATRICES if has_own_kernels(parameters[0]) else max(1, GPU_NUMBERS // shape.numel())
                length *= dist.get_world_size() if dist.is_initialized() else 1
                for start in range(0, len(parameters), length):
                    self._update(parameters[start : start + length], group)

    def _update(self, parameters: list[torch.Tensor], group: dict[str, Any]) -> None:
        """Updates parameters of one shape. Each process orthogonalizes a share, but applies all updates."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(gradient)
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        processes, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        number = -(-len(parameters) // processes)
        share = [index % len(parameters) for index in range(rank * number, (rank + 1) * number)]
        updates = torch.stack([buffers[index] for index in share])
        if group["nesterov"]:
            updates = torch.stack([gradients[index] for index in share]).lerp_(updates, group["momentum"])
        whole = updates.to(self.dtype)
        whole = orthogonalize(whole, group["ns_coefficients"], group["ns_steps"], group["eps"])
        if processes > 1:
            whole, own = whole.new_empty(processes * number, *whole.shape[1:]), whole
            dist.all_gather_into_tensor(whole, own)
        whole = whole[: len(parameters)].to(updates.dtype)
        rows, columns = parameters[0].shape
        scale = 0.2 * math.sqrt(max(rows, columns))  # Liu et al. (2025), section 2.2
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, whole.unbind(), alpha=-group["lr"] * scale)


def orthogonalize(
    matrices: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Moves all singular values close to 1, with the quintic Newton-Schulz iteration of Muon (Jordan, 2024).

    The coefficients belong to X, X X^T X and X X^T X X^T X. The result is contiguous.
    *Shape:* (matrices, M, N) -> (matrices, M, N)
    """
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    wide = wide / torch.linalg.vector_norm(wide, dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = torch.bmm(wide, wide.mT)
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return (wide.mT if tall else wide).contiguous()


def make_optimizer(args: TrainingArguments, model: nn.Module, decayed: list[str]) -> torch.optim.Optimizer:
    """Makes the optimizer that `args.optim` names, one of `OPTIMIZERS`, with the options in `args.optim_args`.

    All parameters except biases and LayerNorm have weight decay (`decayed`).
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    pairs = [pair.partition("=") for pair in (args.optim_args or "").split(",") if pair]
    options: dict[str, Any] = {name.strip(): yaml.safe_load(value) for name, _, value in pairs}
    common: dict[str, Any] = {
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    matrices = []
    if args.optim == "muon":
        matrices = [name for name in named if ".encoder.layer." in name and named[name].ndim == 2]
    rest = [name for name in named if name not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": [named[name] for name in rest if name in decayed]},
        {"params": [named[name] for name in rest if name not in decayed], "weight_decay": 0.0},
    ]
    if args.optim == "muon":
        return MuonWithAdamW([named[name] for name in matrices], groups, bf16=args.bf16, **common, **options)
    return _make_lamb(groups, common, options)


def _make_lamb(groups: list[dict[str, Any]], common: dict[str, Any], options: dict[str, Any]) -> torch.optim.Optimizer:
    """LAMB with its authors' settings for BERT (You et al., 2019; `lamb_optimizer.py` in google-research/albert)."""
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        raise InputError("--optim lamb needs pytorch_optimizer. Run: pip install 'snugbert[lamb]'.") from error
    groups[1]["adam"] = True  # no trust ratio without weight decay
    # The trust ratio scales the update including weight decay. As in the authors' code there is no bias correction:
    # warmup has the same effect. (The library's default divides the learning rate by 1 - beta1^t, so the first step
    # would have ten times the learning rate.)
    optimizer = Lamb(groups, weight_decouple=False, adam_debias=True, **common, **options)
    optimizer.clamp = math.inf  # no limit of 10: the initial norm of BERT-base's word embeddings is 97
    return optimizer
