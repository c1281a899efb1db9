"""Distillation: the identity of a teacher, and students built from some layers of a checkpoint."""

import copy
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from snugbert.errors import InputError

IGNORED_FIELDS = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype")


def hash_model(model: PreTrainedModel) -> str:
    """Returns a digest of the weights and the configuration of a model, as 32 hexadecimal digits.

    Ignores the name of its folder and the version of transformers.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in IGNORED_FIELDS}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def choose_student_layers(num_layers: int, num_student_layers: int, which: str) -> list[int]:
    """Chooses the layers of a teacher that a student starts from, in ascending order, counted from 0.

    `which`: "first", "last", numbers such as "0,2,5", or "spread": evenly spaced, with the first and the last. For 6
    of 12 layers, "spread" gives DistilBERT's layers: 0, 2, 4, 7, 9, 11 (Sanh et al., 2019, their `extract.py`).
    """
    if not 1 <= num_student_layers <= num_layers:
        raise InputError(
            f"--num_student_layers {num_student_layers}: expected 1 to {num_layers}, the number of layers of the "
            "checkpoint."
        )
    step = (num_layers - 1) / max(num_student_layers - 1, 1)
    choices = {
        "spread": [round(number * step) for number in range(num_student_layers)],
        "first": list(range(num_student_layers)),
        "last": list(range(num_layers - num_student_layers, num_layers)),
    }
    if which in choices:
        return choices[which]
    is_list = re.fullmatch(r"\d+(,\d+)*", which.replace(" ", ""), re.ASCII)
    layers = [int(number) for number in which.split(",")] if is_list else []
    if layers != sorted(set(layers)) or len(layers) != num_student_layers or layers[-1] >= num_layers:
        raise InputError(
            f"--student_layers {which}: expected {', '.join(choices)}, or {num_student_layers} different "
            f"numbers from 0 to {num_layers - 1} in ascending order, such as 0,2,5."
        )
    return layers


def make_student(teacher: PreTrainedModel, layers: Sequence[int]) -> PreTrainedModel:
    """Copies a SnugBERT model with only some of its layers. The copy is on the CPU and in evaluation mode."""
    student: Any = copy.deepcopy(teacher)
    encoder = student.base_model.encoder
    encoder.layer = nn.ModuleList(encoder.layer[number] for number in layers)
    student.config.num_hidden_layers = len(layers)
    return student.cpu().eval()
