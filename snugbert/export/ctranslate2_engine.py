"""CTranslate2: writes `ctranslate2/model.bin` with its BERT converter in float32, float16 or int8, and runs it.

CTranslate2 runs the encoder and the pooler. Heads of one linear layer are written to `ctranslate2/head.safetensors`.
"""

import logging
import shutil
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from snugbert.errors import InputError
from snugbert.export.export_arguments import Dtype
from snugbert.families.comparing import Batch, Run
from snugbert.files import read_json, write_json

FOLDER = "ctranslate2"
HEAD = "head.safetensors"
# Head -> its layer, the encoder's output that it reads, and the outputs of the model.
LAYERS = {
    "ForSequenceClassification": ("classifier", "pooler_output", ["logits"]),
    "ForMultipleChoice": ("classifier", "pooler_output", ["logits"]),
    "ForNextSentencePrediction": ("cls.seq_relationship", "pooler_output", ["logits"]),
    "ForTokenClassification": ("classifier", "last_hidden_state", ["logits"]),
    "ForQuestionAnswering": ("qa_outputs", "last_hidden_state", ["start_logits", "end_logits"]),
}
HEADS = ("Model", *LAYERS)


def describe() -> str:
    """Returns the engine's name and version."""
    return f"CTranslate2 {ctranslate2.__version__}"


def write(
    model: PreTrainedModel, input_names: list[str], folder: Path, dtype: Dtype, calibration: list[Batch]
) -> None:
    """Writes the model. In int8, activations are quantized at run time.

    Args:
        model: the SnugBERT model. Its head is one of `HEADS`.
        input_names: not used.
        folder: the folder of the exported model, with the same model in stock BERT.
        dtype: dtype of the weights.
        calibration: not used.

    Raises:
        InputError: the converter does not support the model.
    """
    copy = folder / "source"
    copy.mkdir()
    try:
        _copy_for_converter(folder, copy)
        TransformersConverter(str(copy)).convert(str(folder / FOLDER), quantization=dtype)
    except (KeyError, ValueError, AssertionError) as error:
        raise InputError(
            f"--to ctranslate2: CTranslate2 cannot convert this model ({error}). Use --to onnx."
        ) from error
    shutil.rmtree(copy)
    head = type(model).__name__.removeprefix("SnugBert")
    if head in LAYERS:
        name, reads, outputs = LAYERS[head]
        weights = {key: tensor.detach().numpy() for key, tensor in model.get_submodule(name).named_parameters()}
        save_file(weights, folder / FOLDER / HEAD, {"input": reads, "outputs": ",".join(outputs)})


def _copy_for_converter(folder: Path, copy: Path) -> None:
    """Copies the stock model, and adds what the converter needs: a field that transformers 5 omits, and a pooler.

    A missing pooler gets zeros as weights. Otherwise the converter would write random weights.
    """
    for file in folder.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, copy / file.name)
    config = read_json(folder / "config.json") | {"position_embedding_type": "absolute"}
    write_json(copy / "config.json", config)
    weights: dict[str, np.ndarray] = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    prefix = "bert." if any(name.startswith("bert.") for name in weights) else ""
    if f"{prefix}pooler.dense.weight" not in weights:
        size = config["hidden_size"]
        weights[f"{prefix}pooler.dense.weight"] = np.zeros((size, size), np.float32)
        weights[f"{prefix}pooler.dense.bias"] = np.zeros(size, np.float32)
    (copy / "model.safetensors.index.json").unlink(missing_ok=True)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})


def load(folder: Path, threads: int | None = None) -> Run:
    """Opens an exported model.

    Args:
        folder: the folder of the exported model.
        threads: number of threads. None: the engine chooses.
    """
    ctranslate2.set_log_level(logging.ERROR)  # no warning if a CPU without float16 computes in float32
    encoder = ctranslate2.Encoder(str(folder / FOLDER), inter_threads=1, intra_threads=threads or 0)
    file = folder / FOLDER / HEAD
    if not file.exists():
        return lambda batch: _encode(encoder, batch)
    with safe_open(file, "numpy") as tensors:
        weight, bias = tensors.get_tensor("weight"), tensors.get_tensor("bias")
        reads, outputs = tensors.metadata()["input"], tensors.metadata()["outputs"].split(",")

    def run(batch: Batch) -> dict[str, np.ndarray]:
        shape = batch["input_ids"].shape
        states = _encode(encoder, {name: values.reshape(-1, shape[-1]) for name, values in batch.items()})
        logits = states[reads] @ weight.T + bias
        if len(shape) == 3:  # one logit per choice
            logits = logits.reshape(shape[:2])
        if len(outputs) == 1:
            return {outputs[0]: logits}
        return {name: logits[..., index] for index, name in enumerate(outputs)}

    return run


def _encode(encoder: ctranslate2.Encoder, batch: Batch) -> dict[str, np.ndarray]:
    """Runs the encoder on padded inputs. CTranslate2 takes lists of token ids without padding."""
    lengths = batch["attention_mask"].sum(axis=1).tolist()
    lists = {
        name: [row[:length] for row, length in zip(batch[name].tolist(), lengths, strict=True)]
        for name in ("input_ids", "token_type_ids")
        if name in batch
    }
    outputs = encoder.forward_batch(lists["input_ids"], token_type_ids=lists.get("token_type_ids"))
    return {name: np.array(getattr(outputs, name)) for name in ("last_hidden_state", "pooler_output")}
