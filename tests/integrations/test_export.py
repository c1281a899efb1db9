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
    # torch warns when it copies an exported program.
    pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"),
]
LEFT_OUT = {"ForMaskedLM": ["token_type_ids"]}
# RoBERTa's positions and classification head, ELECTRA's embeddings.
FAMILY = {"position_embedding_type": "after_padding", "classification_head": "dense", "embedding_size": 16}
# DeBERTa-v3's positions.
RELATIVE = {"position_embedding_type": "relative", "position_buckets": 8, "type_vocab_size": 0}
LONGEST = CONFIG["max_position_embeddings"]


def batch_for(head: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs without labels: a full first row, rows padded left and right in turns, and an empty last row."""
    inputs = ragged_batch(head, batch=batch, length=length)
    inputs = {name: value for name, value in inputs.items() if value.shape == (batch, length) and name != "labels"}
    for value in inputs.values():
        value[1::2] = value[1::2].flip(1)
    inputs["attention_mask"][0] = 1
    inputs["attention_mask"][1:][-1:] = 0
    return {name: value for name, value in inputs.items() if name not in LEFT_OUT.get(head, ())}


# tests/export exports every head with other rows.
@pytest.mark.parametrize(
    ("head", "fields"), [("Model", {}), ("ForSequenceClassification", FAMILY), ("ForMaskedLM", RELATIVE)]
)
def test_an_exported_model_equals_the_model(head, fields, caplog):
    model = ours_and_stock(head, num_hidden_layers=1)[0].eval()
    if fields:
        model = type(model)(snugbert.SnugBertConfig.from_dict(model.config.to_dict() | fields)).eval()
    example = batch_for(head, batch=2, length=9)
    sizes = {axis: torch.export.Dim(name, max=LONGEST) for axis, name in enumerate(("batch", "length"))}
    warning_once.cache_clear()
    exported = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, sizes))
    assert not [record for record in caplog.records if record.name.startswith("snugbert")]
    for batch, length in ((1, 2), (1, 9), (5, 17), (3, LONGEST)):
        inputs = batch_for(head, batch, length)
        with torch.inference_mode():
            expected = model(**inputs)
        outputs = exported.module()(**inputs)
        assert list(outputs) == list(expected)
        for name, value in expected.items():
            assert_close(outputs[name], value, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:You are using the legacy:DeprecationWarning")
@pytest.mark.parametrize(
    ("head", "fields"),
    [*((head, {}) for head in HEADS), ("ForSequenceClassification", FAMILY), ("ForMaskedLM", RELATIVE)],
)
def test_the_older_onnx_exporter_keeps_sizes_dynamic(head, fields):
    """Multiples and divisors of the example's length would fit into its shape."""
    model = ours_and_stock(head, num_hidden_layers=1)[0].eval()
    if fields:
        model = type(model)(snugbert.SnugBertConfig.from_dict(model.config.to_dict() | fields)).eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]

    def batch_of(batch, length):
        inputs = ragged_batch(head, batch=batch, length=length)
        return {name: inputs[name].flip(-1) if batch == 3 else inputs[name] for name in names}  # padded left

    example = batch_of(2, 8)
    axes = {0: "batch", example["input_ids"].dim() - 1: "length"}
    outputs, file = list(model(**example)), io.BytesIO()
    options = {"input_names": names, "output_names": outputs, "dynamic_axes": dict.fromkeys(names, axes)}
    torch.onnx.export(model, (example,), file, dynamo=False, **options)
    session = onnxruntime.InferenceSession(file.getvalue())
    for batch, length in ((2, 8), (2, 4), (1, 16), (4, 2), (3, 32), (5, 11), (1, 1)):
        inputs = batch_of(batch, length)
        fed = [node.name for node in session.get_inputs()]  # DeBERTa has no segments
        results = session.run(outputs, {name: inputs[name].numpy() for name in fed})
        with torch.inference_mode():
            expected = model(**inputs)
        for name, result in zip(outputs, results, strict=True):
            assert_close(torch.from_numpy(result), expected[name], atol=2e-6, rtol=1e-5)
