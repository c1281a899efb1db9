"""Types that the engines share. Each engine is a module with the functions `describe`, `write` and `load`."""

from typing import Literal, NamedTuple

from transformers import PreTrainedModel

Dtype = Literal["float32", "float16", "int8"]


class ExportSource(NamedTuple):
    """The model to export.

    Attributes:
        model: the SnugBERT model in float32, in evaluation mode, with eager attention.
        head: its head, for example "ForSequenceClassification"; "Model" for the bare encoder.
        input_names: its inputs, see `Batch`.
    """

    model: PreTrainedModel
    head: str
    input_names: list[str]
