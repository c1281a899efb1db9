"""Heads exported by torch.export and by the older ONNX exporter."""

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


NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def make_model(head, fields):
    model = ours_and_stock(head, num_hidden_layers=1)[0].eval()
    return type(model)(snugbert.SnugBertConfig.from_dict(model.config.to_dict() | fields)).eval() if fields else model


def batch_of(head, batch, length):
    """Rows of several lengths, with an empty row. Batches of three are padded left."""
    inputs = ragged_batch(head, batch=batch, length=length)
    inputs["attention_mask"][2:][-1:] = 0
    return {name: inputs[name].flip(-1) if batch == 3 else inputs[name] for name in NAMES}


# torch warns when it copies an exported program.
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning")
@pytest.mark.parametrize(("head", "fields"), [("ForSequenceClassification", FAMILY), ("ForMaskedLM", RELATIVE)])
def test_torch_export(head, fields):
    model, example = make_model(head, fields), batch_of(head, 2, 9)
    example = {name: example[name] for name in NAMES if name != "token_type_ids" or fields is FAMILY}
    sizes = {axis: torch.export.Dim(name, max=40) for axis, name in enumerate(("batch", "length"))}
    exported = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, sizes)).module()
    for batch, length in ((1, 2), (3, 17), (5, 40)):
        inputs = {name: batch_of(head, batch, length)[name] for name in example}
        with torch.inference_mode():
            assert_close(exported(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:You are using the legacy:DeprecationWarning")
@pytest.mark.parametrize(
    ("head", "fields"),
    [*((head, {}) for head in HEADS), ("ForSequenceClassification", FAMILY), ("ForMaskedLM", RELATIVE)],
)
def test_the_older_onnx_exporter_keeps_sizes_dynamic(head, fields):
    """Multiples and divisors of the example's length would fit into its shape."""
    model, example = make_model(head, fields), batch_of(head, 2, 8)
    axes = {0: "batch", example["input_ids"].dim() - 1: "length"}
    outputs, file = list(model(**example)), io.BytesIO()
    options = {"input_names": NAMES, "output_names": outputs, "dynamic_axes": dict.fromkeys(NAMES, axes)}
    torch.onnx.export(model, (example,), file, dynamo=False, **options)
    session = onnxruntime.InferenceSession(file.getvalue())
    for batch, length in ((2, 8), (2, 4), (1, 16), (4, 2), (3, 32), (5, 11), (1, 1)):
        inputs = batch_of(head, batch, length)
        fed = [node.name for node in session.get_inputs()]  # DeBERTa has no segments
        results = session.run(outputs, {name: inputs[name].numpy() for name in fed})
        with torch.inference_mode():
            expected = model(**inputs)
        for name, result in zip(outputs, results, strict=True):
            assert_close(torch.from_numpy(result), expected[name], atol=2e-6, rtol=1e-5)
