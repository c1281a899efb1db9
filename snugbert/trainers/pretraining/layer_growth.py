"""More layers for a trained model, which starts with nearly the same predictions.

Each new layer is a copy of the layer before it, with sublayers that output zero, as in Wu et al. (2024), "LLaMA Pro:
Progressive LLaMA with Block Expansion". BERT normalizes the sum after each sublayer, so the LayerNorms of a new layer
restore the mean and the standard deviation that they remove. These are the same for all tokens, so the predictions
stay the same only if they hardly differ between tokens.
"""

import copy
from typing import Any

from torch import nn

from snugbert.errors import InputError


def grow_layers(model: Any, num_layers: int) -> None:
    """Adds layers to a model, evenly between the layers it has.

    Args:
        model: a SnugBERT model.
        num_layers: number of layers of the grown model.

    Raises:
        InputError: the model has as many layers already.
    """
    layers = model.base_model.encoder.layer
    if num_layers <= len(layers):
        raise InputError(f"--grow_layers {num_layers}: the model already has {len(layers)} layers.")
    grown = nn.ModuleList()
    for number, layer in enumerate(layers, start=1):
        grown.append(layer)
        num_new = number * num_layers // len(layers) - len(grown)
        grown.extend(_make_layer(layer) for _ in range(num_new))
    model.base_model.encoder.layer = grown
    model.config.num_hidden_layers = num_layers


def _make_layer(before: nn.Module) -> nn.Module:
    """Returns a layer whose output is close to its input, the output of the layer `before`."""
    layer: Any = copy.deepcopy(before)
    weight, bias = layer.output.LayerNorm.weight, layer.output.LayerNorm.bias
    # The mean and the standard deviation of the output of `before`, if the numbers that it scales and shifts are
    # independent.
    mean, std = bias.mean().item(), (weight.square().mean() + bias.var(correction=0)).sqrt().item()
    for sublayer in (layer.attention.output, layer.output):
        nn.init.zeros_(sublayer.dense.weight)
        nn.init.zeros_(sublayer.dense.bias)
        nn.init.constant_(sublayer.LayerNorm.weight, std)
        nn.init.constant_(sublayer.LayerNorm.bias, mean)
    return layer
