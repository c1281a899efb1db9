"""The arguments of `snugbert export`.

`--help` imports this module, so it does not import the model or datasets, which take seconds.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

Dtype = Literal["float32", "float16", "int8"]
# Target -> its module, which has the functions `describe`, `write` and `load`. onnx_engine.py documents them.
ENGINES = {
    "onnx": "snugbert.export.onnx_engine",
    "openvino": "snugbert.export.openvino_engine",
    "bert": "snugbert.export.stock_engine",
}


@dataclass(kw_only=True)
class ExportArguments:
    """Which model to export, to which engine, and how to check the result."""

    help_group: ClassVar[str] = "more"

    input: str = field(metadata={"positional": True, "help": "Checkpoint: a folder or a Hub name."})
    output: str = field(metadata={"positional": True, "help": "Folder to write."})
    to: str = field(metadata={"choices": tuple(ENGINES), "help": "Target engine."})
    dtype: Dtype = field(default="float32", metadata={"help": "Dtype of the weights. Default: float32."})
    calibration_file: str | None = field(
        default=None,
        metadata={"help": "Text to calibrate int8 activations on, a text per line. Default: no calibration."},
    )
    text_file: str | None = field(
        default=None,
        metadata={"help": "Extra text for comparing outputs, a text per line. Default: only built-in text."},
    )
    validation_file: str | None = field(
        default=None,
        metadata={
            "help": "Labeled examples to score the model and its export on, as for the fine-tuning commands. For an "
            "embedding model: sentence1, sentence2, score."
        },
    )
    task_name: str | None = field(
        default=None, metadata={"help": "GLUE task of --validation_file. Default: your own data."}
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "Text columns of --validation_file, for sequence classification."}
    )
    label_column_name: str | None = field(default=None, metadata={"help": "Label column of --validation_file."})
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Maximum tokens for --validation_file. Default: as in the fine-tuning command."},
    )
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "--validation_file has questions without an answer."}
    )
    overwrite_output_dir: bool = field(default=False, metadata={"help": "Replace the model in the output folder."})
