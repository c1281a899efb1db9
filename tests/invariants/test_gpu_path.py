"""What the model runs on a GPU, on a CPU with reference kernels, against what it runs on a CPU."""

import pytest
import torch
from host_waits import count_host_waits
from parity import HEADS, assert_same_gradients, ours_and_stock, packed, ragged_batch, scalar
from reference_kernels import acting_as_gpu

pytestmark = pytest.mark.slow


def hard_batch(head: str) -> dict[str, torch.Tensor]:
    """A padded batch with an empty row, a row of one token, and a full row."""
    inputs = ragged_batch(head)
    mask = inputs["attention_mask"].flatten(0, -2)
    mask[1], mask[2], mask[2, 0], mask[3] = 0, 0, 1, 1
    for name in ("start_positions", "end_positions"):
        if name in inputs:
            inputs[name][1:3] = torch.tensor([-100, 0])
    if "labels" in inputs and inputs["labels"].shape == inputs["attention_mask"].shape:
        inputs["labels"].masked_fill_(inputs["attention_mask"] == 0, -100)
    return inputs


@pytest.mark.parametrize(("layout", "kernel"), [("padded", "flash"), ("packed", "efficient")])
@pytest.mark.parametrize(("head", "labels"), [*((head, "some") for head in HEADS), ("ForMaskedLM", "all")])
def test_every_head_equals_the_cpu(head, labels, layout, kernel):
    """With labels on all tokens, the last layer computes first tokens twice: it has more queries than tokens."""
    on_cpu, on_gpu = (ours_and_stock(head)[0].train() for _ in range(2))
    inputs = hard_batch(head)
    if labels == "all":
        inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    inputs = packed(inputs) if layout == "packed" else inputs
    expected = on_cpu(**inputs)
    scalar(expected).backward()
    with acting_as_gpu(kernel) as calls:
        outputs = on_gpu(**inputs)
        scalar(outputs).backward()
    directions = [f"_{kernel}_attention_{direction}" for direction in ("forward", "backward")]
    assert [calls.count(name) for name in directions] == [3, 3] and len(calls) == 6  # three layers
    for name, value in expected.items():
        torch.testing.assert_close(outputs[name], value, atol=1e-5, rtol=1e-5)
    assert_same_gradients(on_gpu, on_cpu)


class OtherLinear(torch.nn.Linear):
    """A layer of another library, which may compute anything."""

    def forward(self, values):
        return 1.5 * super().forward(values)


def replace(attention: torch.nn.Module) -> None:
    attention.key.__class__ = OtherLinear


def wrap(attention: torch.nn.Module) -> None:
    forward = attention.key.forward
    attention.key.forward = lambda values: 1.5 * forward(values)


def remove_bias(attention: torch.nn.Module) -> None:
    attention.key.bias = None


def scale_first(module, values, *_):
    return (1.5 * values[0],)


# What an adapter, a quantization or an observer does to a projection.
CHANGES = {
    "nothing": lambda attention: None,
    "frozen": lambda attention: attention.key.requires_grad_(False),
    "other class": replace,
    "other forward": wrap,
    "no bias": remove_bias,
    "compiled": lambda attention: attention.key.compile(backend="eager"),
    "weight norm": lambda attention: torch.nn.utils.parametrizations.weight_norm(attention.key),
    "forward hook": lambda attention: attention.key.register_forward_hook(lambda *values: 1.5 * values[-1]),
    "pre-hook": lambda attention: attention.key.register_forward_pre_hook(scale_first),
    "backward hook": lambda attention: attention.key.register_full_backward_hook(scale_first),
    "backward pre-hook": lambda attention: attention.key.register_full_backward_pre_hook(scale_first),
}


@pytest.mark.parametrize("change", CHANGES)
def test_plain_and_changed_projections_equal_the_cpu(change):
    """On a GPU, plain projections are one product. Changed ones must be called."""
    models = [ours_and_stock("ForPreTraining")[0].train() for _ in range(2)]
    for model in models:
        CHANGES[change](model.bert.encoder.layer[0].attention.self)
    inputs = packed(ragged_batch("ForPreTraining"))
    on_cpu, on_gpu = models
    on_cpu(**inputs).loss.backward()
    with acting_as_gpu():
        on_gpu(**inputs).loss.backward()
    assert_same_gradients(on_gpu, on_cpu)


