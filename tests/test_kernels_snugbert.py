"""Dropout, grouped attention and cross entropy against torch's own; attention implementations against each other."""

import pytest
import torch
import torch.nn.functional as F
from parity import assert_same_gradients, ours_and_stock, packed, ragged_batch
from peft import LoraConfig, inject_adapter_in_model
from reference_kernels import KERNELS, acting_as_gpu
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from snugbert import kernels_snugbert as kernels
from snugbert.modeling_snugbert import SnugBertVocabularyProjection

pytestmark = pytest.mark.slow

LENGTHS = {
    "ragged": ([5, 1, 7, 7, 3, 0, 12],) * 2,
    "few queries": ([1, 0, 2, 7, 1, 0, 3], [5, 1, 7, 7, 3, 0, 12]),
    "even": ([6, 6, 6], [6, 6, 6]),
    "a query each": ([1, 1], [9, 9]),
}

DROPOUT = 0.375  # a multiple of 2^-16, to which probabilities are rounded


def make_inputs(lengths, dtype=torch.float64):
    """Query, key and value of three heads, and their lengths."""
    generator = torch.Generator().manual_seed(0)
    sizes = (sum(lengths[0]), sum(lengths[1]), sum(lengths[1]))
    return [torch.randn(size, 3, 8, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def sequence_starts(lengths):
    return [F.pad(torch.tensor(side).cumsum(0), (1, 0)).int() for side in lengths]


def score_pairs(query, key, tables):
    """Scores of relative positions, for each pair of tokens alone (He et al., 2021, equation 2)."""
    zero = tables[0].shape[1] // 2 - 1
    distances = torch.arange(len(query))[:, None] - torch.arange(len(key))
    keys, queries = tables[0][:, zero - distances], tables[1][:, zero + distances]
    return torch.einsum("qhd,hqkd->qhk", query, keys) + torch.einsum("khd,hqkd->qhk", key, queries)


def attention_alone(query, key, value, *tables, lengths, kept=None):
    """Attention on one sequence at a time, written out. `kept`: the weights that dropout keeps."""
    parts = zip(query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1]), strict=True)
    outputs = []
    kept = [None] * len(lengths[0]) if kept is None else kept.split(lengths[0])
    for (query, key, value), part_kept in zip(parts, kept, strict=True):
        scores = torch.einsum("qhd,khd->qhk", query, key)
        weights = ((scores + score_pairs(query, key, tables) if tables else scores) * 0.3).softmax(-1)
        if part_kept is not None:
            weights = weights * part_kept[..., : len(key)] / (1 - DROPOUT)
        outputs.append(torch.einsum("qhk,khd->qhd", weights, value))
    return torch.cat(outputs)


def assert_attention_on_each_sequence(attention, lengths, dtype, tables=()):
    """Compares `attention(query, key, value, *tables, dropout=...)` and its gradients, with and without dropout."""
    tensors = [*make_inputs(lengths, dtype), *tables]
    for dropout in (0.0, DROPOUT):
        kept = None
        if dropout:
            # With the identity as values, the output is the attention weights. Dropped weights are 0.
            longest = -(-max(8, *lengths[1]) // 8) * 8
            query, key, *wide_tables = (F.pad(tensor, (0, longest - 8)) for tensor in (*tensors[:2], *tables))
            identity = torch.cat([torch.eye(longest, dtype=dtype)[:length] for length in lengths[1]])
            identity = identity[:, None].expand(-1, 3, -1).contiguous()
            kept = attention(query, key, identity, *wide_tables, dropout=dropout) > 0
            scores = sum(3 * queries * keys for queries, keys in zip(*lengths, strict=True))
            assert 0 < len(kept[kept]) < scores
        output = attention(*tensors, dropout=dropout)
        expected = attention_alone(*tensors, lengths=lengths, kept=kept)
        torch.testing.assert_close(output, expected)
        weights = torch.randn_like(output)
        for mine, theirs in zip(
            torch.autograd.grad((output * weights).sum(), tensors),
            torch.autograd.grad((expected * weights).sum(), tensors),
            strict=True,
        ):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("group_cost", "chunk_size"), [(0, 10**6), (30, 200), (10**6, 1), (10**6, 10**6)])
