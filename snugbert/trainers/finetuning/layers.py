"""The layers of a model in fine-tuning: their depths, frozen layers, and layers that start from random weights."""

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from snugbert.errors import InputError, format_count
from snugbert.trainers.finetuning.finetuning_arguments import FineTuningArguments

LAYER = re.compile(r"(?:^|\.)encoder\.layer\.(\d+)\.")
# ELECTRA projects its embeddings. The embeddings of DeBERTa's relative positions are in the encoder.
EMBEDDINGS = re.compile(r"(?:^|\.)(?:embeddings|embeddings_project|encoder\.rel_embeddings|encoder\.LayerNorm)\.")


def find_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Returns the depth of each parameter: 0 for the embeddings, 1 for the first layer, the largest for the head.

    As in Clark et al. (2020), "ELECTRA", where layer-wise rates start at the head.
    """
    layers = {name: int(found[1]) for name, _ in model.named_parameters() if (found := LAYER.search(name))}
    head = max(layers.values()) + 2
    return {
        parameter: 0 if EMBEDDINGS.search(name) else layers.get(name, head - 1) + 1
        for name, parameter in model.named_parameters()
    }


def reinitialize_layers(model: PreTrainedModel, number: int) -> None:
    """Gives the top `number` encoder layers and the pooler new random weights, as in pretraining.

    As in Zhang et al. (2021), "Revisiting Few-sample BERT Fine-tuning", section 5: the top layers are specialized for
    pretraining, and can be a poor start if there are few labels. The weights come from torch's global generator.
    """
    encoder: Any = model.base_model
    layers = encoder.encoder.layer
    parts = [*layers[-number:], encoder.pooler] if encoder.pooler is not None else layers[-number:]
    for module in (module for part in parts for module in part.modules()):
        for parameter in module.parameters(recurse=False):
            # Otherwise, `_init_weights` skips loaded weights.
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        model._init_weights(module)


def prepare_layers(model: PreTrainedModel, args: FineTuningArguments) -> None:
    """Reinitializes and freezes the layers that the settings select."""
    depths = find_depths(model)
    layers = max(depths.values()) - 1
    if args.freeze_layers + args.reinit_layers > layers:
        raise InputError(
            f"--freeze_layers {args.freeze_layers} and --reinit_layers {args.reinit_layers} are too large. The model "
            f"has {format_count(layers, 'layer')}."
        )
    if args.reinit_layers > 0:
        reinitialize_layers(model, args.reinit_layers)
    if args.freeze_embeddings or args.freeze_layers > 0:
        for parameter, depth in depths.items():
            parameter.requires_grad_(depth > args.freeze_layers)
