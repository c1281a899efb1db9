"""OpenVINO: writes `openvino/openvino_model.xml` and `.bin` in float32, float16 or int8, and runs them.

sentence-transformers and optimum-intel look for these files.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import nncf
import numpy as np
import openvino

from snugbert.export.engine import Batch, Dtype, ExportSource, Run
from snugbert.export.graph import write_graph

FOLDER = "openvino"
FILE = "openvino_model.xml"


def describe() -> str:
    """Returns the engine's name and version."""
    return f"OpenVINO {openvino.__version__.partition('-')[0]}"


def write(source: ExportSource, folder: Path, dtype: Dtype, calibration: list[Batch]) -> None:
    """Writes the model.

    In int8, NNCF quantizes the weights. With `calibration`, it quantizes the activations too.

    Args:
        source: the model.
        folder: the folder of the exported model.
        dtype: dtype of the weights.
        calibration: batches to measure ranges on, for int8. Empty: none.
    """
    with TemporaryDirectory(dir=folder) as temporary:
        graph = Path(temporary) / "model.onnx"
        write_graph(source.model, source.input_names, graph)
        network = openvino.convert_model(graph)
        nncf.set_log_level(30)  # warnings
        if dtype == "int8" and calibration:
            network = nncf.quantize(
                network,
                nncf.Dataset(calibration),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(calibration),
            )
        elif dtype == "int8":
            network = nncf.compress_weights(network, mode=nncf.CompressWeightsMode.INT8_SYM)
        openvino.save_model(network, folder / FOLDER / FILE, compress_to_fp16=dtype == "float16")


def load(folder: Path, threads: int | None = None) -> Run:
    """Opens an exported model. It computes in float32, because CPUs with bfloat16 use that by default.

    Args:
        folder: the folder of the exported model.
        threads: number of threads. None: the engine chooses.
    """
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = str(threads)
    network = openvino.Core().compile_model(folder / FOLDER / FILE, "CPU", options)
    inputs, outputs = ([each.any_name for each in put] for put in (network.inputs, network.outputs))

    def run(batch: Batch) -> dict[str, np.ndarray]:
        results = network({name: batch[name] for name in inputs})
        return {name: results[index] for index, name in enumerate(outputs)}

    return run
