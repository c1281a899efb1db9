"""The arguments of `snugbert export`."""

from dataclasses import dataclass
from typing import Literal, get_args

from snugbert.cli.arguments import ConvertedArguments, argument, check_ranges
from snugbert.errors import InputError

Dtype = Literal["float32", "float16", "int8"]
# Target (also the name of its folder) -> its module, with the functions `describe`, `write` and `load`, as in
# onnx_engine.py. A new engine also needs entries in engine_models.py, `ENGINE_FOLDERS` and templates/run_export.md.
ENGINES = {
    "onnx": "snugbert.export.onnx_engine",
    "openvino": "snugbert.export.openvino_engine",
    "bert": "snugbert.export.stock_engine",
}


@dataclass(kw_only=True)
class ExportArguments(ConvertedArguments):
    """Which model to export, to which engine, and how to check the result."""

    to: str = argument(help=f"Target engine: {', '.join(ENGINES)}.", choices=tuple(ENGINES))
    dtype: Dtype = argument("float32", "Dtype of the weights: float32, float16 or int8.", choices=get_args(Dtype))
    calibration_file: str | None = argument(
        None, "Text to calibrate int8 activations on, a text per line. Default: no calibration."
    )
    text_file: str | None = argument(
        None, "Extra text for comparing outputs, a text per line. Default: only built-in text."
    )

    def __post_init__(self):
        check_ranges(self)
        if self.to == "bert" and self.dtype == "int8":
            raise InputError("--dtype int8: transformers has no int8 BERT for CPUs. Use --to onnx or --to openvino.")
        if self.calibration_file is not None and self.dtype != "int8":
            raise InputError("--calibration_file needs --dtype int8.")
