"""Converts padded and packed batches to one row of tokens, and outputs back to the caller's layout.

Shapes: B rows and L columns of the caller's batch, N sequences, T tokens, E embedding size.
"""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import get_worker_info
from transformers.utils import logging
from transformers.utils.generic import is_flash_attention_requested

from .configuration_snugbert import SnugBertConfig, compute_embedding_size, compute_max_length
from .kernels_snugbert import IGNORE_INDEX, has_own_kernels, is_exporting, is_tracing, is_transformed

logger = logging.get_logger(__name__)

# On these device types, torch has assertions and `nonzero_static`, and the host does not wait for either.
ASYNCHRONOUS = {"cpu", "cuda"}


@torch.compiler.assume_constant_result
def warn_once(message: str) -> None:
    """Logs a warning once. In a compiled model it is logged during compilation."""
    logger.warning_once(message)


def is_checkable(values: torch.Tensor) -> bool:
    """Whether values can be read at no cost: on the CPU, outside of tracing. Reading from an accelerator stalls it."""
    return has_own_kernels(values) and not is_tracing()


def must_read(values: torch.Tensor) -> bool:
    """Whether a check must read the values: on the CPU, and on devices without asynchronous assertions."""
    return not is_tracing() and (has_own_kernels(values) or values.device.type not in ASYNCHRONOUS)


def assert_later(condition: torch.Tensor, message: str) -> None:
    """Checks a boolean of shape () on a GPU without waiting for it. A failure stops the kernels that are queued later.

    The GPU prints the message. The `RuntimeError` of a later operation does not contain it. Does nothing on device
    types without such assertions.
    """
    if condition.device.type in ASYNCHRONOUS:
        torch.ops.aten._assert_async.msg(condition, message)


_warned: set[str] = set()  # arguments whose labels at padding were reported


def warn_of_padding(name: str, count: int) -> None:
    """Warns, once per argument, that it has `count` labels or positions at padding. Only one data worker warns."""
    worker = get_worker_info()
    if count and name not in _warned and (worker is None or worker.id == 0):
        _warned.add(name)
        logger.warning(
            "In this batch, %d %s of `%s` %s to padding. The loss ignores such values, here and in later batches. Use "
            "-100 instead.",
            count,
            "value" if count == 1 else "values",
            name,
            "belongs" if count == 1 else "belong",
        )


def check_range(name: str, ids: torch.Tensor, size: int, size_name: str, ignored: int | None = None) -> None:
    """Checks that ids are in the range 0 to `size` - 1, or `ignored`. Does nothing on an accelerator or in a compiled
    model. The message names the source of the size, `size_name`.
    """
    if not is_checkable(ids):
        return
    if ignored is not None:
        ids = ids[ids != ignored]
    if ids.numel() == 0:
        return
    smallest, largest = (value.item() for value in torch.aminmax(ids))
    if smallest < 0 or largest >= size:
        wrong = smallest if smallest < 0 else largest
        raise ValueError(f"`{name}` contains {wrong}. The allowed range is 0 to {size - 1} ({size_name} {size}).")


def check_shape(name: str, tensor: torch.Tensor, *allowed: tuple[int, ...]) -> None:
    """Checks that a tensor has one of the allowed shapes."""
    if tuple(tensor.shape) not in allowed:
        expected = " or ".join(str(list(shape)) for shape in allowed)
        raise ValueError(f"`{name}` has shape {list(tensor.shape)}. Expected {expected}.")


def scatter(
    tokens: torch.Tensor, token_indices: torch.Tensor, shape: tuple[int, int], fill: float = 0.0
) -> torch.Tensor:
    """Scatters tokens into a padded tensor, with `fill` at padding. *Shape:* (T, ...) -> (rows, columns, ...)

    `token_indices`: index of each token in the flattened `shape`, (T,).
    """
    padded = tokens.new_full((shape[0] * shape[1], *tokens.shape[1:]), fill)
    return padded.index_copy_(0, token_indices, tokens).unflatten(0, shape)


