"""Runs on a CPU what the model runs on a GPU, with reference implementations of torch's attention kernels.

torch defines both kernels for CUDA only. Their autograd formulas and shape functions are the same on every device. The
reference implementations check the conditions that the CUDA kernels check, or read out of bounds without.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from snugbert import kernels_snugbert as kernels

LSE_MULTIPLE = 32  # memory-efficient attention pads the logsumexp


def attend(query, key, scale, seed, dropout):
    """Returns the scores, and what dropout multiplies the weights by, for (heads, queries or keys, D)."""
    generator = torch.Generator().manual_seed(seed)
    scores = query.float() @ key.float().transpose(1, 2) * scale
    kept = torch.rand(scores.shape, generator=generator) >= dropout
    return scores, kept / (1 - dropout)


def split(tokens, starts):
    return [part.transpose(0, 1) for part in tokens.split(starts.diff().tolist())]


def join(parts, like):
    return torch.cat([part.transpose(0, 1) for part in parts]).to(like.dtype)


def check(query, key, value, starts_q, starts_k, max_q, max_k):
    for starts, tokens, longest in ((starts_q, query, max_q), (starts_k, key, max_k)):
        assert starts.dtype == torch.int32 and starts.is_contiguous() and starts[0] == 0 and starts[-1] == len(tokens)
        assert 0 <= starts.diff().min() and starts.diff().max() <= longest <= len(tokens)
    assert len(starts_q) == len(starts_k)
    assert not ((starts_q.diff() > 0) & (starts_k.diff() == 0)).any(), "queries without keys"
    assert all(tensor.stride(-1) == 1 and tensor.shape[-1] % 8 == 0 for tensor in (query, key, value))
    assert query.dtype == key.dtype == value.dtype


def forward(query, key, value, starts_q, starts_k, max_q, max_k, dropout, scale):
    """Returns the output, the logsumexp of each sequence (heads, queries), and the seed."""
    check(query, key, value, starts_q, starts_k, max_q, max_k)
    seed = int(torch.randint(2**31, ()))  # as on CUDA, the default generator decides
    outputs, normalizers = [], []
    parts = zip(split(query, starts_q), split(key, starts_k), split(value, starts_k), strict=True)
    for index, (q, k, v) in enumerate(parts):
        scores, factors = attend(q, k, scale, seed + index, dropout)
        normalizers.append(scores.logsumexp(-1))
        outputs.append((scores.softmax(-1) * factors) @ v.float())
    return join(outputs, query), normalizers, seed


def backward(grad, query, key, value, out, starts_q, starts_k, max_q, max_k, normalizers, dropout, seed, scale):
    check(query, key, value, starts_q, starts_k, max_q, max_k)
    gradients = []
    sides = [split(tensor, starts_q) for tensor in (grad, query, out)] + [split(x, starts_k) for x in (key, value)]
    for index, (g, q, o, k, v) in enumerate(zip(*sides, strict=True)):
        scores, factors = attend(q, k, scale, seed + index, dropout)
        weights = (scores - normalizers[index][..., None]).exp()
        grad_weights = g.float() @ v.float().transpose(1, 2) * factors
        grad_scores = weights * (grad_weights - (g.float() * o.float()).sum(-1, keepdim=True)) * scale
        grad_value = (weights * factors).transpose(1, 2) @ g.float()
        gradients.append((grad_scores @ k.float(), grad_scores.transpose(1, 2) @ q.float(), grad_value))
    return tuple(join(parts, query) for parts in zip(*gradients, strict=True))


def flash_forward(query, key, value, starts_q, starts_k, max_q, max_k, dropout, causal, debug, *, scale):
    assert not causal and not debug
    assert query.dtype in kernels.FLASH_DTYPES and query.shape[-1] <= 256
    output, normalizers, seed = forward(query, key, value, starts_q, starts_k, max_q, max_k, dropout, scale)
    state = torch.tensor([seed, 0], dtype=torch.uint64)
    return output, torch.cat(normalizers, 1), state, state.new_empty(()), query.new_empty(0)


def flash_backward(
    grad, query, key, value, out, logsumexp, starts_q, starts_k, max_q, max_k, dropout, causal, state, unused, *, scale
):
    assert not causal
    normalizers = logsumexp.split(starts_q.diff().tolist(), 1)
    bounds = (starts_q, starts_k, max_q, max_k)
    return backward(grad, query, key, value, out, *bounds, normalizers, dropout, int(state[0]), scale)


def efficient_forward(
    query, key, value, bias, starts_q, starts_k, max_q, max_k, dropout, mask, needs_logsumexp=False, *, scale
):
    assert bias is None and mask == 0 and len(query) == 1
    tensors = (query[0], key[0], value[0])
    output, parts, seed = forward(*tensors, starts_q, starts_k, max_q, max_k, dropout, scale)
    width = -(-max_q // LSE_MULTIPLE) * LSE_MULTIPLE if needs_logsumexp else 0
    logsumexp = torch.full((len(parts), query.shape[2], width), torch.inf)
    for row, part in zip(logsumexp, parts, strict=True):
        if needs_logsumexp:
            row[:, : part.shape[1]] = part
    return output[None], logsumexp, torch.tensor(seed), torch.tensor(0), max_q, max_k


def efficient_backward(
    grad, query, key, value, bias, out, starts_q, starts_k, max_q, max_k, logsumexp, dropout, seed, offset, mask,
    bias_requires_grad, *, scale
):  # fmt: skip
    assert bias is None and mask == 0 and not bias_requires_grad and logsumexp.shape[-1] >= max_q
    normalizers = [row[:, :length] for row, length in zip(logsumexp, starts_q.diff().tolist(), strict=True)]
    tensors = (tensor[0] for tensor in (grad, query, key, value, out))
    gradients = backward(*tensors, starts_q, starts_k, max_q, max_k, normalizers, dropout, int(seed), scale)
    return *(gradient[None] for gradient in gradients), query.new_empty(())


KERNELS = {
    "_flash_attention_forward": flash_forward,
    "_flash_attention_backward": flash_backward,
    "_efficient_attention_forward": efficient_forward,
    "_efficient_attention_backward": efficient_backward,
}


@contextmanager
def acting_as_gpu(attention: str | None = None) -> Iterator[list[str]]:
    """Makes the model run on a CPU what it runs on a GPU.

    Args:
        attention: "flash" also sends float32 to flash attention, which a GPU does not do. Then both kernels can be
            compared with the CPU's attention in float32.

    Yields:
        The names of the kernels that ran.
    """
    calls: list[str] = []

    def record(name):
        def kernel(*args, **kwargs):
            calls.append(name)
            return KERNELS[name](*args, **kwargs)

        return kernel

    library = torch.library.Library("aten", "IMPL")
    for name in KERNELS:
        library.impl(name, record(name), "CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "OWN_KERNELS", set())
        if attention == "flash":
            patch.setattr(kernels, "FLASH_DTYPES", {torch.float32, *kernels.FLASH_DTYPES})
        try:
            yield calls
        finally:
            library._destroy()
