"""Adds layers to a trained model, which then starts with nearly the same predictions.

A new layer is a copy of the layer before it, with sublayers that add nothing, as in Wu et al. (2024), "LLaMA Pro:
Progressive LLaMA with Block Expansion". BERT normalizes after each sublayer, so a new layer must also undo its
LayerNorms. Its input is w * z + b: the layer before scaled normalized numbers z by w and shifted them by b. The first
LayerNorm gets w * z, divides it by w and by its standard deviation, and returns a multiple of z. The second one
normalizes it, and scales and shifts it by w and b again.
"""

import copy
from typing import Any

import torch
from torch import nn

from snugbert.configuration_snugbert import SnugBertConfig

SMALLEST_SCALE = 0.1  # Smaller scales of a LayerNorm, relative to their root mean square, are divided by this


def grow_layers(model: Any, num_layers: int) -> None:
    """Adds layers to a model, after its own layers and spread evenly.

    Args:
        model: a SnugBERT model. Its configuration changes as well.
        num_layers: number of layers of the grown model, at least the present number.
    """
    encoder = model.base_model.encoder
    grown = nn.ModuleList()
    for number, layer in enumerate(encoder.layer, start=1):
        grown.append(layer)
        while len(grown) < number * num_layers // len(encoder.layer):
            grown.append(_make_layer(layer, model.config))
    encoder.layer, model.config.num_hidden_layers = grown, num_layers


@torch.no_grad()
def _make_layer(before: nn.Module, config: SnugBertConfig) -> nn.Module:
    """Returns a layer whose output is close to its input, the output of the layer `before`."""
    layer: Any = copy.deepcopy(before, {id(config): config})  # all layers share one configuration
    first, last = layer.attention.output, layer.output
    for sublayer in (first, last):
        nn.init.zeros_(sublayer.dense.weight)
        nn.init.zeros_(sublayer.dense.bias)
    scale, shift = last.LayerNorm.weight, last.LayerNorm.bias
    smallest = SMALLEST_SCALE * scale.square().mean().sqrt()
    first.dense.bias.copy_(-shift)
    first.LayerNorm.weight.copy_(1 / torch.copysign(scale.abs().clamp(min=smallest), scale))
    nn.init.zeros_(first.LayerNorm.bias)
    return layer
