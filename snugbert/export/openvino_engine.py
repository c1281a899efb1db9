"""OpenVINO: writes `openvino/openvino_model.xml` and `.bin` in float32, float16 or int8, and runs them.

sentence-transformers and optimum-intel look for these files.
"""

import contextlib
import io
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import nncf
import openvino
from transformers import PreTrainedModel

from snugbert.export.export_arguments import Dtype
from snugbert.export.graph import write_graph
from snugbert.families.comparing import Batch, Run
from snugbert.families.engine_models import OPENVINO_FILE, open_openvino


def describe() -> str:
    """Returns the engine's name and version."""
    return f"OpenVINO {openvino.__version__.partition('-')[0]}"


def write(
    model: PreTrainedModel, input_names: list[str], folder: Path, dtype: Dtype, calibration: list[Batch]
) -> None:
    """Writes the model. In int8, NNCF quantizes the weights, and with `calibration` the activations too."""
    with TemporaryDirectory(dir=folder) as temporary:
        graph = Path(temporary) / "model.onnx"
        write_graph(model, input_names, graph)
        network = openvino.Core().read_model(graph)  # `convert_model` splits paths at commas
        if dtype == "int8":
            network = _quantize(network, calibration)
        openvino.save_model(network, folder / OPENVINO_FILE, compress_to_fp16=dtype == "float16")


def _quantize(network: openvino.Model, calibration: list[Batch]) -> openvino.Model:
    # nncf.set_log_level would also change handlers that the caller added.
    logging.getLogger("nncf").setLevel(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):  # NNCF draws progress bars
        if not calibration:
            return nncf.compress_weights(network, mode=nncf.CompressWeightsMode.INT8_SYM)
        return nncf.quantize(
            network, nncf.Dataset(calibration), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration)
        )


def load(folder: Path) -> Run:
    """Opens an exported model."""
    return open_openvino(folder / OPENVINO_FILE)