@pytest.mark.parametrize(
    ("case", "is_relative"), [*((case, False) for case in LENGTHS), ("ragged", True), ("even", True)]
)
def test_grouped_attention_is_attention_on_each_sequence(case, is_relative, group_cost, chunk_size, monkeypatch):
    """The tables of relative positions have more distances than the sequences need."""
    monkeypatch.setattr(kernels, "GROUP_COST", group_cost)
    monkeypatch.setattr(kernels, "CHUNK_SIZE", chunk_size)
    starts = sequence_starts(LENGTHS[case])
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(3, 2 * 14, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2)]

    def attention(query, key, value, *tables, dropout):
        torch.manual_seed(1)
        return kernels.grouped_attention(query, key, value, *starts, 0.3, dropout, tables)

    assert_attention_on_each_sequence(attention, LENGTHS[case], torch.float64, tables if is_relative else ())


@pytest.mark.parametrize("kernel", ["flash", "efficient"])
@pytest.mark.parametrize("case", LENGTHS)
def test_ragged_attention_is_attention_on_each_sequence(case, kernel):
    """A GPU's path. The bounds of the lengths are larger than the batch, as for a batch that was padded."""
    starts = sequence_starts(LENGTHS[case])

    def attention(query, key, value, dropout):
        torch.manual_seed(1)
        return kernels.ragged_attention(query, key, value, *starts, 10**6, 10**6, scaling=0.3, dropout=dropout)

    with acting_as_gpu(kernel) as calls:
        assert_attention_on_each_sequence(attention, LENGTHS[case], torch.float32)
    assert set(calls) == {f"_{kernel}_attention_{direction}" for direction in ("forward", "backward")}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_attention_dropout_has_the_given_probability(dtype):
    """Zero queries give uniform weights. With the identity as values, the output is 0 or 1 / (L (1 - p))."""
    length, heads, dropout = 64, 250, 0.1
    starts = sequence_starts(([length], [length]))
    zeros = torch.zeros(length, heads, length, dtype=dtype)
    values = torch.eye(length, dtype=dtype)[:, None].expand(-1, heads, -1).clone().requires_grad_()
    torch.manual_seed(0)
    weights = kernels.grouped_attention(zeros, zeros, values, *starts, 1.0, dropout)
    kept = weights > 0
    assert abs(1 - kept.double().mean() - dropout) < 5 * (0.1 * 0.9 / kept.numel()) ** 0.5
    torch.testing.assert_close(
        weights[kept], torch.full_like(weights[kept], 1 / length / (1 - dropout)), rtol=1e-2, atol=0
    )
    weights.sum().backward()
    torch.testing.assert_close(values.grad.sum(-1), weights.sum(0).T * length, rtol=2e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dropout", [0.3, 0.0001])
def test_dropout_has_the_given_probability(dropout, dtype):
    module = kernels.SnugBertDropout(dropout)
    values = torch.ones(500, 1003, dtype=dtype, requires_grad=True)
    torch.manual_seed(0)
    output = module(values)
    dropped = (output == 0).double().mean().item()
    assert abs(dropped - dropout) < 5 * (dropout * (1 - dropout) / values.numel()) ** 0.5
    torch.testing.assert_close(
        output, (output != 0) / (1 - torch.tensor(dropout)), check_dtype=False, rtol=1e-2, atol=0
    )
    (output * 2).sum().backward()
    torch.testing.assert_close(values.grad, 2 * output.detach(), rtol=1e-2, atol=0)
    torch.manual_seed(0)
    assert torch.equal(module(values), output)
    assert not torch.equal(module(values), output)
    assert module.eval()(values) is values
    assert not kernels.SnugBertDropout(1.0)(values).any()


@pytest.mark.parametrize("devices", [{"cpu"}, set()], ids=["CPU", "GPU"])
@pytest.mark.parametrize("rows", [10, 0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_cross_entropy_equals_torch(dtype, rows, devices, monkeypatch):
    """Also if the logits are a view of a padded product."""
    monkeypatch.setattr(kernels, "OWN_KERNELS", devices)
    for name in ("CHUNK_SIZE", "ACCELERATOR_CHUNK_SIZE"):
        monkeypatch.setattr(kernels, name, 3 * 50)  # three rows per chunk
    logits = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)).to(dtype)[:, :50].requires_grad_()
    targets = torch.arange(rows) * 4
    targets[1::4] = -100  # ignored
    loss = kernels.cross_entropy_sum(logits, targets)
    (gradient,) = torch.autograd.grad(3 * loss, logits)
    expected = F.cross_entropy(kernels.upcast(logits), targets, reduction="sum")
    assert loss.dtype == expected.dtype
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * expected, logits)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_padded_vocabulary_product_equals_the_product(dtype, monkeypatch):
    """Forward and backward, under autocast."""
    torch.manual_seed(0)
    model = SnugBertVocabularyProjection(16, 50).to(torch.promote_types(dtype, torch.float32))
    states = torch.randn(7, 16, dtype=model.weight.dtype, requires_grad=True)
    results = []
    for devices in ({"cpu"}, set()):
        monkeypatch.setattr(kernels, "OWN_KERNELS", devices)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = model(states)
            gradients = torch.autograd.grad((logits.float() ** 3).sum(), [states, *model.parameters()])
        results.append([logits, *gradients])
        assert logits.dtype == dtype and logits.shape == (7, 50)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("change", ["LoRA", "more tokens"])
