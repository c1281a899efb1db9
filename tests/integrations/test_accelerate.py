"""accelerate: models that are only partly in memory, with the rest on disk."""

import pytest
import torch
import transformers
from accelerate import cpu_offload, init_empty_weights, load_checkpoint_and_dispatch
from parity import HEADS, ours_and_stock, packed, ragged_batch
from torch.testing import assert_close

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def bytes_in_memory(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters() if parameter.device.type != "meta")


def outputs(model: torch.nn.Module, inputs: dict) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return dict(model.eval()(**inputs))


@pytest.mark.parametrize("head", HEADS)
def test_an_offloaded_model_is_bit_identical(head, tmp_path):
    """Weights are on disk, partly in memory, or moved to the device at every call."""
    ours, _ = ours_and_stock(head)
    ours.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    auto_class = getattr(transformers, f"Auto{head}" if head == "Model" else f"AutoModel{head}")
    with init_empty_weights():
        empty = auto_class.from_config(ours.config)
    empty.tie_weights()
    models = {
        "disk": auto_class.from_pretrained(tmp_path / "model", device_map={"": "disk"}),
        "dispatched": load_checkpoint_and_dispatch(
            empty,
            tmp_path / "model",
            device_map="auto",
            max_memory={"cpu": "250KB"},
            offload_folder=tmp_path / "offload",
            no_split_module_classes=ours._no_split_modules,
        ),
        "offloaded": cpu_offload(auto_class.from_pretrained(tmp_path / "model"), torch.device("cpu")),
    }
    assert bytes_in_memory(models["disk"]) == bytes_in_memory(models["offloaded"]) == 0
    assert 0 < bytes_in_memory(models["dispatched"]) <= 250e3
    prefix = "" if head == "Model" else "bert."
    assert {f"{prefix}embeddings", *(f"{prefix}encoder.layer.{index}" for index in range(3))} <= set(
        models["dispatched"].hf_device_map
    )
    inputs = ragged_batch(head)
    for batch in (inputs, packed(inputs)):
        expected = outputs(ours, batch)
        for name, model in models.items():
            assert_close(
                outputs(model, batch), expected, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
            )
