"""Types that the engines share. Each engine is a module with the functions `describe`, `write` and `load`.

Shapes: B texts of at most L tokens.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from transformers import PreTrainedModel

Dtype = Literal["float32", "float16", "int8"]
# Padded inputs of a model, int64: input_ids, attention_mask and, if the model has segments, token_type_ids.
# *Shape:* (B, L) each; multiple choice: (B, choices, L)
Batch = dict[str, np.ndarray]
# Runs an exported model. Returns its outputs by name, with the shapes of the SnugBERT model.
Run = Callable[[Batch], dict[str, np.ndarray]]


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
