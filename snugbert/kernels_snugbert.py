"""Dropout, attention on ragged batches and cross entropy, each cheaper than what torch offers for it on a CPU.

What they have in common: chance costs 16 bits a number, not a Bernoulli draw; large intermediate tensors are made in
pieces that stay in the processor's cache; and for the backward pass no more is kept than it needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

# Integers as wide as a floating point number: multiplying these by 0 or 1, or taking their sign, is vectorized for
# every dtype, whereas torch multiplies numbers by booleans one at a time.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
PIECE = 2**21  # elements of an attention score or logit tensor that are worked on at once
# Scores computed for padding rather than starting another group. Measured in docs/explanation/performance.md.
GROUP_COST = 64 * 64


def is_tracing() -> bool:
    """Whether the model is being compiled, exported or traced, where shapes must not depend on values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


# --- dropout ----------------------------------------------------------------------------------------------------


def _keep(count: int, dropout: float) -> torch.Tensor:
    """`count` numbers, 0 with the probability `dropout` (to 16 bits), else 1. *Shape:* (count,), int16."""
    # The seed comes from the generator that `torch.manual_seed` sets and gradient checkpointing restores. NumPy's
    # gives 64 random bits in half the time of torch's, and in a tenth of that of a Bernoulli draw.
    seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    return torch.from_numpy(words.view(np.int16))[:count].ge_(round(dropout * 2**16) - 2**15)


