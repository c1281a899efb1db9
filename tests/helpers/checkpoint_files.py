"""Writes BERT and TensorFlow checkpoints, for the tests of reading and converting them."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from parity import CONFIG, ours_and_stock
from safetensors import safe_open
from safetensors.torch import save_file

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "Cat", "sat", "on", "##s", "é"]


def names_in(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def write_checkpoint(folder: Path, weights: dict[str, torch.Tensor], binary: bool = False, shards: int = 1, **fields):
    """Writes a BERT folder. Fields of None are left out of its configuration."""
    folder.mkdir()
    config = {"model_type": "bert", **CONFIG, **fields}
    config = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    stem, suffix = ("pytorch_model", "bin") if binary else ("model", "safetensors")
    weight_map = {}
    for shard in range(shards):
        part = {name: weights[name].clone() for name in sorted(weights)[shard::shards]}
        name = f"{stem}.{suffix}" if shards == 1 else f"{stem}-{shard + 1:05}-of-{shards:05}.{suffix}"
        weight_map |= dict.fromkeys(part, name)
        torch.save(part, folder / name) if binary else save_file(part, folder / name)
    if shards > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def write_classifier(folder: Path, **options) -> Path:
    """Writes a BERT classifier. `options` as in [`write_checkpoint`]."""
    _, stock = ours_and_stock("ForSequenceClassification")
    fields = {"architectures": ["BertForSequenceClassification"]}
    return write_checkpoint(folder, stock.state_dict(), **fields | options)


def tensorflow_variables(stock) -> dict:
    """Names and shapes stock BERT's weights as Google's code does, and adds optimizer state."""
    variables = {}
    for name, parameter in stock.named_parameters():
        part, _, kind = name.replace("encoder.layer.", "encoder.layer_").rpartition(".")
        value = parameter.detach().numpy()
        if part.endswith("LayerNorm"):
            kind = {"weight": "/gamma", "bias": "/beta"}[kind]
        elif part.endswith("embeddings"):
            kind = ""
        elif part == "cls.predictions":
            kind = "/output_bias"
        elif part == "cls.predictions.decoder":
            continue  # tied to the word embeddings
        elif part == "cls.seq_relationship":
            kind = f"/output_{kind}s".replace("biass", "bias")
        elif kind == "weight":
            kind, value = "/kernel", value.T
        else:
            kind = "/bias"
        variable = part.replace(".", "/") + kind
        variables |= {variable: value, f"{variable}/adam_m": 0 * value, f"{variable}/adam_v": 0 * value}
    return variables


def write_tensorflow(folder: Path, variables: dict) -> Path:
    """Writes variables in the format of Google's release, with a configuration and a vocabulary."""
    if find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed (pip install snugbert[tensorflow])")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    folder.mkdir()
    names = ["global_step", *variables]
    tensors = [tf.constant(7, tf.int64), *(tf.constant(value) for value in variables.values())]
    prefix = str(folder / "bert_model.ckpt")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)
    fields = {name: value for name, value in CONFIG.items() if name != "num_labels"}
    (folder / "bert_config.json").write_text(json.dumps(fields))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder
