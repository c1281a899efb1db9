"""Dropout, attention on ragged batches, the vocabulary product, and cross entropy.

These functions save time and memory in three ways. A dropout decision takes 16 random bits, not a Bernoulli draw.
Large intermediate tensors are computed in chunks that fit the processor's cache. Only tensors that the backward pass
needs are saved.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

IGNORE_INDEX = -100  # the label that torch's cross entropy and transformers' collators ignore
# Element size in bytes -> integer dtype of the same size. Integer multiplication by 0 or 1 and integer relu are
# vectorized for every size. torch multiplies floats by booleans element by element.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
CHUNK_SIZE = 2**21  # attention scores or logits computed at once
# Logits computed at once on accelerators: 64 MiB in float32. A kernel then takes longer than its launch.
ACCELERATOR_CHUNK_SIZE = 2**24
# On accelerators, vocabulary products are padded to a multiple of the longest tile of 16-bit kernels.
MULTIPLE = 64
# Device types on which our kernels run. Tests and benchmarks empty this set, to run the code for GPUs on a CPU.
OWN_KERNELS = {"cpu"}
# A group may spend this many scores on padding before a new group starts.
GROUP_COST = 64 * 64
# torch's flash attention: dtypes, largest head size, and the multiple that head sizes need. The kernel supports head
# sizes up to 256, but GPUs of compute capability 8.6, 8.9 and 12 may refuse the backward pass above 192.
FLASH_DTYPES = {torch.float16, torch.bfloat16}
FLASH_HEAD_SIZE = 192
HEAD_SIZE_MULTIPLE = 8
LSE_MULTIPLE = 32  # memory-efficient attention pads each row of its logsumexp to a multiple of this
SECOND_DERIVATIVE = (
    'attn_implementation="sdpa" supports only first derivatives. For second derivatives, call '
    '`model.set_attn_implementation("eager")`.'
)


def is_transformed() -> bool:
    """Whether torch.func transforms the model (`grad`, `vmap`, `jvp`). Only torch's own functions allow this."""
    return torch._C._are_functorch_transforms_active()


def is_tracing() -> bool:
    """Whether the model is compiled, exported, traced or transformed. Shapes then must not depend on values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed()


def is_exporting() -> bool:
    """Whether torch.export traces the model."""
    # In a model that torch.compile traces, `torch.compiler.is_exporting` is wrong with torch 2.11.
    return torch.compiler._is_exporting_flag


def has_own_kernels(values: torch.Tensor) -> bool:
    """Whether our kernels run on the device of `values`: on the CPU, where the host reads values without waiting."""
    return values.device.type in OWN_KERNELS


def to_autocast_dtype(values: torch.Tensor) -> torch.Tensor:
    """Converts float32 to the dtype of autocast, if enabled. Autocast itself would convert again for each use."""
    device = values.device.type
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)  # not traceable (torch 2.11)
    if values.dtype != torch.float32 or not available:
        return values
    return values.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else values


# --- dropout ----------------------------------------------------------------------------------------------------


def _draw_mask(count: int, dropout: float) -> torch.Tensor:
    """Draws `count` integers: 0 with probability `dropout` (rounded to 16 bits), else 1. *Shape:* (count,), int16."""
    # torch's generator draws the seed, so `torch.manual_seed` and gradient checkpointing work as usual. NumPy's SFC64
    # then draws 64 bits in half the time of torch's generator and a tenth of the time of a Bernoulli draw.
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    return torch.from_numpy(words.view(np.int16))[:count].ge_(round(dropout * 2**16) - 2**15)


def _apply_mask(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Returns `values` where `keep` is 1, and zero where `keep` is 0."""
    integers = INTEGERS[values.element_size()]
    return (values.contiguous().view(integers) * keep.to(integers)).view(values.dtype)