def test_a_changed_head_equals_stock_bert_on_a_gpu(change):
    models = [model.train() for model in ours_and_stock("ForPreTraining")]
    for model in models:
        torch.manual_seed(0)
        if change == "LoRA":
            inject_adapter_in_model(LoraConfig(r=4, target_modules=["decoder"], init_lora_weights=False), model)
        else:
            model.resize_token_embeddings(220)
    inputs = ragged_batch("ForPreTraining")
    with acting_as_gpu():
        losses = [model(**inputs).loss for model in models]
        sum(losses).backward()
    torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
    assert_same_gradients(*models, tolerance=2e-5)


@pytest.mark.parametrize(
    ("dtype", "head_size", "has_flash", "kernel"),
    [
        (torch.bfloat16, 64, True, "flash"),
        (torch.float16, 12, True, "flash"),
        (torch.float16, 200, True, "efficient"),
        (torch.float32, 5, True, "efficient"),
        (torch.float64, 5, True, "efficient"),  # no kernel computes in float64
        (torch.float16, 64, False, "efficient"),
        (torch.bfloat16, 64, False, "efficient"),  # such a GPU has no bfloat16 kernel
    ],
)
def test_ragged_attention_chooses_the_kernel(dtype, head_size, has_flash, kernel, monkeypatch):
    name, dtypes = "_efficient_attention_forward", []
    forward = KERNELS[name]
    monkeypatch.setitem(
        KERNELS, name, lambda query, *args, **kw: dtypes.append(query.dtype) or forward(query, *args, **kw)
    )
    monkeypatch.setattr(kernels, "_has_flash_attention", lambda device: has_flash)
    lengths = [4, 1, 0, 6]
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(11, 2, head_size, dtype=dtype, generator=generator).requires_grad_() for _ in range(3)]
    with acting_as_gpu() as calls:
        output = kernels.ragged_attention(*tensors, *sequence_starts((lengths, lengths)), 6, 6, 0.3, 0.0)
        output.sum().backward()
    assert calls == [f"_{kernel}_attention_{direction}" for direction in ("forward", "backward")]
    in_float32 = dtype in (torch.bfloat16, torch.float64)
    assert dtypes == ([torch.float32 if in_float32 else dtype] if kernel == "efficient" else [])
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = attention_alone(*exact, lengths=(lengths, lengths))
    expected.sum().backward()
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-5}
    assert output.dtype == dtype and output.shape == tensors[0].shape
    torch.testing.assert_close(output.double(), expected, **tolerance)
    for mine, theirs in zip(tensors, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, **tolerance)


@pytest.mark.parametrize("form", ["flash", "padded"])
def test_registered_attention_implementations_equal_stock_bert(form):
    """Flash attention receives one row of tokens with boundaries, the others padded sequences and a mask."""

    def attention(module, query, key, value, attention_mask, scaling, dropout, **kwargs):
        if form == "padded":
            assert query.shape[0] == key.shape[0] == 6 and attention_mask.dtype == torch.bool
            context = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
            return context.transpose(1, 2), None
        assert attention_mask is None and query.shape[0] == 1
        lengths = [kwargs[f"cu_seq_lens_{side}"].diff().tolist() for side in "qk"]
        assert all(max(side) <= kwargs[f"max_length_{name}"] for side, name in zip(lengths, "qk", strict=True))
        parts = zip(query.split(lengths[0], 2), key.split(lengths[1], 2), value.split(lengths[1], 2), strict=True)
        context = torch.cat([F.scaled_dot_product_attention(*part, scale=scaling) for part in parts], dim=2)
        return context.transpose(1, 2), None

    AttentionInterface.register(f"{form}_on_cpu", attention)
    ours, stock = ours_and_stock("ForPreTraining")
    inputs = ragged_batch("ForPreTraining")
    ours.config._attn_implementation = f"{form}_on_cpu"
    for model in (ours, stock):
        model.train()(**inputs).loss.backward()
    assert_same_gradients(ours, stock, tolerance=2e-5)


def test_grouped_attention_as_an_operator():
    """torch's own checks of operators, and the same results as without compilation."""
    starts = sequence_starts(LENGTHS["few queries"])
    tensors = make_inputs(LENGTHS["few queries"])
    torch.library.opcheck(kernels._attend_operator, (*tensors, *starts, 0.3, 0.0))

    def attend(*tensors):
        return kernels.grouped_attention(*tensors, *starts, 0.3, DROPOUT)

    torch._dynamo.reset()
    results = []
    for function in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(1)
        results.append(function(*tensors))
    assert torch.equal(*results)
    pairs = (torch.autograd.grad((result**2).sum(), tensors) for result in results)
    assert all(torch.equal(*pair) for pair in zip(*pairs, strict=True))


def test_packed_batches_of_all_sizes_are_one_graph():
    ours, _ = ours_and_stock("ForPreTraining", num_hidden_layers=2)
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(ours.train(), backend="eager", dynamic=True)
    for size in (3, 6, 9, 4):
        inputs = packed(ragged_batch("ForPreTraining", batch=size))
        gradients = []
        for model in (compiled, ours):
            ours.zero_grad()
            model(**inputs).loss.backward()
            gradients.append([parameter.grad for parameter in ours.parameters()])
        torch.testing.assert_close(*gradients, atol=2e-6, rtol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


def test_a_target_of_minus_one_is_not_another_class():
    with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
        kernels.cross_entropy_sum(torch.zeros(2, 3), torch.tensor([1, -1]))


def test_second_derivatives_of_dropout_and_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 1, -100, 3, 4])

    def dropped_cubes(values):
        torch.manual_seed(0)
        return kernels.SnugBertDropout(0.4)(values**3) ** 2

    torch.autograd.gradgradcheck(dropped_cubes, values)
    # The gradient itself is the same with `create_graph`.
    without_graph, with_graph = (
        torch.autograd.grad(dropped_cubes(values).sum(), values, create_graph=graph) for graph in (False, True)
    )
    torch.testing.assert_close(with_graph, without_graph)
    torch.autograd.gradgradcheck(lambda logits: kernels.cross_entropy_sum(logits, targets), values)


def test_nan_stays_in_its_sequence():
    """Padding in a group never repeats a token of another sequence."""
    bad, lengths = 2, [3, 10, 16, 9, 15, 8]
    tensors = make_inputs((lengths, lengths))
    start = sum(lengths[:bad])
    with torch.no_grad():
        for tensor in tensors:
            tensor[start] = torch.nan
    output = kernels.grouped_attention(*tensors, *sequence_starts((lengths, lengths)), 0.3, 0.1)
    real = output.isfinite().flatten(1).all(1)
    assert real.equal(torch.cat([torch.full((length,), row != bad) for row, length in enumerate(lengths)]))
    gradients = torch.autograd.grad(output[real].sum(), tensors)
    for gradient in gradients:
        assert gradient[real].isfinite().all()
