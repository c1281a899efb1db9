"""From the caller's batch, padded or packed, to the row of tokens the encoder works on, and back.

Shapes in comments: B rows of L columns in the caller's batch, N sequences, T tokens, H hidden size.
"""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from transformers.utils import logging
from transformers.utils.generic import is_flash_attention_requested

from .configuration_snugbert import SnugBertConfig
from .kernels_snugbert import group_by_length, is_tracing

logger = logging.get_logger(__name__)


@torch.compiler.assume_constant_result
def warn_once(message: str) -> None:
    """Logs a warning the first time; when the model is compiled, as a compiled one cannot log."""
    logger.warning_once(message)


def is_checkable(values: torch.Tensor) -> bool:
    """Whether values may be looked at: on the CPU only, as reading them back from an accelerator would stall it."""
    return values.device.type == "cpu" and not is_tracing()


def refuse_any(wrong: torch.Tensor, complaint: str) -> None:
    """Raises a ValueError if anything is `wrong`, *Shape:* (...).

    On an accelerator, where waiting for the answer would stall it, and in a compiled model it is a RuntimeError.
    """
    if is_checkable(wrong):
        if wrong.any():
            raise ValueError(f"{complaint}: wrong at {wrong.nonzero()[0].tolist()}, {wrong.sum().item()} in all.")
    else:
        torch._assert_async(~wrong.any(), complaint)


def check_range(name: str, ids: torch.Tensor, size: int, size_name: str, ignored: int | None = None) -> None:
    """Raises a ValueError for an id below 0, or of `size` or more; `size_name` is for the complaint."""
    if not is_checkable(ids):
        return
    if ignored is not None:
        ids = ids[ids != ignored]
    if ids.numel() == 0:
        return
    smallest, largest = (value.item() for value in torch.aminmax(ids))
    if smallest < 0 or largest >= size:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"`{name}` holds {wrong}, outside the range 0 to {size - 1} ({size_name} {size}).")


def check_shape(name: str, tensor: torch.Tensor, *allowed: tuple[int, ...]) -> None:
    """Raises a ValueError if a tensor has none of the shapes that are allowed."""
    if tuple(tensor.shape) not in allowed:
        expected = " or ".join(str(list(shape)) for shape in allowed)
        raise ValueError(f"`{name}` has the shape {list(tensor.shape)}, but the inputs need {expected}.")


def spread(tokens: torch.Tensor, places: torch.Tensor, shape: tuple[int, int], fill: float = 0.0) -> torch.Tensor:
    """[T, ...] -> [*shape, ...]: each token at its place in the flattened shape, `fill` elsewhere."""
    padded = tokens.new_full((shape[0] * shape[1], *tokens.shape[1:]), fill)
    return padded.index_copy_(0, places, tokens).unflatten(0, shape)


