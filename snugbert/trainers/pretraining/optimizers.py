"""Optimizers and a schedule that Trainer does not have, or not as pretraining wants them: LAMB, Muon, WSD.

AdamW, the default, and warmup with linear decay are Trainer's own.
"""

import math
from typing import Any

import torch
import yaml
from torch import nn
from transformers import TrainingArguments

from snugbert.errors import InputError

WSD_DECAY = 0.1  # share of the steps; Hu et al. (2024), MiniCPM, section 4: 10 % of the tokens are enough


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon (Jordan, 2024) for the matrices of hidden layers, AdamW for everything else, as one optimizer.

    Muon's update is scaled to the size of AdamW's (Liu et al., 2025, "Muon is scalable for LLM training", section
    2.2), so that one learning rate and one weight decay serve both.

    Args:
        matrices: 2-D weights of hidden layers, for Muon.
        others: parameter groups for AdamW.
        lr, weight_decay: of both; a group of `others` can have a weight decay of its own.
        betas, eps: of AdamW.
        options: further arguments of `torch.optim.Muon`: `momentum`, `nesterov`, `ns_steps` and so on.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        others: list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        **options: Any,
    ):
        options = {"adjust_lr_fn": "match_rms_adamw", **options}
        self.muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, **options)
        self.adamw = torch.optim.AdamW(others, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, fused=True)
        super().__init__(self.muon.param_groups + self.adamw.param_groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Groups and state are this optimizer's, whoever replaced them since: a loaded checkpoint, FSDP2.
        self.muon.param_groups = [group for group in self.param_groups if "momentum" in group]
        self.adamw.param_groups = [group for group in self.param_groups if "betas" in group]
        for part in (self.muon, self.adamw):
            part.state = self.state
            part.step()
        return loss


def make_optimizer(args: TrainingArguments, model: nn.Module, decayed: list[str]) -> torch.optim.Optimizer:
    """The optimizer that `args.optim` names, one of `OPTIMIZERS`.

    Args:
        args: learning rate, weight decay, betas and epsilon are taken from it; `optim_args`, `name=value` pairs with
            commas between, go to the optimizer.
        model: its parameters are optimized.
        decayed: names of the parameters that weight decay is for; not for biases and LayerNorm.

    Raises:
        InputError: LAMB's library is missing, or the model is in shards, which it cannot; `optim_args` are not the
            optimizer's.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    common = {
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    try:
        options = _options(args.optim_args)
        if args.optim == "muon":
            return _muon(named, set(decayed), common, options)
        return _lamb(named, set(decayed), common, options, sharded=bool(args.fsdp))
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--optim_args {args.optim_args}: {error} (--optim {args.optim}).") from error


def _options(optim_args: str | None) -> dict[str, Any]:
    pairs = [pair.partition("=") for pair in (optim_args or "").split(",") if pair]
    return {name.strip(): yaml.safe_load(value) for name, _, value in pairs}


def _muon(
    named: dict[str, nn.Parameter], decayed: set[str], common: dict[str, Any], options: dict[str, Any]
) -> MuonWithAdamW:
    matrices = {name for name, parameter in named.items() if ".encoder.layer." in name and parameter.ndim == 2}
    rest = named.keys() - matrices
    others: list[dict[str, Any]] = [
        {"params": [named[name] for name in named if name in rest & decayed]},
        {"params": [named[name] for name in named if name in rest - decayed], "weight_decay": 0.0},
    ]
    return MuonWithAdamW([named[name] for name in named if name in matrices], others, **common, **options)


def _lamb(
    named: dict[str, nn.Parameter],
    decayed: set[str],
    common: dict[str, Any],
    options: dict[str, Any],
    sharded: bool,
) -> torch.optim.Optimizer:
    """LAMB as its authors trained BERT with it (You et al., 2019; `lamb_optimizer.py` in google-research/albert)."""
    if sharded:  # its in-place operations on norms are not what torch's sharded tensors can do
        raise InputError("--optim lamb has no --fsdp; leave it out, for BERT-large and its optimizer fit on one GPU.")
    try:
        from pytorch_optimizer import Lamb
    except ImportError as error:
        raise InputError("--optim lamb needs a library: pip install 'snugbert[lamb]'.") from error
    groups: list[dict[str, Any]] = [
        {"params": [named[name] for name in named if name in decayed]},
        # "adam": no trust ratio
        {"params": [named[name] for name in named if name not in decayed], "weight_decay": 0.0, "adam": True},
    ]
    # Weight decay is part of the update that the trust ratio scales. Without correction of the bias, as in the
    # authors' code: warmup does the same. (The library's own default divides the learning rate by 1 - beta1^t, ten
    # times the learning rate at the first step.)
    optimizer = Lamb(groups, **common, weight_decouple=False, adam_debias=True, **options)
    optimizer.clamp = math.inf  # not 10 at most: the norm of BERT-base's word embeddings is 97 from the start
    return optimizer


def wsd_arguments(kwargs: Any, warmup_steps: int, num_training_steps: int) -> dict[str, Any]:
    """Arguments for transformers' `get_wsd_schedule`, with the number of steps of decay as such.

    Args:
        kwargs: `--lr_scheduler_kwargs`; `num_decay_steps` below 1 is a share of all steps, and 0.1 if it is missing.
        warmup_steps: steps of warmup.
        num_training_steps: all steps.

    Raises:
        InputError: warmup and decay do not fit into the steps.
    """
    given = (kwargs or {}).get("num_decay_steps", WSD_DECAY)
    decay_steps = math.ceil(given * num_training_steps) if given < 1 else int(given)
    if decay_steps < 1 or warmup_steps + decay_steps > num_training_steps:
        raise InputError(
            f"--lr_scheduler_kwargs: num_decay_steps {given} must be positive and leave room for {warmup_steps} steps "
            f"of warmup among {num_training_steps}."
        )
    return {**(kwargs or {}), "num_decay_steps": decay_steps, "num_training_steps": num_training_steps}
