"""Heads exported by torch.export and by the older ONNX exporter."""

import io

import onnxruntime
import pytest
import torch
from parity import CONFIG, HEADS, ours_and_stock, ragged_batch
from torch.testing import assert_close
from transformers.utils.logging import warning_once

import snugbert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread"),
    # torch warns when it copies an exported program, and about the older exporter.
    pytest.mark.filterwarnings(
        "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
        "ignore::torch.jit.TracerWarning",
        "ignore:You are using the legacy:DeprecationWarning",
    ),
]
# RoBERTa's positions and classification head, ELECTRA's embeddings.
FAMILY = {"position_embedding_type": "after_padding", "classification_head": "dense", "embedding_size": 16}
# DeBERTa-v3's positions.
RELATIVE = {"position_embedding_type": "relative", "position_buckets": 8, "type_vocab_size": 0}
LONGEST = CONFIG["max_position_embeddings"]
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def make_batch(head: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    """A full first row, rows padded left and right in turns, and an empty last row."""
    inputs = {name: value for name, value in ragged_batch(head, batch=batch, length=length).items() if name in NAMES}
    for value in inputs.values():
        value[1::2] = value[1::2].flip(-1)
    inputs["attention_mask"][0] = 1
    inputs["attention_mask"][1:][-1:] = 0
    return inputs


def export_with_torch(model, example, axes):
    sizes = {axis: torch.export.Dim(name, max=LONGEST) for axis, name in axes.items()}
    return torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, sizes)).module()


def export_with_the_older_onnx_exporter(model, example, axes):
    names, file = list(model(**example)), io.BytesIO()
    options = {"input_names": NAMES, "output_names": names, "dynamic_axes": dict.fromkeys(NAMES, axes)}
    torch.onnx.export(model, (example,), file, dynamo=False, **options)
    session = onnxruntime.InferenceSession(file.getvalue())
    fed = [node.name for node in session.get_inputs()]  # DeBERTa has no segments

    def run(**inputs):
        outputs = session.run(names, {name: inputs[name].numpy() for name in fed})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return run


# tests/export exports every head with torch.
@pytest.mark.parametrize(
    ("export", "head", "fields"),
    [
        (export_with_torch, "Model", {}),
        (export_with_torch, "ForSequenceClassification", FAMILY),
        (export_with_torch, "ForMaskedLM", RELATIVE),
        *((export_with_the_older_onnx_exporter, head, {}) for head in HEADS),
        (export_with_the_older_onnx_exporter, "ForSequenceClassification", FAMILY),
        (export_with_the_older_onnx_exporter, "ForMaskedLM", RELATIVE),
    ],
)
def test_an_exported_model_equals_the_model(export, head, fields, caplog):
    """Multiples and divisors of the example's length would fit into its shape."""
    model = ours_and_stock(head, num_hidden_layers=1)[0].eval()
    if fields:
        model = type(model)(snugbert.SnugBertConfig.from_dict(model.config.to_dict() | fields)).eval()
    example = make_batch(head, 2, 8)
    warning_once.cache_clear()
    exported = export(model, example, {0: "batch", example["input_ids"].dim() - 1: "length"})
    assert not [record for record in caplog.records if record.name.startswith("snugbert")]
    for batch, length in ((2, 8), (2, 4), (1, 16), (4, 2), (3, 32), (5, 11), (1, LONGEST), (1, 2)):
        inputs = make_batch(head, batch, length)
        with torch.inference_mode():
            expected = model(**inputs)
        outputs = exported(**inputs)
        assert list(outputs) == list(expected)
        for name, value in expected.items():
            assert_close(outputs[name], value, atol=1e-5, rtol=1e-5)
