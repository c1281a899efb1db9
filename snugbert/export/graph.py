"""Exports a model to one ONNX graph for any number of texts of any length, for ONNX Runtime and OpenVINO.

Shapes: B texts of at most L tokens.
"""

import logging
import warnings
from pathlib import Path

import onnxscript  # noqa: F401  # torch's exporter imports it late
import torch
from transformers import PreTrainedModel

from snugbert.configuration_snugbert import compute_max_length

# The first opset with GELU. text-embeddings-inference 1.9 has ONNX Runtime 1.22, which reads opsets up to 22. The
# attention operator of opset 23 did not make MiniLM faster on a CPU.
OPSET = 20
MOST_BYTES = 2**31 - 2**24  # a protobuf file holds 2 GiB, and the graph itself needs room


def write_graph(model: PreTrainedModel, input_names: list[str], file: Path) -> None:
    """Writes the graph of a model in evaluation mode with eager attention, which torch exports as fewer operators.

    Weights of more than 2 GB go to a second file, `file` with `.data` appended. The inputs are int64 (B, L); with two
    choices per text (B, 2, L). The outputs have the names of the model's outputs.
    """
    choices = (2,) if type(model).__name__.endswith("ForMultipleChoice") else ()
    # torch treats a size of 1 as a constant.
    example = {name: torch.ones(2, *choices, 9, dtype=torch.long) for name in input_names}
    axes = ["batch", "choices", "length"] if choices else ["batch", "length"]
    most = {"length": compute_max_length(model.config)}  # type: ignore[arg-type]
    sizes = {axis: torch.export.Dim(name, max=most.get(name)) for axis, name in enumerate(axes)}
    with torch.inference_mode():
        output_names = list(model(**example))
    # torch looks for torchvision, and warns because all inputs share their sizes.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(
            model,
            (),
            file,
            kwargs=example,
            dynamic_shapes=dict.fromkeys(example, sizes),
            output_names=output_names,
            opset_version=OPSET,
            external_data=sum(weight.nbytes for weight in model.state_dict().values()) > MOST_BYTES,
            verbose=False,
        )
