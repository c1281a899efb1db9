"""accelerate: models on disk."""

import pytest
import torch
import transformers
from parity import HEADS, ours_and_stock, packed, ragged_batch
from torch.testing import assert_close

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def outputs(model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return dict(model.eval()(**inputs))


@pytest.mark.parametrize("head", HEADS)
def test_a_model_on_disk_is_bit_identical(head, tmp_path):
    """test_examples.py has models that are partly in memory."""
    ours, _ = ours_and_stock(head)
    ours.save_pretrained(tmp_path, max_shard_size="100KB")
    auto_class = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    model = auto_class.from_pretrained(tmp_path, device_map={"": "disk"})
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    inputs = ragged_batch(head)
    for batch in (inputs, packed(inputs)):
        assert_close(outputs(model, batch), outputs(ours, batch), rtol=0, atol=0)