@dataclass
class SnugBertBatch:
    """The tokens of all sequences in one row, without padding, and where they came from.

    Attributes:
        inputs: word piece ids (1, T), or word embeddings (1, T, H).
        token_type_ids, position_ids: *Shape:* (1, T)
        shape: rows and columns of the caller's batch, (B, L).
        places: where each token is in the caller's flattened batch; None: in the same order. *Shape:* (T,)
        cu_seq_lens: where each sequence starts, and T. *Shape:* (N + 1,), int32
        max_length: length of the longest sequence, or more.
        first_tokens: first token of each sequence. *Shape:* (N,)
        empty: sequences that have no token at all. *Shape:* (N,)
        padded: whether the batch still has its padding and T is B x L: with a 4-D mask, and where the model is traced
            (compiled, exported) and shapes must not depend on the mask.
        attention_mask: if `padded`, the mask of the scores; else `cu_seq_lens` says all.
        real: if `padded`, whether there is a token, where known. *Shape:* (B, L)
    """

    inputs: torch.Tensor
    token_type_ids: torch.Tensor
    position_ids: torch.Tensor
    shape: tuple[int, int]
    places: torch.Tensor | None
    cu_seq_lens: torch.Tensor
    max_length: int
    first_tokens: torch.Tensor
    empty: torch.Tensor | None
    padded: bool = False
    attention_mask: torch.Tensor | None = None
    real: torch.Tensor | None = None

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """[B, L, ...] -> [1, T, ...]."""
        values = values.flatten(0, 1)
        return (values if self.places is None else values.index_select(0, self.places))[None]

    def scatter(self, values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        """[1, T, ...] -> [B, L, ...], with `fill` where there is no token."""
        values = values.to(self.cu_seq_lens.device)  # layers may be on several
        if self.places is not None:
            return spread(values.squeeze(0), self.places, self.shape, fill)
        values = values.view(*self.shape, *values.shape[2:])
        if self.real is not None:
            values = values.masked_fill(~self.real.view(*self.shape, *[1] * (values.dim() - 2)), fill)
        return values

    def padded_places(self) -> tuple[torch.Tensor, tuple[int, int]]:
        """Where each token is if every sequence has a row of its own, flattened, and the shape of that.

        The caller's own shape, if his batch was padded; else as many columns as the longest sequence has.
        """
        order = torch.arange(self.inputs.shape[1], device=self.cu_seq_lens.device)
        if self.num_sequences == self.shape[0]:
            return order if self.places is None else self.places, self.shape
        sequence = torch.searchsorted(self.cu_seq_lens[1:], order, right=True)
        places = sequence * self.max_length + order - self.cu_seq_lens[sequence]
        return places, (self.num_sequences, self.max_length)

    def by_sequence(self, values: torch.Tensor, fill: float) -> torch.Tensor:
        """[1, T, ...] -> [N, L, ...], with `fill` behind a sequence; `scatter` where the batch was padded."""
        if self.num_sequences == self.shape[0]:
            return self.scatter(values, fill)
        places, shape = self.padded_places()
        return spread(values.squeeze(0), places, shape, fill)

    def row_lengths(self) -> int | torch.Tensor:
        """Columns of the caller's rows if his batch was padded, else the tokens of each sequence, (N,)."""
        return self.shape[1] if self.num_sequences == self.shape[0] else self.cu_seq_lens.diff()

    def scatter_all(self, states: tuple[torch.Tensor | None, ...] | None) -> tuple[torch.Tensor | None, ...] | None:
        """`scatter` of each of the hidden states, where there are any."""
        if states is None:
            return None
        return tuple(None if state is None else self.scatter(state) for state in states)

    def gather_labels(self, labels: torch.Tensor, ignored: int) -> torch.Tensor:
        """[B, L] -> [1, T]; raises a ValueError for another shape, and for a label at padding."""
        check_shape("labels", labels, self.shape)
        if self.real is not None:
            refuse_any((labels != ignored) & ~self.real, f"`labels` must be {ignored} at padding")
        elif self.places is not None:
            at_padding = (labels != ignored).flatten().index_fill(0, self.places, False).view(self.shape)
            refuse_any(at_padding, f"`labels` must be {ignored} at padding")
        return self.gather(labels)

    @property
    def no_tokens(self) -> torch.Tensor:
        """Indices of no token, for a head that needs no hidden state but the pooled one. *Shape:* (0,)"""
        return self.first_tokens[:0]

    @property
    def num_sequences(self) -> int:
        """N."""
        return self.cu_seq_lens.shape[0] - 1


def make_batch(
    config: SnugBertConfig,
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    cu_seq_lens_q: torch.Tensor | None,
    max_length_q: int | None,
) -> SnugBertBatch:
    """Checks the inputs of a model and gathers their tokens.

    Raises:
        ValueError: see [`SnugBertModel`].
    """
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Exactly one of `input_ids` and `inputs_embeds` is needed.")
    if inputs.dim() != (2 if inputs_embeds is None else 3):
        raise ValueError(
            f"`input_ids` must be (batch, tokens) and `inputs_embeds` (batch, tokens, hidden size), "
            f"not {list(inputs.shape)}."
        )
    if inputs_embeds is None:
        check_range("input_ids", inputs, config.vocab_size, "vocab_size")
    B, L = inputs.shape[:2]
    if L == 0:
        raise ValueError(f"The batch has no tokens: its shape is {[B, L]}.")
    if token_type_ids is None:
        token_type_ids = torch.zeros((B, L), dtype=torch.long, device=inputs.device)
    else:
        check_shape("token_type_ids", token_type_ids, (B, L))
        check_range("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
    if position_ids is not None:
        check_shape("position_ids", position_ids, (1, L), (B, L))
        check_range("position_ids", position_ids, config.max_position_embeddings, "max_position_embeddings")
    if cu_seq_lens_q is not None:
        return _packed_batch(config, inputs, attention_mask, token_type_ids, position_ids, cu_seq_lens_q, max_length_q)
    return _padded_batch(config, inputs, attention_mask, token_type_ids, position_ids)


def _check_length(length: int, config: SnugBertConfig) -> None:
    if length > config.max_position_embeddings:
        raise ValueError(
            f"The sequences have {length} tokens, more than `max_position_embeddings` "
            f"{config.max_position_embeddings}; truncate them (`truncation=True` when tokenizing)."
        )


def _packed_batch(
    config: SnugBertConfig,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor,
    position_ids: torch.Tensor | None,
    cu_seq_lens: torch.Tensor,
    max_length: int | None,
) -> SnugBertBatch:
    rows, tokens = inputs.shape[:2]
    if rows != 1 or attention_mask is not None:
        raise ValueError(
            "A packed batch (`cu_seq_lens_q`) is one row of tokens without padding: `input_ids` of shape [1, tokens], "
            f"not {[rows, tokens]}, and no `attention_mask`."
        )
    if torch.compiler.is_exporting():
        raise ValueError("A packed batch cannot be exported; export with padded inputs and an `attention_mask`.")
    if not isinstance(cu_seq_lens, torch.Tensor):
        raise ValueError(f"`cu_seq_lens_q` must be a tensor, not {type(cu_seq_lens).__name__}.")
    if cu_seq_lens.dim() != 1 or cu_seq_lens.shape[0] < 2 or cu_seq_lens.is_floating_point():
        raise ValueError(
            f"`cu_seq_lens_q` must be integers of shape [sequences + 1], not {list(cu_seq_lens.shape)} of "
            f"{cu_seq_lens.dtype}."
        )
    if max_length is None or not is_tracing():
        # Reading them from an accelerator stalls it once a batch; a kernel given wrong ones reads beyond its memory.
        max_length = _check_boundaries(cu_seq_lens.tolist(), tokens, max_length)
        _check_length(max_length, config)
    cu_seq_lens = cu_seq_lens.to(inputs.device, torch.int32)
    if position_ids is None:
        order = torch.arange(tokens, dtype=torch.int32, device=inputs.device)
        position_ids = (order - cu_seq_lens[torch.searchsorted(cu_seq_lens[1:], order, right=True)])[None]
    return SnugBertBatch(
        inputs=inputs,
        token_type_ids=token_type_ids,
        position_ids=position_ids,
        shape=(1, tokens),
        places=None,
        cu_seq_lens=cu_seq_lens,
        max_length=max_length,
        first_tokens=cu_seq_lens[:-1].long().clamp(max=tokens - 1),
        empty=cu_seq_lens[1:] == cu_seq_lens[:-1],
    )


def _check_boundaries(starts: list[int], tokens: int, max_length: int | None) -> int:
    """The length of the longest sequence."""
    lengths = [after - before for before, after in pairwise(starts)]
    if starts[0] != 0 or starts[-1] != tokens:
        raise ValueError(
            f"`cu_seq_lens_q` must go from 0 to the number of tokens, {tokens}, not from {starts[0]} to {starts[-1]}."
        )
    if min(lengths) < 0:
        index = lengths.index(min(lengths))
        raise ValueError(
            f"`cu_seq_lens_q` must not decrease, as it does at {index + 1}: {starts[index]}, then {starts[index + 1]}."
        )
    if max_length is not None and max(lengths) > max_length:
        raise ValueError(
            f"`cu_seq_lens_q` has a sequence of {max(lengths)} tokens, but `max_length_q` is {max_length}."
        )
    return max(lengths)


def _padded_batch(
    config: SnugBertConfig,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor,
    position_ids: torch.Tensor | None,
) -> SnugBertBatch:
    B, L = inputs.shape[:2]
    real = _check_mask(attention_mask, (B, config.num_attention_heads, L))
    if position_ids is None:
        position_ids = torch.arange(L, device=inputs.device).repeat(B, 1)
    else:
        position_ids = position_ids.expand(B, L)
        if attention_mask is None or real is not None:  # a 4-D mask may keep sequences of a row apart
            _refuse_restarts(position_ids, real)
    _check_length(L, config)
    starts = torch.arange(B + 1, dtype=torch.int32, device=inputs.device) * L
    batch = SnugBertBatch(
        inputs=inputs.flatten(0, 1)[None],
        token_type_ids=token_type_ids.flatten()[None],
        position_ids=position_ids.flatten()[None],
        shape=(B, L),
        places=None,
        cu_seq_lens=starts,
        max_length=L,
        first_tokens=starts[:-1].long(),
        empty=None,
    )
    if attention_mask is not None and real is None:
        warn_once("With a 4-D `attention_mask` the model works on padding too.")
        batch.padded, batch.attention_mask = True, attention_mask
    elif is_tracing():
        batch.padded = True
        if real is not None:
            if not torch.compiler.is_exporting():  # who exports has no choice
                warn_once("A compiled model works on padding too; packed batches have none.")
            # A row for each query, as in transformers' masks: ONNX's Attention does not broadcast these.
            of_scores = real[:, None, None].expand(-1, -1, L, -1)
            batch.attention_mask = attention_mask if is_flash_attention_requested(config) else of_scores
            batch.real, batch.empty = real, ~real.any(dim=1)
            batch.first_tokens = batch.first_tokens + real.long().argmax(dim=1)
    elif real is not None:
        _drop_padding(batch, real)
    return batch


def _check_mask(attention_mask: torch.Tensor | None, shape: tuple[int, int, int]) -> torch.Tensor | None:
    """Where there are tokens, (B, L), if the mask is of that kind; `shape` is (B, heads, L)."""
    if attention_mask is None:
        return None
    B, heads, L = shape
    if attention_mask.dim() == 4:
        check_shape("attention_mask", attention_mask, *product((1, B), (1, heads), (1, L), (L,)))
        return None
    check_shape("attention_mask", attention_mask, (B, L))
    if is_checkable(attention_mask) and ((attention_mask != 0) & (attention_mask != 1)).any():
        wrong = attention_mask[(attention_mask != 0) & (attention_mask != 1)][0].item()
        raise ValueError(f"`attention_mask` holds {wrong}, but must be 1 at tokens and 0 at padding.")
    return attention_mask.bool()


def _refuse_restarts(position_ids: torch.Tensor, real: torch.Tensor | None) -> None:
    """Sequences packed into a row without boundaries would attend to each other."""
    if is_tracing():
        return
    real = torch.ones_like(position_ids, dtype=torch.bool) if real is None else real
    first = real.long().argmax(dim=1, keepdim=True)
    from_zero = F.pad((position_ids[:, :-1] == 0) & (position_ids[:, 1:] == 1) & real[:, 1:], (0, 1))
    again = real & ((position_ids == position_ids.gather(1, first)) | from_zero)
    again = again.scatter(1, first, False)
    if again.any():
        row, column = again.nonzero()[0].tolist()
        raise ValueError(
            f"`position_ids` start again in row {row} at token {column}: the batch looks packed, but has no "
            "boundaries. Pass `cu_seq_lens_q`, as `SnugBertDataCollatorWithPacking` does."
        )


def _drop_padding(batch: SnugBertBatch, real: torch.Tensor) -> None:
    places = real.flatten().nonzero().squeeze(1)
    if len(places) == real.numel():
        return
    if len(places) == 0:
        raise ValueError(f"`attention_mask` of shape {list(real.shape)} has no token at all.")
    lengths = real.sum(dim=1)
    for name in ("inputs", "token_type_ids", "position_ids"):
        setattr(batch, name, getattr(batch, name)[0].index_select(0, places)[None])
    batch.places = places
    batch.cu_seq_lens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    batch.max_length = int(lengths.max())
    batch.first_tokens = batch.cu_seq_lens[:-1].long().clamp(max=len(places) - 1)
    batch.empty = lengths == 0


def is_ragged(config: SnugBertConfig, batch: SnugBertBatch) -> bool:
    """Whether the attention works on sequences as they are; if not, it has to pad them."""
    sdpa = config._attn_implementation == "sdpa" and batch.inputs.device.type in ("cpu", "cuda")
    return not batch.padded and (sdpa or is_flash_attention_requested(config))


def attention_arguments(config: SnugBertConfig, batch: SnugBertBatch, queries: torch.Tensor | None) -> dict[str, Any]:
    """What the attention of a layer has to know of the batch; computed once for all layers.

    Args:
        queries: the tokens whose output is wanted, in order; all if None. *Shape:* (Q,)

    Returns:
        `batch_size` and `attention_mask` for a batch that still has its padding; `places`, `padded_shape` and
        `attention_mask` for an attention that has to pad; `groups` for sdpa on the CPU; and for all others
        `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, as transformers' flash attention has them.
    """
    if batch.padded:
        return {"batch_size": batch.shape[0], "attention_mask": batch.attention_mask}
    if not is_ragged(config, batch):
        places, shape = batch.padded_places()
        real = places.new_zeros(shape[0] * shape[1], dtype=torch.bool).index_fill_(0, places, True)
        return {"places": places, "padded_shape": shape, "attention_mask": real.view(shape)[:, None, None]}
    starts = batch.cu_seq_lens
    if not is_tracing():
        starts = starts.unique_consecutive()  # not every kernel takes sequences without tokens
    query_starts = starts if queries is None else torch.searchsorted(queries, starts, out_int32=True)
    if batch.inputs.device.type == "cpu" and config._attn_implementation == "sdpa":
        return {"groups": group_by_length(query_starts, starts, config.num_attention_heads)}
    return {
        "cu_seq_lens_q": query_starts,
        "cu_seq_lens_k": starts,
        "max_length_q": batch.max_length,
        "max_length_k": batch.max_length,
    }
