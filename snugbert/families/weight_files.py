"""Reads the weight files of a checkpoint: safetensors, .bin files, shards, and TensorFlow's format."""

import os
import pickle
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from snugbert.errors import InputError, join_lines
from snugbert.files import read_json

# Not part of a model: the position buffer of files from 2019 to 2022, and optimizer state in TensorFlow files.
NOT_NEEDED = r"(^|\.)position_ids$|/adam_[mv]$|^global_step$"

# The first group is the prefix of a wrapper, such as `student.model.`. The prefix is empty without a wrapper.
WORD_EMBEDDINGS = r"((?:[^.]+\.)*?)((bert|roberta|electra|deberta|distilbert)\.)?embeddings\.word_embeddings\.weight"


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Reads all tensors of a folder's `model.safetensors` or `pytorch_model.bin`, sharded or not, onto the CPU."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return _read_tensors(folder / name)
        index = folder / f"{name}.index.json"
        if index.exists():
            try:
                shards = sorted(set(read_json(index)["weight_map"].values()))
                return {name: tensor for shard in shards for name, tensor in _read_tensors(folder / shard).items()}
            except (AttributeError, KeyError, TypeError) as error:
                raise InputError(f"{index}: damaged. Get the checkpoint again.") from error
    raise InputError(
        f"{folder}: no weights. Expected model.safetensors or pytorch_model.bin. Shards need their .index.json, too."
    )


def find_prefix(names: Iterable[str]) -> str:
    """Returns the prefix that all names start with, such as `module.` or `student.model.`. Empty: there is none."""
    prefixes = [match[1] for name in names if (match := re.fullmatch(WORD_EMBEDDINGS, name))]
    return prefixes[0] if prefixes and all(name.startswith(prefixes[0]) for name in names) else ""


def _read_tensors(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file}: truncated, or not a safetensors file ({error}). Get a new copy.") from error
    try:
        tensors = dict(torch.load(file, map_location="cpu", weights_only=True))  # runs no code from the file
    except Exception as error:  # a damaged archive or pickle can raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        could = "contains objects that could run code" if isinstance(error, pickle.UnpicklingError) else reason
        raise InputError(f"{file}: damaged, or {could}. The file was not loaded.") from error
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise InputError(f"{file}: not a weights file. Every value must be a tensor.")
    return tensors


def find_tensorflow_prefix(path: Path) -> Path | None:
    """Returns the prefix of the TensorFlow files at `path`, a folder or a prefix. None if there are none."""
    if Path(f"{path}.index").exists():
        return path
    found = sorted(path.glob("*.ckpt*.index"))
    if not found or (path / "config.json").exists():
        return None
    if len(found) > 1:
        raise InputError(
            f"{path}: contains {len(found)} checkpoints. Pass one checkpoint, such as {found[-1].with_suffix('')}."
        )
    return found[0].with_suffix("")


def read_tensorflow(prefix: Path) -> dict[str, torch.Tensor]:
    """Reads the variables of a TensorFlow checkpoint. Kernels are transposed to torch's (outputs, inputs)."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides messages about processor features
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        # The optimizer state is twice as large as the model. It is never read.
        names = [name for name in reader.get_variable_to_shape_map() if not re.search(NOT_NEEDED, name)]
        tensors = {name: torch.from_numpy(reader.get_tensor(name)) for name in names}
    except (tf.errors.OpError, IndexError, ValueError) as error:  # raised for truncated files
        raise InputError(f"{prefix}: damaged or incomplete checkpoint. {join_lines(error)}") from error
    return {name: tensor.T.contiguous() if name.endswith("/kernel") else tensor for name, tensor in tensors.items()}
