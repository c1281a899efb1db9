"""Opens exported models, which ONNX Runtime or OpenVINO runs in place of a transformers model.

Shapes: B texts of at most L tokens, T tokens in a packed batch.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from snugbert.errors import InputError
from snugbert.families.comparing import TOKEN_OUTPUTS, Batch, Run

ONNX_FILE, OPENVINO_FILE = "onnx/model.onnx", "openvino/openvino_model.xml"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.index.json")  # torch weights, which are preferred to an export


def find_export(folder: str | Path | None) -> Path | None:
    """Returns the exported model in a folder. None if there is none, or if the folder also has torch weights."""
    if folder is None or any(file for pattern in WEIGHTS for file in Path(folder).glob(pattern)):
        return None
    return next((file for name in (ONNX_FILE, OPENVINO_FILE) if (file := Path(folder) / name).is_file()), None)


def refuse_export(name: str | None) -> None:
    """Refuses an exported model, for commands that train it or need other outputs than predictions."""
    if find_export(name):
        raise InputError(f"{name} is an export and can only predict. Use the model it was exported from.")


def open_export(file: Path) -> Run:
    """Returns a function that runs an exported model."""
    return open_onnx(file) if file.suffix == ".onnx" else open_openvino(file)


def open_onnx(file: Path) -> Run:
    """Returns a function that runs a model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # no warnings about initializers that no node uses
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    inputs, outputs = ([each.name for each in put] for put in (session.get_inputs(), session.get_outputs()))

    def run(batch: Batch) -> dict[str, np.ndarray]:
        return dict(zip(outputs, session.run(None, {name: batch[name] for name in inputs}), strict=True))

    return run


def open_openvino(file: Path) -> Run:
    """Returns a function that runs a model in OpenVINO."""
    import openvino

    # Without a precision, some CPUs compute in bfloat16. Outputs then differ by 3e-2.
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.Core().compile_model(file, "CPU", options)
    inputs, outputs = ([each.any_name for each in put] for put in (network.inputs, network.outputs))

    def run(batch: Batch) -> dict[str, np.ndarray]:
        results = network({name: batch[name] for name in inputs})
        return {name: results[index] for index, name in enumerate(outputs)}

    return run


class EngineModel(PreTrainedModel):
    """Runs an exported model in place of a SnugBERT model. Takes padded and packed batches, and returns no loss."""

    _supports_sdpa = True  # the engine's own attention

    def __init__(self, config: PreTrainedConfig, run: Run):
        super().__init__(config)
        self.run = run
        self.unused = torch.nn.Parameter(torch.zeros(()))  # its device is the model's device

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        cu_seq_lens_q: torch.Tensor | None = None,
        num_choices: int | None = None,
        num_windows: torch.Tensor | None = None,
        **others: Any,
    ) -> ModelOutput:
        """Returns the outputs by name, with the shapes of the SnugBERT model. The engine computes a padded batch."""
        columns = {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids) if attention_mask is None else attention_mask,
            "token_type_ids": torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids,
        }
        if cu_seq_lens_q is not None:
            lengths = cu_seq_lens_q.diff().tolist()
            for name, row in columns.items():
                padding = self.config.pad_token_id if name == "input_ids" else 0
                columns[name] = pad_sequence(row[0].split(lengths), batch_first=True, padding_value=padding or 0)
        if num_choices is not None:
            columns = {name: x.reshape(-1, num_choices, x.shape[-1]) for name, x in columns.items()}
        arrays = {name: x.cpu().numpy() for name, x in columns.items()}
        outputs = {name: torch.from_numpy(np.asarray(values)) for name, values in self.run(arrays).items()}
        if cu_seq_lens_q is not None:
            mask = columns["attention_mask"].bool().cpu()
            for name, values in outputs.items():
                if values.ndim == 3 or name in TOKEN_OUTPUTS:
                    outputs[name] = values[mask][None]
        if num_windows is not None:
            windows = outputs["logits"].split(num_windows.tolist())
            outputs["logits"] = torch.stack([each.mean(0) for each in windows])
        return ModelOutput({name: values.to(self.device) for name, values in outputs.items()})
