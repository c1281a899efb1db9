"""Stock BERT: the export is the converted folder itself, in float32 or float16. Stock transformers runs it."""

from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig

from snugbert.checkpoints import CLASSES
from snugbert.errors import InputError
from snugbert.export.engine import Batch, Dtype, ExportSource, Run


def describe() -> str:
    """Returns the engine's name and version."""
    return f"transformers {transformers.__version__}"


def write(source: ExportSource, folder: Path, dtype: Dtype, calibration: list[Batch]) -> None:
    """Writes nothing: the stock model is the export.

    Raises:
        InputError: the dtype is int8.
    """
    if dtype == "int8":
        raise InputError(
            "--dtype int8: transformers has no int8 BERT for CPUs. Use --to onnx, openvino or ctranslate2."
        )


def load(folder: Path, threads: int | None = None) -> Run:
    """Opens an exported model.

    Args:
        folder: the folder of the exported model.
        threads: ignored. torch has one setting for the whole process.
    """
    config = AutoConfig.from_pretrained(folder)
    model_class = next(each for each in CLASSES["bert"].values() if each.__name__ in config.architectures)
    model = model_class.from_pretrained(folder, config=config, dtype=config.dtype).eval()

    @torch.inference_mode()
    def run(batch: Batch) -> dict[str, np.ndarray]:
        outputs = model(**{name: torch.from_numpy(values) for name, values in batch.items()})
        return {name: tensor.float().numpy() for name, tensor in outputs.items()}

    return run
