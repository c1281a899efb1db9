"""Heads exported by the older ONNX exporter. test_examples.py exports with torch.export."""

import io

import onnxruntime
import pytest
import torch
from parity import HEADS, ours_and_stock, ragged_batch
from torch.testing import assert_close

import snugbert

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
# RoBERTa's positions and classification head, ELECTRA's embeddings.
FAMILY = {"position_embedding_type": "after_padding", "classification_head": "dense", "embedding_size": 16}
# DeBERTa-v3's positions.
RELATIVE = {"position_embedding_type": "relative", "position_buckets": 8, "type_vocab_size": 0}


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
        inputs["attention_mask"][2:][-1:] = 0  # an empty row
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