def _drop_negative(values: torch.Tensor) -> torch.Tensor:
    """Returns zero where the sign bit is set. For 16-bit dtypes, integer relu takes a third of the time of relu."""
    return values.view(INTEGERS[values.element_size()]).relu().view(values.dtype)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, dropout: float) -> torch.Tensor:
        keep = _draw_mask(values.numel(), dropout).view(values.shape)
        ctx.save_for_backward(keep.to(torch.bool))
        ctx.scale = 1 / (1 - dropout)
        return _apply_mask(values, keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (keep,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives (create_graph)
            return grad_outputs[0] * keep * ctx.scale, None
        return _apply_mask(grad_outputs[0], keep.view(torch.int8)).mul_(ctx.scale), None


class SnugBertDropout(nn.Dropout):
    """Dropout that draws its mask ten times as fast as torch's on a CPU.

    The CPU version rounds probabilities to multiples of 2^-16. Other devices and compiled models use torch's dropout.
    """

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drops values in training. *Shape:* (...) -> (...)"""
        cheap = has_own_kernels(values) and values.is_floating_point() and not is_tracing()
        if not (self.training and cheap and 0 < self.p < 1):
            return super().forward(values)
        return _Dropout.apply(values, self.p)


# --- attention --------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Sequences of similar length, padded to the longest of them. Only attention uses this padding."""

    size: int  # number of sequences, n
    longest_query: int  # largest number of queries in a sequence, at least 1
    longest_key: int  # largest number of keys in a sequence
    # Token index of each padded position of queries and of keys. Padding repeats the sequence's last token. A slice if
    # the sequences are adjacent and have the same length. Shape: (n x longest,)
    query_indices: torch.Tensor | slice
    key_indices: torch.Tensor | slice
    query_padding: torch.Tensor | None  # positions that are padding. None: no padding. Shape: (positions,)
    mask: torch.Tensor | None  # 0 at keys, minus infinity at padding. None: no padding. Shape: (n x heads, 1, longest)


class Groups(NamedTuple):
    """All sequences of a packed batch, in groups."""

    groups: list[Group]
    # Position of each token in the concatenated groups. None: tokens keep their order. Shape: (tokens,)
    query_positions: torch.Tensor | None
    key_positions: torch.Tensor | None


def group_by_length(cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor, heads: int) -> Groups:
    """Groups sequences of similar length, so that attention spends almost nothing on padding.

    `cu_seq_lens_q` and `cu_seq_lens_k` hold the start of each sequence's queries and keys, then the total, (N + 1,).
    """
    return _group(tuple(cu_seq_lens_q.tolist()), tuple(cu_seq_lens_k.tolist()), heads, GROUP_COST)


@lru_cache(maxsize=8)  # a batch needs two entries: one for most layers and one for the last
def _group(query_starts: tuple[int, ...], key_starts: tuple[int, ...], heads: int, group_cost: int) -> Groups:
    query_lengths = [after - before for before, after in pairwise(query_starts)]
    key_lengths = [after - before for before, after in pairwise(key_starts)]
    order = sorted(
        (index for index, length in enumerate(key_lengths) if length),
        key=lambda index: (key_lengths[index], query_lengths[index], -index),
        reverse=True,
    )
    members: list[list[int]] = []
    padding = longest_query = 0
    for index in order:
        longest_key = key_lengths[members[-1][0]] if members else 0
        longest_query = max(longest_query, query_lengths[index])
        padding += longest_query * longest_key - query_lengths[index] * key_lengths[index]
        if not members or padding > group_cost:
            members.append([])
            padding, longest_query = 0, query_lengths[index]
        members[-1].append(index)
    queries = [_padded_indices(query_starts, query_lengths, group) for group in members]
    keys = [_padded_indices(key_starts, key_lengths, group) for group in members]
    groups = [
        Group(
            size=len(group),
            longest_query=max(1, *(query_lengths[index] for index in group)),
            longest_key=max(key_lengths[index] for index in group),
            query_indices=query_indices,
            key_indices=key_indices,
            query_padding=None if query_mask is None else (~query_mask).nonzero().squeeze(1),
            mask=None if key_mask is None else _score_mask(key_mask.view(len(group), 1, -1), heads),
        )
        for group, (query_indices, query_mask), (key_indices, key_mask) in zip(members, queries, keys, strict=True)
    ]
    return Groups(groups, _invert(queries, sum(query_lengths)), _invert(keys, sum(key_lengths)))


def _score_mask(token_mask: torch.Tensor, heads: int) -> torch.Tensor:
    token_mask = token_mask.repeat_interleave(heads, 0)
    return torch.zeros(token_mask.shape, device="cpu").masked_fill_(~token_mask, -torch.inf)


def _padded_indices(
    starts: Sequence[int], lengths: Sequence[int], group: list[int]
) -> tuple[torch.Tensor | slice, torch.Tensor | None]:
    """Returns the token index of each padded position, and a mask of the tokens (None without padding)."""
    sizes = torch.tensor([lengths[index] for index in group], device="cpu")
    longest = max(int(sizes.max()), 1)  # without queries, a padding query gives keys zero gradients
    offsets = torch.arange(longest, device="cpu")
    token_mask = offsets < sizes[:, None]
    even = bool(token_mask.all())
    if even and group == list(range(group[0], group[-1] + 1)):
        return slice(starts[group[0]], starts[group[0]] + len(group) * longest), None
    first = torch.tensor([starts[index] for index in group], device="cpu")
    # Padding repeats only tokens of its own sequence. A NaN of another sequence would spread, because 0 x NaN is NaN.
    indices = first[:, None] + offsets.minimum((sizes[:, None] - 1).clamp_(min=0))
    indices.clamp_(max=starts[-1] - 1)  # needed if the last sequence has no query
    return indices.flatten(), None if even else token_mask.flatten()


def _invert(padded: list[tuple[torch.Tensor | slice, torch.Tensor | None]], tokens: int) -> torch.Tensor | None:
    """Returns the position of each token in the concatenated groups, or None if all tokens keep their order."""
    if len(padded) == 1 and isinstance(padded[0][0], slice):
        return None
    inverse = torch.zeros(tokens, dtype=torch.long, device="cpu")
    start = 0
    for index, token_mask in padded:
        indices = torch.arange(index.start, index.stop, device="cpu") if isinstance(index, slice) else index
        positions = torch.arange(start, start + len(indices), device="cpu")
        start += len(indices)
        if token_mask is not None:
            indices, positions = indices[token_mask], positions[token_mask]
        inverse[indices] = positions
    return inverse


def _gather_group(
    tokens: torch.Tensor,
    indices: torch.Tensor | slice,
    size: int,
    padding: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gathers a group's tokens, zero at `padding`. *Shape:* (T, heads, D) -> (size x heads, longest, D)"""
    heads, head_size = tokens.shape[1:]
    gathered = tokens[indices] if isinstance(indices, slice) else tokens.flatten(1).index_select(0, indices)
    if padding is not None:
        gathered.index_fill_(0, padding, 0)
    gathered = gathered.view(size, -1, heads, head_size).transpose(1, 2)
    if out is None:
        return gathered.reshape(size * heads, -1, head_size)
    out.view(gathered.shape).copy_(gathered)
    return out


def _ungroup(groups: Sequence[torch.Tensor], positions: torch.Tensor | None, heads: int) -> torch.Tensor:
    """Restores the order of the packed batch. *Shape:* (size x heads, longest, D) for each group -> (T, heads, D)"""
    flat = [group.view(-1, heads, *group.shape[1:]).transpose(1, 2).flatten(0, 1).flatten(1) for group in groups]
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    return (joined if positions is None else joined.index_select(0, positions)).view(-1, heads, groups[0].shape[-1])


def _scaled_bmm(
    left: torch.Tensor, right: torch.Tensor, scale: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale, out=out)


def chunk_length(query: torch.Tensor, key: torch.Tensor) -> int:
    """Returns how many matrices of [matrices, longest, D] to multiply at once.

    A chunk has at most `CHUNK_SIZE` scores, or is a single matrix. Chunks have about the same size.
    """
    matrices = len(query)
    chunks = math.ceil(matrices / max(1, CHUNK_SIZE // (query.shape[1] * key.shape[1])))
    return math.ceil(matrices / chunks)


def shift_distances(products: torch.Tensor) -> torch.Tensor:
    """Views products of tokens and distances as scores of pairs of tokens.

    Row i of the scores starts at column L - 1 - i of the products, because its distances are shifted by i (Dai et al.,
    2019, appendix B). Reading the rows of 2 L columns as rows of 2 L - 1 columns shifts them without a gather.

    *Shape:* (..., L, 2 L) -> (..., L, L)
    """
    L = products.shape[-2]
    return products.flatten(-2)[..., L - 1 : -1].unflatten(-1, (L, 2 * L - 1))[..., :L]


def _score(
    q: torch.Tensor, k: torch.Tensor, distances: Sequence[torch.Tensor], scaling: float, out: torch.Tensor | None
) -> torch.Tensor:
    """Computes the scores of a chunk, plus the scores of relative positions if there are `distances`."""
    if not distances:
        return _scaled_bmm(q, k.transpose(1, 2), scaling, out=out)
    content_to_position, position_to_content = (
        shift_distances(tokens @ rows.transpose(1, 2)) for tokens, rows in zip((q, k), distances, strict=True)
    )
    scores = torch.add(content_to_position, position_to_content.transpose(1, 2), out=out)
    return scores.baddbmm_(q, k.transpose(1, 2), beta=scaling, alpha=scaling)


def _distances_of_group(table: torch.Tensor, group: Group) -> torch.Tensor:
    """Returns the rows of the distances in a group. *Shape:* (heads, 2 M, D) -> (heads, 2 L, D)"""
    middle, L = table.shape[1] // 2, group.longest_key
    return table[:, middle - L : middle + L]


def _saved_shapes(groups: Groups, heads: int, head_size: int) -> list[tuple[int, ...]]:
    """Returns the shapes that the backward pass needs: queries, keys, values and softmax of each group."""
    shapes: list[tuple[int, ...]] = []
    for group in groups.groups:
        matrices, queries, keys = group.size * heads, group.longest_query, group.longest_key
        shapes += [(matrices, queries, head_size), *[(matrices, keys, head_size)] * 2, (matrices, queries, keys)]
    return shapes


def _split_saved(saved: torch.Tensor, shapes: list[tuple[int, ...]]) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yields queries, keys, values and softmax of each group, as views of `saved`."""
    parts = saved.split([math.prod(shape) for shape in shapes])
    views = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    yield from zip(*(views[index::4] for index in range(4)), strict=True)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    groups: Groups,
    scaling: float,
    dropout: float,
    saves: bool,
    tables: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(Q K' x scaling) V with dropout on the softmax, group by group and a chunk of heads at a time.

    With `tables`, the scores include relative positions. Also returns what the backward pass needs, in one tensor
    (empty unless `saves`). Dropped weights are negative in this tensor. *Shape:* (queries, heads, D), (values,)
    """
    heads = query.shape[1]
    shapes = _saved_shapes(groups, *query.shape[1:]) if saves else []
    saved = query.new_empty(sum(map(math.prod, shapes)))
    outputs: list[torch.Tensor] = []
    all_parts = _split_saved(saved, shapes) if saves else repeat((None,) * 4)
    for group, (saved_q, saved_k, saved_v, saved_weights) in zip(groups.groups, all_parts, strict=False):
        q = _gather_group(query, group.query_indices, group.size, out=saved_q)
        k = _gather_group(key, group.key_indices, group.size, out=saved_k)
        v = _gather_group(value, group.key_indices, group.size, out=saved_v)
        outputs.append(torch.empty_like(q))
        length = chunk_length(q, k)
        chunks = (tensor.split(length) for tensor in (q, k, v, outputs[-1]))
        kept = repeat(None) if saved_weights is None else saved_weights.split(length)
        masks = repeat(None) if group.mask is None else group.mask.to(q.dtype).split(length)
        distances = (_distances_of_group(table, group).repeat(group.size, 1, 1).split(length) for table in tables)
        positions = zip(*distances, strict=True) if tables else repeat(())
        for q, k, v, output, weights, mask, rows in zip(*chunks, kept, masks, positions, strict=False):
            weights = _score(q, k, rows, scaling, weights)
            if mask is not None:
                weights.add_(mask)
            torch.softmax(weights, -1, out=weights)
            if dropout:
                signs = _draw_mask(weights.numel(), dropout).sub_(1).to(INTEGERS[weights.element_size()])
                weights.copysign_(signs.view(weights.dtype).view(weights.shape))
            _scaled_bmm(_drop_negative(weights) if dropout else weights, v, 1 / (1 - dropout), out=output)
    return _ungroup(outputs, groups.query_positions, heads), saved


def _differentiate(
    grad_output: torch.Tensor,
    saved: torch.Tensor,
    groups: Groups,
    scaling: float,
    dropout: float,
    tables: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, ...]:
    """Returns the gradients of queries, keys, values and tables, from the tensor that [`_attend`] saved."""
    heads = grad_output.shape[1]
    scale = 1 / (1 - dropout)
    grad_tables = [torch.zeros_like(table, dtype=torch.promote_types(table.dtype, torch.float32)) for table in tables]
    grad_groups: list[list[torch.Tensor]] = []
    all_parts = _split_saved(saved, _saved_shapes(groups, *grad_output.shape[1:]))
    for group, parts in zip(groups.groups, all_parts, strict=True):
        grad_o = _gather_group(grad_output, group.query_indices, group.size, group.query_padding)
        grad_groups.append([torch.empty_like(tensor) for tensor in parts[:3]])
        length = chunk_length(*parts[:2])
        chunks = zip(*(tensor.split(length) for tensor in (*parts, grad_o, *grad_groups[-1])), strict=True)
        distances = [_distances_of_group(table, group).repeat(group.size, 1, 1) for table in tables]
        grad_distances = [torch.empty_like(rows) for rows in distances]
        pairs = [
            zip(rows.split(length), grad.split(length), strict=True)
            for rows, grad in zip(distances, grad_distances, strict=True)
        ]
        positions = zip(*pairs, strict=True) if tables else repeat(())
        # The columns that `shift_distances` leaves out stay zero.
        products = parts[0].new_zeros((length, group.longest_query, 2 * group.longest_key) if tables else 0)
        for (q, k, v, weights, grad_o, grad_q, grad_k, grad_v), sides in zip(chunks, positions, strict=False):
            kept = _drop_negative(weights) if dropout else weights
            _scaled_bmm(kept.transpose(1, 2), grad_o, scale, out=grad_v)
            grad_weights = _scaled_bmm(grad_o, v.transpose(1, 2), scale)
            if dropout:
                grad_weights = torch.ops.aten.threshold_backward(grad_weights, weights, 0)
                weights = weights.abs()
            grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            _scaled_bmm(grad_scores, k, scaling, out=grad_q)
            _scaled_bmm(grad_scores.transpose(1, 2), q, scaling, out=grad_k)
            tokens = ((q, grad_q, grad_scores), (k, grad_k, grad_scores.transpose(1, 2)))
            for (x, grad_x, scores), (rows, grad_rows) in zip(tokens, sides, strict=False):
                grad_products = products[: len(x)]
                shift_distances(grad_products).copy_(scores)
                grad_x.baddbmm_(grad_products, rows, alpha=scaling)
                _scaled_bmm(grad_products.transpose(1, 2), x, scaling, out=grad_rows)
        for grad_table, grad in zip(grad_tables, grad_distances, strict=True):
            _distances_of_group(grad_table, group).add_(grad.unflatten(0, (group.size, heads)).sum(0))
    grad_queries, grad_keys, grad_values = zip(*grad_groups, strict=True)
    return (
        _ungroup(grad_queries, groups.query_positions, heads),
        _ungroup(grad_keys, groups.key_positions, heads),
        _ungroup(grad_values, groups.key_positions, heads),
        *(grad_table.to(table.dtype) for grad_table, table in zip(grad_tables, tables, strict=True)),
    )


class _GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        groups: Groups,
        scaling: float,
        dropout: float,
        *tables: torch.Tensor,
    ) -> torch.Tensor:
        output, saved = _attend(query, key, value, groups, scaling, dropout, any(ctx.needs_input_grad), tables)
        ctx.save_for_backward(saved, *tables)
        ctx.options = groups, scaling, dropout
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved, *tables = ctx.saved_tensors
        groups, scaling, dropout = ctx.options
        with torch.no_grad():
            gradients = _differentiate(grad_outputs[0], saved, groups, scaling, dropout, tables)
        if torch.is_grad_enabled():  # as with `once_differentiable`, but the error names the remedy
            fail = torch._C._functions.DelayedError(SECOND_DERIVATIVE, len(gradients))
            gradients = fail(*[gradient.requires_grad_() for gradient in gradients])
        return *gradients[:3], None, None, None, *gradients[3:]


# torch.compile cannot trace the functions above, so they are registered as operators. The names of the operators
# contain the module's name, because a process can import several copies of this file, for example one from the Hub.
# The tensors that `_attend` saves have sizes that depend on the lengths, which would break the graph. So the backward
# pass computes these tensors again.
_NAMESPACE = re.sub(r"\W", "_", __name__)
_operator = partial(torch.library.custom_op, mutates_args=(), device_types="cpu")
_RANDOM_STATE_SIZE = torch.get_rng_state().numel()


@_operator(f"{_NAMESPACE}::attend", tags=(torch.Tag.nondeterministic_seeded,))
def _attend_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    scaling: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output, and the state of the generator that drew the dropout masks."""
    random_state = torch.get_rng_state()
    groups = group_by_length(cu_seq_lens_q, cu_seq_lens_k, query.shape[1])
    return _attend(query, key, value, groups, scaling, dropout, saves=False)[0], random_state


@_attend_operator.register_fake
def _(query, *others):  # type: ignore[no-untyped-def]
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    return output, query.new_empty(_RANDOM_STATE_SIZE, dtype=torch.uint8)


@_operator(f"{_NAMESPACE}::differentiate")
def _differentiate_operator(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    random_state: torch.Tensor,
    scaling: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups = group_by_length(cu_seq_lens_q, cu_seq_lens_k, query.shape[1])
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(random_state)
        saved = _attend(query, key, value, groups, scaling, dropout, saves=True)[1]
    grad_query, grad_key, grad_value = _differentiate(grad_output, saved, groups, scaling, dropout)
    return grad_query, grad_key, grad_value


@_differentiate_operator.register_fake
def _empty_gradients(grad_output, query, key, value, *others):  # type: ignore[no-untyped-def]
    grad_query, grad_key, grad_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return grad_query, grad_key, grad_value


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, scaling, dropout = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.options = scaling, dropout


def _backward(ctx: Any, grad_output: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    gradients = _differentiate_operator(grad_output, *ctx.saved_tensors, *ctx.options)
    return *gradients, None, None, None, None


_attend_operator.register_autograd(_backward, setup_context=_remember)


def grouped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    scaling: float,
    dropout: float,
    tables: Sequence[torch.Tensor] = (),
    **kwargs: Any,
) -> torch.Tensor:
    """Computes attention within each sequence of a packed batch, on the CPU. Returns a tensor like `query`.

    Args:
        query: at least one query. *Shape:* (queries, heads, D)
        key, value: keys and values. *Shape:* (tokens, heads, D)
        cu_seq_lens_q, cu_seq_lens_k: see [`group_by_length`].
        scaling: multiplies the scores.
        dropout: dropout probability of the attention weights, below 1. Rounded to a multiple of 2^-16.
        tables: keys of the distances from M - 1 to -M between query and key, and queries of the distances from 1 - M
            to M, for DeBERTa's relative positions. M is at least the longest sequence. All tokens must be queries.
            Not supported under torch.compile. Empty: no relative positions. *Shape:* (heads, 2 M, D)
        kwargs: ignored.
    """
    tensors, boundaries = (query, key, value), (cu_seq_lens_q, cu_seq_lens_k)
    if torch.compiler.is_compiling():
        return _attend_operator(*tensors, *boundaries, scaling, dropout)[0]
    groups = group_by_length(*boundaries, query.shape[1])
    return _GroupedAttention.apply(*tensors, groups, scaling, dropout, *tables)


# --- attention on a GPU ------------------------------------------------------------------------------------------

_device_capability = cache(torch.cuda.get_device_capability)  # looking it up takes microseconds, in each layer


@torch.compiler.assume_constant_result
def _has_flash_attention(device: torch.device) -> bool:
    """Whether torch has flash attention for a device: an NVIDIA Ampere GPU or newer, or an AMD GPU."""
    if device.type != "cuda":  # a CPU that runs the code for GPUs, see `OWN_KERNELS`
        return True
    return torch.backends.cuda.is_flash_attention_available() and _device_capability(device) >= (8, 0)


# torch's shape function for memory-efficient attention's backward pass lacks a parameter (torch 2.13). So a compiled
# model runs this attention through our own operator. As in the rest of this module, tensors are (tokens, heads, D).
_gpu_operator = partial(torch.library.custom_op, mutates_args=())


@_gpu_operator(f"{_NAMESPACE}::efficient_attention", tags=(torch.Tag.nondeterministic_seeded,))
def _efficient_operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    dropout: float,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the output, and what the backward pass needs: logsumexp, seed and offset."""
    boundaries = cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k
    forward = torch.ops.aten._efficient_attention_forward.default
    tensors = forward(query[None], key[None], value[None], None, *boundaries, dropout, 0, True, scale=scaling)
    return tensors[0].squeeze(0), *tensors[1:4]


@_efficient_operator.register_fake
def _(query, key, value, cu_seq_lens_q, cu_seq_lens_k, max_length_q, *others):  # type: ignore[no-untyped-def]
    width = (max_length_q + LSE_MULTIPLE - 1) // LSE_MULTIPLE * LSE_MULTIPLE
    logsumexp = query.new_empty(cu_seq_lens_q.shape[0] - 1, query.shape[1], width, dtype=torch.float32)
    seed, offset = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return torch.empty_like(query, memory_format=torch.contiguous_format), logsumexp, seed, offset


@_gpu_operator(f"{_NAMESPACE}::differentiate_efficient_attention")
def _differentiate_efficient_operator(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    logsumexp: torch.Tensor,
    seed: torch.Tensor,
    offset: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    dropout: float,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    boundaries = cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k
    tensors = (grad_output[None], query[None], key[None], value[None], None, output[None], *boundaries, logsumexp)
    backward = torch.ops.aten._efficient_attention_backward.default
    gradients = backward(*tensors, dropout, seed, offset, 0, False, scale=scaling)
    return gradients[0].squeeze(0), gradients[1].squeeze(0), gradients[2].squeeze(0)


_differentiate_efficient_operator.register_fake(_empty_gradients)


def _remember_efficient(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    query, key, value, cu_seq_lens_q, cu_seq_lens_k, *ctx.options = inputs
    context, *others = output
    ctx.save_for_backward(query, key, value, context, cu_seq_lens_q, cu_seq_lens_k, *others)


def _backward_efficient(ctx: Any, grad_output: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    gradients = _differentiate_efficient_operator(grad_output, *ctx.saved_tensors, *ctx.options)
    return *gradients, None, None, None, None, None, None


_efficient_operator.register_autograd(_backward_efficient, setup_context=_remember_efficient)


def ragged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_lens_q: torch.Tensor,
    cu_seq_lens_k: torch.Tensor,
    max_length_q: int,
    max_length_k: int,
    scaling: float,
    dropout: float,
    **kwargs,
) -> torch.Tensor:
    """Computes attention within each sequence of a packed batch, on a GPU.

    Calls the kernels of `F.scaled_dot_product_attention`: flash attention for 16 bits, on GPUs that have it, and
    memory-efficient attention otherwise. Both accept empty sequences, but not queries without keys. No kernel computes
    in float64, so attention in float64 is computed in float32.

    The arguments are as in [`grouped_attention`], with boundaries in int32. `max_length_q` and `max_length_k` are the
    largest number of queries and of keys in a sequence, or upper bounds.
    """
    dtype, head_size = query.dtype, query.shape[-1]
    has_flash = _has_flash_attention(query.device)
    if dtype == torch.float64 or (dtype == torch.bfloat16 and not has_flash):  # GPUs before Ampere have no kernel
        query, key, value = (tensor.float() for tensor in (query, key, value))
    padding = -head_size % HEAD_SIZE_MULTIPLE
    if padding:  # zeros change no score, and their outputs are cut off
        query, key, value = (F.pad(tensor, (0, padding)) for tensor in (query, key, value))
    # The kernels refuse bounds above the number of tokens. Unlike min, sym_min adds no condition to a compiled model.
    longest = torch.sym_min(max_length_q, len(query)), torch.sym_min(max_length_k, len(key))
    boundaries = (cu_seq_lens_q, cu_seq_lens_k, *longest, dropout)
    if has_flash and dtype in FLASH_DTYPES and head_size <= FLASH_HEAD_SIZE:
        flash = torch.ops.aten._flash_attention_forward.default
        context = flash(query, key, value, *boundaries, False, False, scale=scaling)[0]
    elif torch.compiler.is_compiling():
        context = _efficient_operator(query, key, value, *boundaries, scaling)[0]
    else:
        efficient = torch.ops.aten._efficient_attention_forward.default
        tensors = (query[None], key[None], value[None], None)
        context = efficient(*tensors, *boundaries, 0, torch.is_grad_enabled(), scale=scaling)[0].squeeze(0)
    return (context[..., :head_size] if padding else context).to(dtype)


# --- linear layers ----------------------------------------------------------------------------------------------


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether calling a layer only computes a product with its weight and adds its bias.

    A layer does more if it has hooks, is an adapter, or is quantized, sharded, offloaded or compiled on its own.
    """
    return (
        type(layer) is nn.Linear
        and layer.bias is not None
        and type(layer.weight) in (nn.Parameter, torch.Tensor)
        and not layer._forward_pre_hooks
        and not layer._forward_hooks
        and not layer._backward_pre_hooks
        and not layer._backward_hooks
        and layer._compiled_call_impl is None
        and "forward" not in layer.__dict__
    )


def joined_linear(values: torch.Tensor, layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, ...]:
    """Applies several layers to the same input with one product. The weights are concatenated in each call.

    On a GPU one large product is faster than several small products. Each gradient is also one product. The layers are
    plain, see [`is_plain_linear`]. The outputs are views of one tensor. *Shape:* (..., H) -> (..., size of the layer)
    """
    # Autocast converts the concatenated weight. Converting each weight first would take more kernels.
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    return F.linear(values, weight, bias).split([layer.out_features for layer in layers], -1)


def padded_linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Computes `values @ weight.T + bias` with rows of zeros appended to `weight`, and cuts the result.

    A GPU multiplies 16-bit matrices fast if their sizes are multiples of 8. BERT's vocabulary size, 30,522, is not.
    The result is a view of the padded product. *Shape:* (..., H), (V, H), (V,) -> (..., V)
    """
    size = len(weight)
    padding = -size % MULTIPLE
    if padding == 0:
        return F.linear(values, weight, bias)
    weight = to_autocast_dtype(weight)  # the copy is then half as large
    weight = torch.cat([weight, weight.new_zeros(padding, weight.shape[1])])
    return F.linear(values, weight, F.pad(bias, (0, padding)))[..., :size]


# --- cross entropy ----------------------------------------------------------------------------------------------


def upcast(logits: torch.Tensor) -> torch.Tensor:
    """Converts 16-bit logits to float32, because a 16-bit loss is too coarse. *Shape:* (...) -> (...)"""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _CrossEntropy(torch.autograd.Function):
    """Saves only the logits. Both passes compute the softmax in float32, a chunk of rows at a time."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        elements = CHUNK_SIZE if has_own_kernels(logits) else ACCELERATOR_CHUNK_SIZE
        ctx.length = max(1, elements // logits.shape[1])
        ctx.dtype = torch.promote_types(logits.dtype, torch.float32)
        ctx.save_for_backward(logits, targets)
        ignored = targets == IGNORE_INDEX
        classes = targets.masked_fill(ignored, 0)
        chunks = zip(logits.split(ctx.length), classes[:, None].split(ctx.length), strict=True)
        # `log_softmax` converts to `dtype`. A GPU converts float16 inside the kernel, and bfloat16 before it.
        losses = [chunk.log_softmax(1, dtype=ctx.dtype).gather(1, target) for chunk, target in chunks]
        return -torch.cat(losses).masked_fill_(ignored[:, None], 0).sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets = ctx.saved_tensors
        # A factor for each row, which is 0 for ignored rows.
        ignored = targets == IGNORE_INDEX
        grad_losses = grad_outputs[0].expand(len(targets), 1).masked_fill(ignored[:, None], 0)
        classes = targets.masked_fill(ignored, 0)
        if torch.is_grad_enabled():  # second derivatives (create_graph)
            one_hot = F.one_hot(classes, logits.shape[1])
            return (upcast(logits).softmax(1) - one_hot).mul(grad_losses).to(logits.dtype), None
        grad_logits = torch.empty_like(logits)
        minus_one = torch.full((len(targets), 1), -1.0, dtype=ctx.dtype, device=logits.device)
        tensors = (logits, classes[:, None], minus_one, grad_losses, grad_logits)
        for parts in zip(*(tensor.split(ctx.length) for tensor in tensors), strict=True):
            chunk, target, minus, grad_loss, grad_chunk = parts
            difference = chunk.softmax(1, dtype=ctx.dtype).scatter_add_(1, target, minus)
            torch.mul(difference, grad_loss, out=grad_chunk)
        return grad_logits, None


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the sum of the cross entropies, in float32 or wider. *Shape:* (M, V), (M,) -> ()

    Only a chunk of the logits at a time is copied to float32. A target of -100 is ignored. For M = 0, the sum is 0 and
    has a gradient.
    """
    if is_tracing():  # torch.compile fuses these operations
        return F.cross_entropy(upcast(logits), targets, ignore_index=IGNORE_INDEX, reduction="sum")
    return _CrossEntropy.apply(logits, targets)
