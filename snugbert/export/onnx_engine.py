"""ONNX Runtime: writes `onnx/model.onnx` in float32, float16 or int8, and runs it.

text-embeddings-inference, sentence-transformers, optimum and infinity look for this file.
"""

from collections.abc import Iterator
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16
from transformers import PreTrainedModel

from snugbert.export.export_arguments import Dtype
from snugbert.export.graph import OPSET, write_graph
from snugbert.families.comparing import Batch, Run
from snugbert.families.engine_models import ONNX_FILE, open_onnx
from snugbert.families.loading import hiding_warnings

QUANTIZED = ["Gather", "MatMul", "Gemm"]  # embeddings and linear layers


def describe() -> str:
    """Returns the engine's name and version, and the opset of its files."""
    return f"ONNX Runtime {onnxruntime.__version__} (opset {OPSET})"


def write(
    model: PreTrainedModel, input_names: list[str], folder: Path, dtype: Dtype, calibration: list[Batch]
) -> None:
    """Writes a SnugBERT model, which is in float32 and evaluation mode, with eager attention.

    In float16, inputs and outputs keep their types. In int8, weights have one scale per column. Activations are
    quantized at run time or, with `calibration`, by ranges that are measured once.
    """
    file = folder / ONNX_FILE
    file.parent.mkdir()
    write_graph(model, input_names, file)
    if dtype == "float32":
        return
    # Takes the path, so that models of more than 2 GB are not read into one object.
    graph = convert_float_to_float16(str(file), keep_io_types=True) if dtype == "float16" else onnx.load(file)
    for written in file.parent.iterdir():
        written.unlink()
    if dtype == "float16":
        onnx.save(graph, file)
    else:
        _quantize(graph, file, calibration)


def _quantize(graph: onnx.ModelProto, file: Path, calibration: list[Batch]) -> None:
    del graph.graph.value_info[:]  # the quantizer rejects outdated shapes: microsoft/onnxruntime issue 25890
    # Without calibration, products of two activations stay in float32. They have no weights to shrink.
    options = {
        "op_types_to_quantize": QUANTIZED,
        "per_channel": True,
        "weight_type": QuantType.QInt8,
        "extra_options": {"MatMulConstBOnly": True},
    }
    with hiding_warnings():  # the quantizer recommends a step that BERT does not need
        if calibration:
            quantize_static(graph, file, _Batches(calibration), **options)
        else:
            quantize_dynamic(graph, file, **options)


class _Batches(CalibrationDataReader):
    def __init__(self, batches: list[Batch]):
        self._batches: Iterator[Batch] = iter(batches)

    def get_next(self) -> Batch | None:  # type: ignore[override]
        return next(self._batches, None)


def load(folder: Path) -> Run:
    """Opens an exported model."""
    return open_onnx(folder / ONNX_FILE)
