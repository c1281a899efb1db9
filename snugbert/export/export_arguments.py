"""The arguments of `snugbert export`."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from snugbert.cli.arguments import ConvertedArguments, argument, check_ranges
from snugbert.errors import InputError

Dtype = Literal["float32", "float16", "int8"]
# Target -> its module, which has the functions `describe`, `write` and `load`. onnx_engine.py documents them.
ENGINES = {
    "onnx": "snugbert.export.onnx_engine",
    "openvino": "snugbert.export.openvino_engine",
    "bert": "snugbert.export.stock_engine",
}
# How to read --validation_file, as in the arguments of the model's task.
DATA_SETTINGS = ("task_name", "text_column_names", "label_column_name", "max_seq_length", "version_2_with_negative")


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
    validation_file: str | None = argument(
        None, "Labeled examples to score the model and its export on, as for the fine-tuning commands."
    )
    task_name: str | None = argument(None, "GLUE task of --validation_file. Default: your own data.")
    text_column_names: str | None = argument(
        None, "Text columns of --validation_file, for sequence classification. Default: as in snugbert glue."
    )
    label_column_name: str | None = argument(None, "Label column of --validation_file. Default: as in training.")
    max_seq_length: int | None = argument(
        None, "Maximum tokens for --validation_file. Default: as in the fine-tuning command."
    )
    version_2_with_negative: bool = argument(False, "--validation_file has questions without an answer.")

    def __post_init__(self):
        check_ranges(self)
        if self.to == "bert" and self.dtype == "int8":
            raise InputError("--dtype int8: transformers has no int8 BERT for CPUs. Use --to onnx or --to openvino.")
        if self.calibration_file is not None and self.dtype != "int8":
            raise InputError("--calibration_file needs --dtype int8.")

    @property
    def data_settings(self) -> dict[str, Any]:
        """The given values of `DATA_SETTINGS`."""
        return {name: getattr(self, name) for name in DATA_SETTINGS if getattr(self, name)}