def test_functional_calls_differentiate_joined_projections():
    """Gradients of each sequence, by torch.func, against one backward pass for each."""
    ours, _ = ours_and_stock("ForSequenceClassification")
    inputs = ragged_batch("ForSequenceClassification", ragged=False, batch=3)
    weights = dict(ours.named_parameters())

    def loss(weights, ids, label):
        return torch.func.functional_call(ours, weights, (ids[None],), {"labels": label[None]}).loss

    with acting_as_gpu():
        arguments = inputs["input_ids"], inputs["labels"]
        gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, *arguments)
    for index, (ids, label) in enumerate(zip(*arguments, strict=True)):
        expected = torch.autograd.grad(loss(weights, ids, label), list(weights.values()))
        for (name, gradient), each in zip(gradients.items(), expected, strict=True):
            torch.testing.assert_close(gradient[index], each, atol=1e-5, rtol=1e-4, msg=name)


def test_host_waits_are_found():
    with count_host_waits() as waits:
        torch.ones(1).item()
        torch.ones(2).nonzero()
        torch.ones(2)[torch.tensor([True, False])]
    assert len(waits) == 3 and all("test_gpu_path.py" in wait for wait in waits)


def step_waits(head, inputs, **overrides) -> list[str]:
    """The waits of a training step with dropout."""
    ours, _ = ours_and_stock(head, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **overrides)
    ours.train()
    with acting_as_gpu(), count_host_waits() as waits:
        scalar(ours(**inputs)).backward()
    return waits


@pytest.mark.parametrize("head", HEADS)
def test_a_packed_step_does_not_wait_and_a_padded_step_waits_once(head):
    """A packed batch without the optional inputs waits once for the longest length, and once for the labels."""
    inputs = hard_batch(head)
    assert step_waits(head, packed(inputs)) == []
    padded = step_waits(head, inputs | {"position_ids": torch.arange(17).expand(inputs["input_ids"].shape)})
    assert len(padded) == 1, padded
    bare = {name: value for name, value in packed(inputs).items() if name not in ("max_length_q", "label_indices")}
    finds_labels = head in ("ForPreTraining", "ForMaskedLM")
    assert len(step_waits(head, bare)) == 1 + finds_labels

    if not finds_labels and head != "ForMultipleChoice":
        inputs = ragged_batch(head, ragged=False)
        mask = inputs.pop("attention_mask")
        assert step_waits(head, inputs) == step_waits(head, inputs | {"attention_mask": mask[:, None, None] > 0}) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            ({"cu_seq_lens_q": torch.tensor(starts), "max_length_q": 4}, "`cu_seq_lens_q` must start at 0")
            for starts in ([1, 3, 6], [0, 3, 5], [0, 4, 3, 6], [0, 1, 6])
        ),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}, "`position_ids` restart in a row"),
    ],
)
def test_wrong_boundaries_and_positions_stop_the_kernels(wrong, message):
    """On a GPU, the same assertion fails later."""
    ours, _ = ours_and_stock("Model")
    with acting_as_gpu() as calls:
        with pytest.raises(RuntimeError, match=message):
            ours(torch.ones(1, 6, dtype=torch.long), **wrong)
    assert not calls


def test_inference_mode_equals_training_and_autocast_runs_flash_attention():
    ours, _ = ours_and_stock("ForPreTraining")
    inputs = packed(ragged_batch("ForPreTraining"))
    expected = ours.train()(**inputs).loss
    with acting_as_gpu(), torch.inference_mode():
        torch.testing.assert_close(ours.eval()(**inputs).loss, expected)
    ours.train()
    with acting_as_gpu() as calls:
        with torch.autocast("cpu", torch.bfloat16):
            loss = ours(**inputs).loss
        loss.backward()
    assert set(calls) == {"_flash_attention_forward", "_flash_attention_backward"} and len(calls) == 6
    torch.testing.assert_close(loss, expected, atol=0, rtol=5e-3)
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())