@dataclass
class SnugBertBatch:
    """All tokens of a batch in one row without padding, and their layout in the caller's batch."""

    inputs: torch.Tensor  # token ids (1, T), or word embeddings (1, T, E)
    token_type_ids: torch.Tensor  # (1, T)
    position_ids: torch.Tensor  # (1, T)
    shape: tuple[int, int]  # rows and columns of the caller's batch, (B, L)
    token_indices: torch.Tensor | None  # index of each token in the caller's flattened batch, (T,). None: all kept
    cu_seq_lens: torch.Tensor  # start of each sequence, then T; (N + 1,), int32
    max_length: int  # of a sequence, or an upper bound
    first_tokens: torch.Tensor  # index of each sequence's first token, (N,)
    empty: torch.Tensor | None  # True for sequences without tokens, (N,). None: there are none
    # Whether the batch keeps its padding, so that T = B x L. This is the case with a 4-D mask, and in a traced model
    # (compiled, exported), where shapes must not depend on the mask.
    padded: bool = False
    attention_mask: torch.Tensor | None = None  # mask of the scores if `padded`. Otherwise `cu_seq_lens` is enough
    token_mask: torch.Tensor | None = None  # True at tokens, False at padding, if `padded` and known, (B, L)
    label_indices: torch.Tensor | None = None  # index of each labeled token in the row, (M,). None: unknown
    first_padding: int | None = None  # the first sequence of padding in a filled row. None: unknown

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Gathers the tokens of a caller's tensor into one row. *Shape:* (B, L, ...) -> (1, T, ...)"""
        values = values.flatten(0, 1)
        if self.token_indices is not None:
            values = values.index_select(0, self.token_indices.to(values.device))  # layers may be on several devices
        return values[None]

    def scatter(self, values: torch.Tensor, fill: float = 0.0) -> torch.Tensor:
        """Restores the caller's layout, with `fill` at padding. *Shape:* (1, T, ...) -> (B, L, ...)"""
        values = values.to(self.cu_seq_lens.device)  # layers may be on several devices
        if self.token_indices is not None:
            return scatter(values.squeeze(0), self.token_indices, self.shape, fill)
        values = values.view(*self.shape, *values.shape[2:])
        if self.token_mask is not None:
            values = values.masked_fill(~self.token_mask.view(*self.shape, *[1] * (values.dim() - 2)), fill)
        return values

    def sequence_layout(self) -> tuple[torch.Tensor, tuple[int, int]]:
        """Returns a layout with one row per sequence: the index of each token in the flattened layout, (T,), and the
        layout's shape. This is the caller's shape if the batch was padded, else (N, `max_length`).
        """
        order = torch.arange(self.inputs.shape[1], device=self.cu_seq_lens.device)
        if self.num_sequences == self.shape[0]:
            return order if self.token_indices is None else self.token_indices, self.shape
        sequence = torch.searchsorted(self.cu_seq_lens[1:], order, right=True)
        token_indices = sequence * self.max_length + order - self.cu_seq_lens[sequence]
        return token_indices, (self.num_sequences, self.max_length)

    def has_holes(self) -> bool:
        """Whether there is padding between tokens of a row. Distances include such padding, as in transformers."""
        if self.token_indices is None:
            return False
        rows = self.token_indices // self.shape[1]
        return bool(((self.token_indices.diff() > 1) & (rows.diff() == 0)).any())

    def scatter_by_sequence(self, values: torch.Tensor, fill: float) -> torch.Tensor:
        """Gives each sequence a row, with `fill` at padding. *Shape:* (1, T, ...) -> (N, columns, ...)

        [`sequence_layout`] determines the columns.
        """
        if self.num_sequences == self.shape[0]:
            return self.scatter(values, fill)
        token_indices, shape = self.sequence_layout()
        return scatter(values.squeeze(0), token_indices, shape, fill)

    def layer_mask(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the mask that stock BERT passes to its layers, for layers that are not SnugBERT's.

        The mask is added to the scores in the caller's layout. Tokens attend to the tokens of their sequence.
        Padding attends to padding, and its outputs are undefined. A 4-D mask of the caller is returned as it is.
        *Shape:* (B, 1, L, L)
        """
        mask = self.attention_mask
        if not self.padded:
            order = torch.arange(self.inputs.shape[1], dtype=torch.int32, device=self.cu_seq_lens.device)
            numbers = self.scatter(torch.searchsorted(self.cu_seq_lens[1:], order, right=True)[None], fill=-1)
            mask = numbers[:, None, :, None] == numbers[:, None, None]
        if mask is None or mask.dtype != torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)

    def row_lengths(self) -> int | torch.Tensor:
        """Returns L if the caller's batch was padded, else the length of each sequence, (N,)."""
        return self.shape[1] if self.num_sequences == self.shape[0] else self.cu_seq_lens.diff()

    def gather_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Gathers token labels into one row, without labels at padding. *Shape:* (B, L) -> (1, T)"""
        check_shape("labels", labels, self.shape)
        if self.token_mask is not None:  # a traced model cannot count, so it does not warn
            return self.gather(labels.masked_fill(~self.token_mask, IGNORE_INDEX))
        token_labels = self.gather(labels)
        if self.token_indices is not None and is_checkable(labels):
            warn_of_padding("labels", int((labels != IGNORE_INDEX).sum() - (token_labels != IGNORE_INDEX).sum()))
        return token_labels

    def find_labels(self, token_labels: torch.Tensor) -> torch.Tensor:
        """Returns the index of each labeled token in the row. *Shape:* (T,) -> (M,)

        Without `label_indices`, the host waits for an accelerator. In a filled row, `label_indices` also contains
        tokens without a label, after the labeled tokens. `label_indices` are checked on the CPU only.
        """
        if self.label_indices is not None and not is_checkable(token_labels):
            return self.label_indices
        label_indices = (token_labels != IGNORE_INDEX).nonzero().squeeze(1)
        if self.label_indices is None:
            return label_indices
        labeled, others = self.label_indices.tensor_split([len(label_indices)])
        are_unlabeled = (token_labels[others] == IGNORE_INDEX).all() and len(others.unique()) == len(others)
        if not (torch.equal(labeled, label_indices) and are_unlabeled):
            raise ValueError(
                f"`label_indices` does not match the {len(label_indices)} labels that are not {IGNORE_INDEX}. Change "
                "labels and `label_indices` together, or drop `label_indices`."
            )
        return self.label_indices

    @property
    def no_tokens(self) -> torch.Tensor:
        """Empty token indices, for heads that use the pooled output only. *Shape:* (0,)"""
        return self.first_tokens[:0]

    @property
    def num_sequences(self) -> int:
        """Number of sequences, N."""
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
    labels: torch.Tensor | None = None,
) -> SnugBertBatch:
    """Checks the inputs of a model, see [`SnugBertModel.forward`], and gathers their tokens into one row.

    `labels`: token labels (B, L), if the head needs `label_indices`. On an accelerator, labels of a padded batch are
    then counted together with its tokens.
    """
    inputs = input_ids if inputs_embeds is None else inputs_embeds
    if inputs is None or (input_ids is not None and inputs_embeds is not None):
        raise ValueError("Pass exactly one of `input_ids` and `inputs_embeds`.")
    E = compute_embedding_size(config)
    if inputs.dim() != (2 if inputs_embeds is None else 3) or (inputs_embeds is not None and inputs.shape[2] != E):
        raise ValueError(
            f"Expected `input_ids` of shape (batch, tokens) or `inputs_embeds` of shape (batch, tokens, {E}), not "
            f"{list(inputs.shape)}."
        )
    if inputs_embeds is None:
        check_range("input_ids", inputs, config.vocab_size, "vocab_size")
    B, L = inputs.shape[:2]
    if L == 0:
        raise ValueError(f"A batch of shape {[B, L]} has no tokens.")
    if token_type_ids is None:
        token_type_ids = torch.zeros((B, L), dtype=torch.long, device=inputs.device)
    else:
        token_type_ids = _expand("token_type_ids", token_type_ids, (B, L))
        if config.type_vocab_size:  # otherwise segments have no effect
            check_range("token_type_ids", token_type_ids, config.type_vocab_size, "type_vocab_size")
    if position_ids is not None:
        position_ids = _expand("position_ids", position_ids, (B, L))
        check_range("position_ids", position_ids, compute_max_length(config), "max_position_embeddings")
    if attention_mask is not None and attention_mask.dim() != 4:
        attention_mask = _expand("attention_mask", attention_mask, (B, L))
    if cu_seq_lens_q is not None:
        return _packed_batch(config, inputs, attention_mask, token_type_ids, position_ids, cu_seq_lens_q, max_length_q)
    return _padded_batch(config, inputs, attention_mask, token_type_ids, position_ids, labels)


def _expand(name: str, values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Repeats one row of values for a batch. *Shape:* (L,), (1, L) or (B, L) -> (B, L)"""
    check_shape(name, values, shape, (1, shape[1]), shape[1:])
    return values.expand(shape)


def _check_length(length: int, config: SnugBertConfig) -> None:
    limit = compute_max_length(config)
    if length > limit:
        raise ValueError(
            f"A sequence has {length} tokens. The model's limit is {limit} "
            "(`max_position_embeddings`). Tokenize with `truncation=True`."
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
            f"A packed batch (`cu_seq_lens_q`) needs `input_ids` of shape [1, tokens], not {[rows, tokens]}, "
            "and no `attention_mask`."
        )
    if is_exporting():
        raise ValueError("A packed batch cannot be exported. Export with padded inputs and an `attention_mask`.")
    if not isinstance(cu_seq_lens, torch.Tensor):
        raise ValueError(f"`cu_seq_lens_q` must be a tensor, not {type(cu_seq_lens).__name__}.")
    if cu_seq_lens.dim() != 1 or cu_seq_lens.shape[0] < 2 or cu_seq_lens.is_floating_point():
        raise ValueError(
            f"`cu_seq_lens_q` must hold integers and have shape [sequences + 1]. It is {cu_seq_lens.dtype} of shape "
            f"{list(cu_seq_lens.shape)}."
        )
    # With wrong boundaries, attention kernels would read invalid memory.
    if max_length is None or must_read(cu_seq_lens):  # without `max_length_q`, the host waits for a GPU
        max_length = _check_boundaries(cu_seq_lens.tolist(), tokens, max_length)
        _check_length(max_length, config)
        cu_seq_lens = cu_seq_lens.to(inputs.device, torch.int32, non_blocking=True)
    else:
        max_length = min(max_length, compute_max_length(config))
        cu_seq_lens = cu_seq_lens.to(inputs.device, torch.int32, non_blocking=True)
        if not is_transformed():
            lengths = cu_seq_lens.diff()
            spans_the_row = (cu_seq_lens[0] == 0) & (cu_seq_lens[-1] == tokens)
            assert_later(spans_the_row & (lengths.min() >= 0) & (lengths.max() <= max_length), WRONG_BOUNDARIES)
    if position_ids is None:
        order = torch.arange(tokens, dtype=torch.int32, device=inputs.device)
        first_tokens = cu_seq_lens[torch.searchsorted(cu_seq_lens[1:], order, right=True)]
        position_ids = make_positions(config, inputs, first_tokens)
    return SnugBertBatch(
        inputs=inputs,
        token_type_ids=token_type_ids,
        position_ids=position_ids,
        shape=(1, tokens),
        token_indices=None,
        cu_seq_lens=cu_seq_lens,
        max_length=max_length,
        first_tokens=cu_seq_lens[:-1].long().clamp(max=tokens - 1),
        empty=cu_seq_lens[1:] == cu_seq_lens[:-1],
    )


WRONG_BOUNDARIES = (
    "`cu_seq_lens_q` must start at 0, end at the number of tokens, and not decrease. No sequence may be longer than "
    "`max_length_q` and `max_position_embeddings`."
)


def _check_boundaries(starts: list[int], tokens: int, max_length: int | None) -> int:
    """Checks the boundaries, and returns the length of the longest sequence."""
    lengths = [after - before for before, after in pairwise(starts)]
    if starts[0] != 0 or starts[-1] != tokens:
        raise ValueError(
            f"`cu_seq_lens_q` must start at 0 and end at {tokens}, the number of tokens. It starts at {starts[0]} and "
            f"ends at {starts[-1]}."
        )
    if min(lengths) < 0:
        index = lengths.index(min(lengths))
        raise ValueError(
            f"`cu_seq_lens_q` must not decrease. It decreases at index {index + 1}, from {starts[index]} to "
            f"{starts[index + 1]}."
        )
    if max_length is not None and max(lengths) > max_length:
        raise ValueError(
            f"`max_length_q` is {max_length}, but `cu_seq_lens_q` has a sequence of {max(lengths)} tokens."
        )
    return max(lengths)


def _padded_batch(
    config: SnugBertConfig,
    inputs: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor,
    position_ids: torch.Tensor | None,
    labels: torch.Tensor | None,
) -> SnugBertBatch:
    B, L = inputs.shape[:2]
    token_mask = _check_mask(attention_mask, (B, config.num_attention_heads, L))
    if position_ids is None:
        position_ids = make_positions(config, inputs)
    elif attention_mask is None:  # with a mask, each row is a sequence, or a 4-D mask separates several
        _refuse_packed_rows(position_ids)
    _check_length(L, config)
    starts = torch.arange(B + 1, dtype=torch.int32, device=inputs.device) * L
    batch = SnugBertBatch(
        inputs=inputs.flatten(0, 1)[None],
        token_type_ids=token_type_ids.flatten()[None],
        position_ids=position_ids.flatten()[None],
        shape=(B, L),
        token_indices=None,
        cu_seq_lens=starts,
        max_length=L,
        first_tokens=starts[:-1].long(),
        empty=None,
    )
    if attention_mask is not None and token_mask is None:
        warn_once("With a 4-D `attention_mask`, SnugBERT cannot skip padding.")
        batch.padded, batch.attention_mask = True, attention_mask
    elif is_tracing():
        batch.padded = True
        if token_mask is not None:
            if not is_exporting() and not is_transformed():  # exported and transformed models have no alternative
                warn_once("A compiled model cannot skip padding. Pass packed batches instead.")
            # One mask row per query, as in transformers' masks. ONNX's Attention does not broadcast masks.
            score_mask = token_mask[:, None, None].expand(-1, -1, L, -1)
            batch.attention_mask = attention_mask if is_flash_attention_requested(config) else score_mask
            batch.token_mask, batch.empty = token_mask, ~token_mask.any(dim=1)
            batch.first_tokens = batch.first_tokens + token_mask.long().argmax(dim=1)
    elif token_mask is not None:
        _drop_padding(batch, token_mask, labels)
    return batch


def make_positions(
    config: SnugBertConfig, inputs: torch.Tensor, first_tokens: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the position of each token: the number of tokens before it in its sequence. *Shape:* (B, L)

    With RoBERTa's positions, padding tokens do not count, whatever the mask. Their position is -1. `inputs` are
    `input_ids` (B, L) or `inputs_embeds` (B, L, E). `first_tokens`: index of the first token of each token's sequence,
    (L,). None: each row is a sequence.
    """
    B, L = inputs.shape[:2]
    if config.position_embedding_type != "after_padding" or inputs.dim() == 3:
        columns = torch.arange(L, device=inputs.device)
        return (columns if first_tokens is None else columns - first_tokens).repeat(B, 1)
    assert config.pad_token_id is not None  # checked by the configuration
    is_token = inputs.ne(config.pad_token_id).long()
    counts = is_token.cumsum(1)
    if first_tokens is not None:
        counts = counts - F.pad(counts, (1, 0)).index_select(1, first_tokens)
    return counts * is_token - 1


def _check_mask(attention_mask: torch.Tensor | None, shape: tuple[int, int, int]) -> torch.Tensor | None:
    """Returns a boolean token mask (B, L); None for a 4-D mask or no mask. `shape` is (B, heads, L)."""
    if attention_mask is None:
        return None
    B, heads, L = shape
    if attention_mask.dim() == 4:
        check_shape("attention_mask", attention_mask, *product((1, B), (1, heads), (1, L), (L,)))
        return None
    if is_checkable(attention_mask) and ((attention_mask != 0) & (attention_mask != 1)).any():
        wrong = attention_mask[(attention_mask != 0) & (attention_mask != 1)][0].item()
        raise ValueError(f"`attention_mask` contains {wrong}. It must be 1 at tokens and 0 at padding.")
    return attention_mask.bool()


def _refuse_packed_rows(position_ids: torch.Tensor) -> None:
    """Refuses several sequences in one row without boundaries, because they would attend to each other.

    In such a row, each position is the previous plus 1, or the row's smallest. After a drop, positions increase again.
    """
    if is_tracing():
        return
    steps = position_ids.diff(dim=1)
    starts = position_ids[:, 1:] == position_ids.amin(dim=1, keepdim=True)
    restarts = starts & (steps < 0)
    increases_later = ((restarts.cumsum(1)[:, :-1] > 0) & (steps[:, 1:] == 1)).any(dim=1, keepdim=True)
    restarts = restarts & increases_later & (starts | (steps == 1)).all(dim=1, keepdim=True)
    problem = (
        "as in a packed batch. For several sequences in a row, pass `cu_seq_lens_q`, for example with "
        "`SnugBertDataCollatorWithPacking`. For one sequence in a row, pass an `attention_mask`."
    )
    if not must_read(restarts):
        assert_later(~restarts.any(), f"`position_ids` restart in a row, {problem}")
    elif restarts.any():
        row, column = restarts.nonzero()[0].tolist()
        raise ValueError(f"`position_ids` restart in row {row} at token {column + 1}, {problem}")


def _drop_padding(batch: SnugBertBatch, token_mask: torch.Tensor, labels: torch.Tensor | None) -> None:
    """Keeps only the tokens. Waits for an accelerator once, to read the numbers of tokens and of labeled tokens."""
    is_token = token_mask.flatten()
    if must_read(is_token) or labels is None or labels.shape != token_mask.shape:
        token_indices = is_token.nonzero().squeeze(1)
    else:
        is_labeled = is_token & (labels.flatten() != IGNORE_INDEX)
        tokens, labeled = torch.stack([is_token.sum(), is_labeled.sum()]).tolist()
        token_indices = torch.nonzero_static(is_token, size=tokens).squeeze(1)
        is_labeled = is_labeled.index_select(0, token_indices)
        batch.label_indices = torch.nonzero_static(is_labeled, size=labeled).squeeze(1)
    if len(token_indices) == token_mask.numel():
        return
    if len(token_indices) == 0:
        raise ValueError(f"`attention_mask` of shape {list(token_mask.shape)} masks every token.")
    lengths = token_mask.sum(dim=1)
    for name in ("inputs", "token_type_ids", "position_ids"):
        setattr(batch, name, getattr(batch, name)[0].index_select(0, token_indices)[None])
    batch.token_indices = token_indices
    batch.cu_seq_lens = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    batch.first_tokens = batch.cu_seq_lens[:-1].long().clamp(max=len(token_indices) - 1)
    batch.empty = lengths == 0


def is_ragged(config: SnugBertConfig, batch: SnugBertBatch) -> bool:
    """Whether attention runs on sequences without padding. Other implementations need padded sequences."""
    sdpa = config._attn_implementation == "sdpa" and batch.inputs.device.type in ("cpu", "cuda")
    if config.position_embedding_type == "relative":  # only our CPU kernel scores distances without padding
        return sdpa and has_own_kernels(batch.inputs) and not (batch.padded or is_tracing() or batch.has_holes())
    return not batch.padded and not is_transformed() and (sdpa or is_flash_attention_requested(config))


def attention_arguments(
    config: SnugBertConfig, batch: SnugBertBatch, query_indices: torch.Tensor | None
) -> dict[str, Any]:
    """Computes the attention arguments of a batch, once for all layers. They are one of three sets:

    - `batch_size` and `score_mask`, for a batch that keeps its padding.
    - `token_indices`, `padded_shape` and `score_mask`, for implementations that need padded sequences.
    - `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, as in transformers' flash attention, for all
      other implementations.

    `query_indices`: sorted indices of the tokens whose output is needed, (Q,); all if None.
    """
    if batch.padded:
        return {"batch_size": batch.shape[0], "score_mask": batch.attention_mask}
    if not is_ragged(config, batch):
        token_indices, shape = batch.sequence_layout()
        mask = token_indices.new_zeros(shape[0] * shape[1], dtype=torch.bool).index_fill_(0, token_indices, True)
        return {
            "token_indices": token_indices,
            "padded_shape": shape,
            "score_mask": mask.view(shape)[:, None, None],
        }
    starts = batch.cu_seq_lens
    query_starts = starts if query_indices is None else torch.searchsorted(query_indices, starts, out_int32=True)
    # A sequence's first token is a query twice if it is labeled, and once more for each empty sequence before it.
    repeated = 0 if query_indices is None else batch.num_sequences
    return {
        "cu_seq_lens_q": query_starts,
        "cu_seq_lens_k": starts,
        "max_length_q": batch.max_length + repeated,
        "max_length_k": batch.max_length,
    }