def _times(values: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """`values` where `keep` is 1, zero where it is 0."""
    integers = INTEGERS[values.element_size()]
    return (values.contiguous().view(integers) * keep.to(integers)).view(values.dtype)


def _not_negative(values: torch.Tensor) -> torch.Tensor:
    """`values` where the sign is plus, else 0: relu of the bits takes a third of relu's time in 16 bits."""
    return values.view(INTEGERS[values.element_size()]).relu().view(values.dtype)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, dropout: float) -> torch.Tensor:
        keep = _keep(values.numel(), dropout).view(values.shape)
        ctx.save_for_backward(keep.to(torch.bool))
        ctx.scale = 1 / (1 - dropout)
        return _times(values, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (kept,) = ctx.saved_tensors
        return _times(gradients[0], kept.view(torch.int8)).mul_(ctx.scale), None


class SnugBertDropout(nn.Dropout):
    """Dropout whose masks cost a tenth of torch's on a CPU.

    There the probability is rounded to a multiple of 2^-16. On other devices, and in a compiled model, it is torch's.
    """

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """[...] -> [...]."""
        cheap = values.device.type == "cpu" and values.is_floating_point() and not is_tracing()
        if not (self.training and cheap and 0 < self.p < 1):
            return super().forward(values)
        return _Dropout.apply(values, self.p)


# --- attention --------------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Sequences of similar length, padded to the longest of them for attention alone.

    Attributes:
        size: number of sequences, n.
        queries, keys: the token at each place; the sequence's last one where it is padding. A slice if the sequences
            lie side by side and have the same length. *Shape:* (n x longest,)
        padded_queries: the places of padding. *Shape:* (places,), None if there is none
        mask: 0 at keys, minus infinity at padding. *Shape:* (n x heads, 1, longest), None if there is no
            padding
    """

    size: int
    queries: torch.Tensor | slice
    keys: torch.Tensor | slice
    padded_queries: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass
class Groups:
    """All sequences of a packed batch in groups. No tuple: torch.compile would look into it, for every batch anew.

    Attributes:
        groups: the groups.
        query_places, key_places: where each token is in the groups, one behind the other; None: in the same order.
            *Shape:* (tokens,)
    """

    groups: list[Group]
    query_places: torch.Tensor | None
    key_places: torch.Tensor | None


@torch.compiler.disable
def group_by_length(cu_seq_lens_q: torch.Tensor, cu_seq_lens_k: torch.Tensor, heads: int) -> Groups:
    """Puts sequences of similar length into a group, so that attention pays for next to no padding.

    Args:
        cu_seq_lens_q, cu_seq_lens_k: where the queries and the keys of each sequence start, and their number. *Shape:*
            (N + 1,)
        heads: attention heads, each of which has a row of the masks.
    """
    query_lengths, key_lengths = cu_seq_lens_q.diff().tolist(), cu_seq_lens_k.diff().tolist()
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
        if not members or padding > GROUP_COST:
            members.append([])
            padding, longest_query = 0, query_lengths[index]
        members[-1].append(index)
    query_starts, key_starts = cu_seq_lens_q.tolist(), cu_seq_lens_k.tolist()
    queries = [_places(query_starts, query_lengths, group) for group in members]
    keys = [_places(key_starts, key_lengths, group) for group in members]
    groups = [
        Group(
            size=len(group),
            queries=query_tokens,
            keys=key_tokens,
            padded_queries=None if query_real is None else (~query_real).nonzero().squeeze(1),
            mask=None if key_real is None else _mask(key_real.view(len(group), 1, -1).repeat_interleave(heads, 0)),
        )
        for group, (query_tokens, query_real), (key_tokens, key_real) in zip(members, queries, keys, strict=True)
    ]
    return Groups(groups, _inverse(queries, sum(query_lengths)), _inverse(keys, sum(key_lengths)))


def _mask(real: torch.Tensor) -> torch.Tensor:
    return torch.zeros(real.shape, device="cpu").masked_fill_(~real, -torch.inf)


def _places(
    starts: list[int], lengths: Sequence[int], group: list[int]
) -> tuple[torch.Tensor | slice, torch.Tensor | None]:
    """The token at each place of a padded group, and whether it is real (None: all are)."""
    sizes = torch.tensor([lengths[index] for index in group], device="cpu")
    longest = max(int(sizes.max()), 1)  # a sequence without a query has one of padding, for its keys' gradients
    offsets = torch.arange(longest, device="cpu")
    real = offsets < sizes[:, None]
    even = bool(real.all())
    if even and group == list(range(group[0], group[-1] + 1)):
        return slice(starts[group[0]], starts[group[0]] + len(group) * longest), None
    first = torch.tensor([starts[index] for index in group], device="cpu")
    # Never a token of another sequence: a NaN there would be one here, 0 times NaN being NaN.
    tokens = first[:, None] + offsets.minimum((sizes[:, None] - 1).clamp_(min=0))
    tokens.clamp_(max=starts[-1] - 1)  # where a sequence of no query is the last
    return tokens.flatten(), None if even else real.flatten()


def _inverse(places: list[tuple[torch.Tensor | slice, torch.Tensor | None]], tokens: int) -> torch.Tensor | None:
    """Where each token is in the groups, one behind the other; None if in the same order."""
    if len(places) == 1 and isinstance(places[0][0], slice):
        return None
    inverse = torch.zeros(tokens, dtype=torch.long, device="cpu")
    start = 0
    for index, real in places:
        indices = torch.arange(index.start, index.stop, device="cpu") if isinstance(index, slice) else index
        targets = torch.arange(start, start + len(indices), device="cpu")
        start += len(indices)
        if real is not None:
            indices, targets = indices[real], targets[real]
        inverse[indices] = targets
    return inverse


def _take(
    tokens: torch.Tensor, index: torch.Tensor | slice, size: int, padding: torch.Tensor | None = None
) -> torch.Tensor:
    """[T, heads, D] -> [size x heads, longest, D]: a group's tokens, heads first; zero at the places of `padding`."""
    heads, head_size = tokens.shape[1:]
    rows = tokens[index] if isinstance(index, slice) else tokens.flatten(1).index_select(0, index)
    if padding is not None:
        rows.index_fill_(0, padding, 0)
    return rows.view(size, -1, heads, head_size).transpose(1, 2).reshape(size * heads, -1, head_size)


def _put_back(groups: Sequence[torch.Tensor], places: torch.Tensor | None, heads: int) -> torch.Tensor:
    """[size x heads, longest, D] of each group -> [T, heads, D], in the order of the packed batch."""
    rows = [group.view(-1, heads, *group.shape[1:]).transpose(1, 2).flatten(0, 1).flatten(1) for group in groups]
    joined = rows[0] if len(rows) == 1 else torch.cat(rows)
    return (joined if places is None else joined.index_select(0, places)).view(-1, heads, groups[0].shape[-1])


def _scaled_bmm(
    left: torch.Tensor, right: torch.Tensor, scale: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.baddbmm(left.new_empty(1), left, right, beta=0, alpha=scale, out=out)


def _rows_at_once(query: torch.Tensor, key: torch.Tensor) -> int:
    """How many rows of [rows, longest, D] have at most `PIECE` scores, in pieces of about equal size."""
    rows = len(query)
    pieces = math.ceil(rows / max(1, PIECE // (query.shape[1] * key.shape[1])))
    return math.ceil(rows / pieces)


class _GroupedAttention(torch.autograd.Function):
    """softmax(Q K' x scaling) V with dropout on the softmax, one group after the other, some heads at a time.

    Kept for the backward pass: queries, keys, values and the softmax, where a minus sign marks what is dropped.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        groups: Groups,
        scaling: float,
        dropout: float,
    ) -> torch.Tensor:
        heads = query.shape[1]
        outputs: list[torch.Tensor] = []
        saved: list[torch.Tensor] = []
        keep = any(ctx.needs_input_grad)
        for group in groups.groups:
            q = _take(query, group.queries, group.size)
            k, v = (_take(tensor, group.keys, group.size) for tensor in (key, value))
            outputs.append(torch.empty_like(q))
            if keep:
                saved += [q, k, v]
            rows = _rows_at_once(q, k)
            pieces = (tensor.split(rows) for tensor in (q, k, v, outputs[-1]))
            masks = repeat(None) if group.mask is None else group.mask.to(q.dtype).split(rows)
            for q, k, v, output, mask in zip(*pieces, masks, strict=False):
                weights = _scaled_bmm(q, k.transpose(1, 2), scaling)
                if mask is not None:
                    weights.add_(mask)
                torch.softmax(weights, -1, out=weights)
                if dropout:
                    signs = _keep(weights.numel(), dropout).sub_(1).to(INTEGERS[weights.element_size()])
                    weights.copysign_(signs.view(weights.dtype).view(weights.shape))
                _scaled_bmm(_not_negative(weights) if dropout else weights, v, 1 / (1 - dropout), out=output)
                if keep:
                    saved.append(weights)
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.scaling, ctx.dropout, ctx.heads = groups, scaling, dropout, heads
        return _put_back(outputs, groups.query_places, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_groups: list[list[torch.Tensor]] = []
        scale = 1 / (1 - ctx.dropout)
        saved = iter(ctx.saved_tensors)
        for group in ctx.groups.groups:
            tensors = [next(saved) for _ in range(3)]
            of_output = _take(gradients[0], group.queries, group.size, group.padded_queries)
            of_groups.append([torch.empty_like(tensor) for tensor in tensors])
            rows = _rows_at_once(*tensors[:2])
            pieces = (tensor.split(rows) for tensor in (*tensors, of_output, *of_groups[-1]))
            for q, k, v, of_o, of_q, of_k, of_v in zip(*pieces, strict=True):
                weights = next(saved)
                kept = _not_negative(weights) if ctx.dropout else weights
                _scaled_bmm(kept.transpose(1, 2), of_o, scale, out=of_v)
                of_weights = _scaled_bmm(of_o, v.transpose(1, 2), scale)
                if ctx.dropout:
                    of_weights = torch.ops.aten.threshold_backward(of_weights, weights, 0)
                    weights = weights.abs()
                of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
                _scaled_bmm(of_scores, k, ctx.scaling, out=of_q)
                _scaled_bmm(of_scores.transpose(1, 2), q, ctx.scaling, out=of_k)
        of_queries, of_keys, of_values = zip(*of_groups, strict=True)
        return (
            _put_back(of_queries, ctx.groups.query_places, ctx.heads),
            _put_back(of_keys, ctx.groups.key_places, ctx.heads),
            _put_back(of_values, ctx.groups.key_places, ctx.heads),
            None,
            None,
            None,
        )


@torch.compiler.disable
def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: Groups, scaling: float, dropout: float
) -> torch.Tensor:
    """Attention of a packed batch, on the CPU.

    Args:
        query: *Shape:* (queries, heads, D), at least one query
        key, value: *Shape:* (tokens, heads, D)
        groups: from [`group_by_length`].
        scaling: factor of the scores.
        dropout: share of the softmax that is dropped, rounded to a multiple of 2^-16; below 1.

    Returns:
        *Shape:* (queries, heads, D)
    """
    return _GroupedAttention.apply(query, key, value, groups, scaling, dropout)


# --- cross entropy ----------------------------------------------------------------------------------------------


def upcast(logits: torch.Tensor) -> torch.Tensor:
    """`logits` in float32 at the least: a loss in 16 bits is too coarse."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = max(1, PIECE // logits.shape[1])
        normalizers = torch.cat([upcast(piece).logsumexp(1) for piece in logits.split(rows)])
        ctx.save_for_backward(logits, targets, normalizers)
        ctx.rows = rows
        return (normalizers - logits.gather(1, targets[:, None]).squeeze(1)).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, normalizers = ctx.saved_tensors
        of_logits = torch.empty_like(logits)
        pieces = (tensor.split(ctx.rows) for tensor in (logits, targets, normalizers, of_logits))
        for piece, target, normalizer, of_piece in zip(*pieces, strict=True):
            softmax = (upcast(piece) - normalizer[:, None]).exp_()
            softmax[torch.arange(len(target), device=target.device), target] -= 1
            of_piece.copy_(softmax.mul_(gradients[0]))
        return of_logits, None


def cross_entropy_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the cross entropies, computed in float32 at the least.

    Args:
        logits: in any dtype; on the CPU, no float32 copy of all of them is made. *Shape:* (M, V)
        targets: *Shape:* (M,)

    Returns:
        A number, 0 with a gradient where M is 0.
    """
    if is_tracing() or logits.device.type != "cpu" or len(targets) == 0:
        return F.cross_entropy(upcast(logits), targets, reduction="sum")
    return _CrossEntropy.apply(logits, targets)
