"""Stock BERT: the export is the converted folder itself, in float32 or float16. Stock transformers runs it."""

from pathlib import Path

import transformers
from transformers import AutoConfig, PreTrainedModel

from snugbert.export.export_arguments import Dtype
from snugbert.families.comparing import Batch, Run, run_in_torch
from snugbert.families.reading import CLASSES


def describe() -> str:
    """Returns the engine's name and version."""
    return f"transformers {transformers.__version__}"


def write(
    model: PreTrainedModel, input_names: list[str], folder: Path, dtype: Dtype, calibration: list[Batch]
) -> None:
    """Writes nothing: the stock model in the folder is the export."""


def load(folder: Path) -> Run:
    """Opens an exported model."""
    config = AutoConfig.from_pretrained(folder)
    model_class = next(each for each in CLASSES["bert"].values() if each.__name__ in config.architectures)
    return run_in_torch(model_class.from_pretrained(folder, config=config, dtype=config.dtype).eval())
