"""The SnugBERT encoder and its heads (Devlin et al., 2018).

Parameters have the same names as in transformers' BERT, so BERT checkpoints load without conversion. To open a saved
SnugBERT model with learned positions in stock BERT, set `"model_type": "bert"` in its configuration.

The encoder works on one row of tokens without padding ([`SnugBertBatch`]). Only attention depends on where sequences
end. Heads gather the tokens they need. Outputs have the layout of the caller's batch.

Shapes: B rows and L columns of the caller's batch, N sequences, T tokens, E embedding size, H hidden size, V
vocabulary size, M labeled tokens, Q tokens whose output is needed.
"""

from .versions_snugbert import WORKING_VERSIONS  # noqa: F401 (imported first, to report unsupported versions)

# isort: split
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPooling,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    NextSentencePredictorOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple, is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .card_snugbert import write_model_card
from .configuration_snugbert import SnugBertConfig, compute_embedding_size, compute_head_size
from .families_snugbert import CLASSIFIER_NAMES, FAMILY_NAMES, WRAPPER_NAMES
from .kernels_snugbert import (
    IGNORE_INDEX,
    SnugBertDropout,
    cross_entropy_sum,
    grouped_attention,
    has_own_kernels,
    is_exporting,
    is_plain_linear,
    is_tracing,
    is_transformed,
    joined_linear,
    padded_linear,
    ragged_attention,
    shift_distances,
    to_autocast_dtype,
    upcast,
)
from .packing_snugbert import (
    SnugBertBatch,
    attention_arguments,
    check_range,
    check_shape,
    is_checkable,
    is_ragged,
    make_batch,
    make_positions,
    scatter,
    warn_of_padding,
    warn_once,
)

NSP_CLASSES, CHOICES = "next-sentence classes:", "number of choices"  # for error messages about labels
SINUSOID_BASE = 10000.0  # Vaswani et al. (2017), section 3.5


# --- the encoder ------------------------------------------------------------------------------------------------


class SnugBertSinusoidalPositions(nn.Module):
    """Computed position embeddings: sine in even dimensions, cosine in odd dimensions."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.embedding_size = compute_embedding_size(config)
        # Positions have the scale of the word embeddings. With amplitude 1, positions would dominate the sum that
        # LayerNorm normalizes. Vaswani et al. scale the word embeddings instead (section 3.4).
        self.amplitude = config.initializer_range

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Computes embeddings in float32. *Shape:* (..., L) -> (..., L, E)"""
        # Not a buffer: `from_pretrained` builds the model on the meta device and would leave a buffer unset.
        exponents = torch.arange(0, self.embedding_size, 2, device=position_ids.device) / self.embedding_size
        angles = position_ids[..., None] * SINUSOID_BASE**-exponents
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2) * self.amplitude


class SnugBertPositionsAfterPadding(nn.Embedding):
    """RoBERTa's position embeddings. Rows 0 to `pad_token_id` are for padding. Position 0 uses the next row."""

    def __init__(self, config: SnugBertConfig):
        assert config.pad_token_id is not None  # checked by the configuration
        self.first_row = config.pad_token_id + 1
        rows = config.max_position_embeddings + self.first_row
        super().__init__(rows, compute_embedding_size(config), padding_idx=config.pad_token_id)

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """Looks up positions, which count from 0. Padding has position -1. *Shape:* (..., L) -> (..., L, E)"""
        return super().forward(position_ids + self.first_row)


class SnugBertEmbeddings(nn.Module):
    """Sum of word, segment and position embeddings, normalized (Devlin et al., 2018, figure 2)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.config = config
        size = compute_embedding_size(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.position_embeddings: nn.Module | None = None  # relative positions are part of attention
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings = SnugBertSinusoidalPositions(config)
        elif config.position_embedding_type == "after_padding":
            self.position_embeddings = SnugBertPositionsAfterPadding(config)
        elif config.position_embedding_type == "absolute":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = SnugBertDropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Embeds tokens as stock BERT does. *Shape:* (B, L), or (B, L, E) for `inputs_embeds` -> (B, L, E)"""
        embeddings = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            if position_ids is None:
                position_ids = make_positions(self.config, embeddings if input_ids is None else input_ids)
            embeddings = embeddings + self.position_embeddings(position_ids).to(embeddings.dtype)
        return self.dropout(self.LayerNorm(embeddings))


def mask_scores(scores: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Applies a boolean or an additive mask to attention scores. None: no mask."""
    if attention_mask is None:
        return scores
    if attention_mask.dtype == torch.bool:
        return scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    return scores + attention_mask


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention, with the arguments of transformers' attention functions.

    For the mask, which broadcasts to (B, heads, L, L), see [`mask_scores`].

    *Shape:* (B, heads, L, D) each -> the output (B, L, heads, D) and the attention weights (B, heads, L, L)
    """
    scores = mask_scores(query @ key.transpose(-2, -1) * scaling, attention_mask)
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = F.dropout(weights, p=dropout)
    return (weights @ value).transpose(1, 2), weights


def compute_buckets(distances: torch.Tensor, buckets: int, longest: int) -> torch.Tensor:
    """Computes DeBERTa's buckets of distances (He et al., 2021, `make_log_bucket_position` in transformers).

    Results range from -`buckets` to `buckets`, with the sign of the distance. Each distance up to half of `buckets`
    has its own bucket, and all distances from `longest` - 1 on share the last bucket. *Shape:* (...) -> (...)
    """
    half = buckets // 2
    far = (distances.abs().clamp(min=half) / half).log()
    # Float32, as in transformers: the bucket of the longest distance depends on how the logarithm is rounded.
    farthest = torch.full((), (longest - 1) / half, device=distances.device).log()
    buckets_of_far = torch.ceil(far / farthest * (half - 1)) + half
    return torch.where(distances.abs() <= half, distances, (buckets_of_far * distances.sign()).long())


def score_distances(
    query: torch.Tensor, key: torch.Tensor, position_keys: torch.Tensor, position_queries: torch.Tensor
) -> torch.Tensor:
    """Computes unscaled scores of content to position and of position to content (He et al., 2021, equation 2).

    `position_keys` are the keys of the distances from L - 1 to -L between query and key, and `position_queries` the
    queries of the distances from 1 - L to L. *Shape:* (B, heads, L, D), (heads, 2 L, D) -> (B, heads, L, L)
    """
    content_to_position = shift_distances(query @ position_keys.transpose(1, 2))
    position_to_content = shift_distances(key @ position_queries.transpose(1, 2))
    return content_to_position + position_to_content.transpose(2, 3)


class SnugBertSelfAttention(nn.Module):
    """Multi-head attention within each sequence."""

    @property
    def is_causal(self) -> bool:
        """Always False. Without this property, transformers' sdpa attention would assume True."""
        return False

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.config = config
        self.attention_head_size = compute_head_size(config)
        self.scaling = self.attention_head_size**-0.5
        if config.position_embedding_type == "relative":
            self.position_dropout = SnugBertDropout(config.hidden_dropout_prob)
            # Each score is the sum of three products. The root is rounded to float32, as in transformers.
            self.scaling = 1 / float(np.sqrt(np.float32(3 * self.attention_head_size)))
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)  # its `p` is read in every call
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        query_states: torch.Tensor | None = None,
        score_mask: torch.Tensor | None = None,
        batch_size: int | None = None,
        padded_shape: tuple[int, int] | None = None,
        token_indices: torch.Tensor | None = None,
        distances: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Computes attention. Returns (1, Q, H) or (B, L, H), and the weights (N, heads, L, L) if they are computed.

        Args:
            hidden_states: all tokens. *Shape:* (1, T, H), or (B, L, H) without the arguments after `query_states`
            attention_mask: score mask for (B, L, H) input, as in stock BERT. *Shape:* broadcasts to (B, heads, L, L)
            query_states: tokens whose output is needed; all if None. *Shape:* (1, Q, H)
            score_mask, batch_size, padded_shape, token_indices, kwargs: from [`attention_arguments`].
            distances, rows: embeddings of distances and their order, from [`SnugBertEncoder.embed_distances`]; None
                without relative positions.
        """
        if distances is None and self.config.position_embedding_type == "relative":
            raise ValueError(
                "A layer with relative positions needs all arguments that the encoder passes. Call the model with "
                "`inputs_embeds` instead."
            )
        if batch_size is None and padded_shape is None and "cu_seq_lens_q" not in kwargs:  # called as in stock BERT
            batch_size, score_mask = len(hidden_states), attention_mask
        query_states = hidden_states if query_states is None else query_states
        query, key, value = (
            to_autocast_dtype(projected.flatten(0, 1)).unflatten(-1, (-1, self.attention_head_size))
            for projected in self._project(query_states, hidden_states)
        )
        # As in transformers: BERT drops weights if the attention module is in training mode, DeBERTa if `dropout` is.
        is_dropping = (self if distances is None else self.dropout).training
        options = {"scaling": self.scaling, "dropout": self.dropout.p if is_dropping else 0.0}
        implementation = self.config._attn_implementation
        # torch 2.11 cannot trace the second condition. In the training commands, the first condition is false.
        if implementation not in ("sdpa", "eager") and is_flash_attention_requested(self.config, version=[3, 4]):
            if options["dropout"]:
                warn_once(f"{implementation} does not support dropout. Attention drops no weights.")
        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        tables = () if distances is None or rows is None else self._project_distances(distances, rows)
        # torch's kernels have no second or forward derivatives. ONNX export does not support these kernels with a
        # mask of scores. The older ONNX exporter, which traces, would make the length of the example a constant.
        is_traced = torch.jit.is_tracing() and torch.onnx.is_in_onnx_export()
        if implementation == "sdpa" and (is_transformed() or is_traced or (tables and is_exporting())):
            attention = eager_attention_forward
        weights = None
        if query_states.shape[1] == 0:  # gives keys and values zero gradients instead of None
            context = query + 0 * (key.sum() + value.sum())
        elif batch_size is not None:
            query, key, value = (
                tensor.unflatten(0, (batch_size, -1)).transpose(1, 2) for tensor in (query, key, value)
            )
            if score_mask is not None and score_mask.dim() == 4:
                if score_mask.is_floating_point():  # added to the scores
                    # A wider dtype's minimum would overflow to minus infinity and make a fully masked row NaN.
                    score_mask = score_mask.clamp(min=torch.finfo(query.dtype).min).to(query.dtype)
                else:
                    score_mask = score_mask.bool()
            if tables:
                score_mask = mask_scores(score_distances(query, key, *tables) * self.scaling, score_mask)
            context, weights = attention(self, query, key, value, score_mask, **options, **kwargs)
        elif padded_shape is not None and token_indices is not None:
            query, key, value = (
                scatter(tensor, token_indices, padded_shape).transpose(1, 2) for tensor in (query, key, value)
            )
            if tables:
                score_mask = mask_scores(score_distances(query, key, *tables) * self.scaling, score_mask)
            context, weights = attention(self, query, key, value, score_mask, **options, **kwargs)
            context = context.flatten(0, 1).index_select(0, token_indices)
        elif implementation == "sdpa":
            if options["dropout"] == 1:  # the remaining weights would be scaled by infinity
                value, options["dropout"] = 0 * value, 0.0
            attend = grouped_attention if has_own_kernels(query) else ragged_attention
            context = attend(query, key, value, tables=tables, **options, **kwargs)
        else:
            tensors = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
            context, weights = attention(self, *tensors, None, **options, **kwargs)
        return context.reshape(query_states.shape), weights

    def _project(self, query_states: torch.Tensor, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns queries, keys and values. *Shape:* (1, Q, H), (1, T, H) -> (1, Q, H), (1, T, H), (1, T, H)"""
        layers = self.query, self.key, self.value
        if has_own_kernels(hidden_states) or not all(map(is_plain_linear, layers)):
            return self.query(query_states), self.key(hidden_states), self.value(hidden_states)
        if query_states is hidden_states:
            return joined_linear(hidden_states, layers)
        return self.query(query_states), *joined_linear(hidden_states, layers[1:])

    def _project_distances(self, distances: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the keys and queries that [`score_distances`] needs. *Shape:* (R, H), (2, 2 L) -> (heads, 2 L, D)"""
        distances = to_autocast_dtype(self.position_dropout(distances))
        heads = (-1, self.attention_head_size)
        keys, queries = (
            to_autocast_dtype(projection(distances)).unflatten(-1, heads)[order].transpose(0, 1)
            for projection, order in zip((self.key, self.query), rows.unbind(), strict=True)
        )
        return keys, queries


class SnugBertResidual(nn.Module):
    """Output of a sublayer: projection, dropout, residual connection, LayerNorm (post-norm)."""

    def __init__(self, config: SnugBertConfig, input_size: int):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = SnugBertDropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Projects `hidden_states` and adds `residual`. *Shape:* (..., input size), (..., H) -> (..., H)"""
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual)


class SnugBertAttention(nn.Module):
    """Attention sublayer."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.self = SnugBertSelfAttention(config)
        self.output = SnugBertResidual(config, config.hidden_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        query_indices: torch.Tensor | None = None,
        low_states: torch.Tensor | None = None,
        **kwargs,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Applies attention to all tokens, or to `query_indices` (Q,) only. Also returns the attention weights.

        `low_states`: see [`SnugBertLayer`]. *Shape:* (1, T, H) -> (1, T or Q, H), or (B, L, H) as in stock BERT
        """
        residual = hidden_states if query_indices is None else hidden_states.index_select(1, query_indices)
        inputs = to_autocast_dtype(hidden_states) if low_states is None else low_states
        needs_all = kwargs.get("distances") is not None  # scores of relative positions need all queries of a sequence
        query_states = None if query_indices is None or needs_all else to_autocast_dtype(residual)
        context, weights = self.self(inputs, attention_mask, query_states, **kwargs)
        if query_indices is not None and needs_all:
            context = context.index_select(1, query_indices)
        return self.output(context, residual), weights


class SnugBertIntermediate(nn.Module):
    """First half of the feed-forward sublayer: widening projection and activation."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Projects and activates. *Shape:* (..., H) -> (..., intermediate size)"""
        return self.intermediate_act_fn(self.dense(hidden_states))


class SnugBertLayer(GradientCheckpointingLayer):
    """Encoder layer: attention and feed-forward sublayers."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.attention = SnugBertAttention(config)
        self.intermediate = SnugBertIntermediate(config)
        self.output = SnugBertResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        distances: torch.Tensor | None = None,
        *args,
        query_indices: torch.Tensor | None = None,
        layout: SnugBertBatch | None = None,
        low_states: torch.Tensor | None = None,
        **kwargs,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Computes the output of all tokens, or of `query_indices` (Q,) only.

        `attention_mask` is used as in stock BERT if no further arguments are passed. `args` are ignored. They come
        from wrappers that pass the arguments of stock BERT's layers. `low_states` are the hidden states in autocast's
        dtype. If passed, the output is also returned in this dtype: one kernel of a compiled layer writes both.

        *Shape:* (1, T, H) -> (1, T or Q, H). With a `layout`, or as in stock BERT, (B, L, H) -> (B, L, H), all tokens
        """
        if layout is not None and distances is None and not has_own_attention(self):
            layout, kwargs = None, {}  # replaced attention gets the arguments of stock BERT
        if layout is not None:
            hidden_states = layout.gather(hidden_states)
        options = {"query_indices": query_indices, "distances": distances, "low_states": low_states, **kwargs}
        hidden_states, _ = self.attention(hidden_states, attention_mask, **options)
        if self.chunk_size_feed_forward:  # saves memory
            parts = hidden_states.split(self.chunk_size_feed_forward, dim=1)
            hidden_states = torch.cat([self.feed_forward_chunk(part) for part in parts], dim=1)
        else:
            hidden_states = self.feed_forward_chunk(hidden_states)
        if low_states is not None:
            return hidden_states, to_autocast_dtype(hidden_states)
        return hidden_states if layout is None else layout.scatter(hidden_states)

    def feed_forward_chunk(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Applies the feed-forward sublayer. *Shape:* (..., H) -> (..., H)"""
        return self.output(self.intermediate(hidden_states), hidden_states)


def _unwrap(module: nn.Module) -> nn.Module:
    """Returns the module inside torch's wrappers (torch.compile, checkpointing, FSDP1). They pass on all arguments."""
    names = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
    inner = next((module._modules[name] for name in names if name in module._modules), None)
    return module if inner is None else _unwrap(inner)


def _runs(module: nn.Module, module_class: type[nn.Module]) -> bool:
    """Whether calling a module runs `module_class.forward` itself, not an overridden, replaced or wrapped version."""
    module = _unwrap(module)
    replaced = vars(module).get("_old_forward", vars(module).get("forward"))  # accelerate's hooks keep the original
    forward = type(module).forward if replaced is None else getattr(replaced, "__func__", None)
    own = module_class.forward
    # transformers wraps `forward` in each subclass of its layers, including the subclass that FSDP2 makes.
    while forward is not own and getattr(forward, "__code__", None) is own.__code__:
        forward = getattr(forward, "__wrapped__", None)
    return forward is own


def has_own_attention(layer: nn.Module) -> bool:
    """Whether the attention of a layer is SnugBERT's, not replaced or wrapped, see [`_unwrap`]."""
    attention: Any = layer.attention
    return _runs(attention, SnugBertAttention) and _runs(attention.self, SnugBertSelfAttention)


def is_own_layer(layer: nn.Module) -> bool:
    """Whether a layer and its attention are SnugBERT's, not replaced or wrapped, see [`_unwrap`]."""
    return _runs(layer, SnugBertLayer) and has_own_attention(layer)


class SnugBertEncoder(nn.Module):
    """Stack of encoder layers, and the embeddings of relative positions, which all layers share."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList([SnugBertLayer(config) for _ in range(config.num_hidden_layers)])
        if config.position_embedding_type == "relative":
            self.rel_embeddings = nn.Embedding(2 * config.position_buckets, config.hidden_size)
            self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def embed_distances(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeds the distances between the tokens of sequences of length L (`length`).

        Returns the embeddings of R buckets (R, H), and the bucket of each distance (2, 2 L). Distances go from L - 1
        to -L in the first row, and from 1 - L to L in the second. [`score_distances`] needs -L and L only as columns.
        """
        buckets = self.config.position_buckets
        # Each distance up to half of `buckets` has its own bucket. A traced graph uses one size for all lengths.
        half = length if not is_tracing() and length <= buckets // 2 else buckets
        distances = self.LayerNorm(self.rel_embeddings.weight[buckets - half : buckets + half])
        ascending = torch.arange(1 - length, length + 1, device=distances.device)
        both = torch.stack([-ascending, ascending])
        rows = compute_buckets(both, buckets, self.config.max_position_embeddings) + half
        return distances, rows.clamp(0, 2 * half - 1)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        batch: SnugBertBatch | None = None,
        query_indices: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Runs all layers.

        Args:
            hidden_states: embeddings. *Shape:* (1, T, H), or (B, L, H) as in stock BERT, without a `batch`
            attention_mask: without a `batch`, the mask of the scores, as in stock BERT. Otherwise, the mask for layers
                that are not SnugBERT's, see [`SnugBertBatch.layer_mask`].
            batch: the batch.
            query_indices: sorted indices of the tokens whose output is needed; all if None. The last layer computes
                only these tokens. The last layer must be SnugBERT's, see [`is_own_layer`]. *Shape:* (Q,)
            kwargs: arguments for the layers, including `layout`. With a `layout`, or without a `batch`,
                `last_hidden_state` has the shape (B, L, H), otherwise (1, T, H) or (1, Q, H).
        """
        arguments = {} if batch is None else attention_arguments(self.config, batch, None)
        distances = None
        if self.config.position_embedding_type == "relative":
            if batch is None:
                length = hidden_states.shape[1]
            elif is_ragged(self.config, batch):
                length = int(batch.cu_seq_lens.diff().max())
            else:
                _, length = arguments.get("padded_shape", batch.shape)
            distances, kwargs["rows"] = self.embed_distances(length)
        low_states = hidden_states
        is_checkpointed = any(getattr(layer, "gradient_checkpointing", False) for layer in self.layer)
        if batch is not None and attention_mask is None and kwargs.get("layout") is None and not is_checkpointed:
            low_states = to_autocast_dtype(hidden_states)
        for number, layer in enumerate(self.layer, start=1):
            if query_indices is not None and number == len(self.layer):
                kwargs["query_indices"] = query_indices
                if distances is None and batch is not None:
                    arguments = attention_arguments(self.config, batch, query_indices)
            if low_states is not hidden_states:
                kwargs["low_states"] = low_states
                hidden_states, low_states = layer(hidden_states, None, distances, **arguments, **kwargs)
            else:
                # Arguments are positional, because gradient checkpointing may ignore gradients of keyword arguments.
                low_states = hidden_states = layer(hidden_states, attention_mask, distances, **arguments, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class SnugBertPooler(nn.Module):
    """Dense layer and activation on the first token of each sequence (`[CLS]`)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        # DeBERTa's pooler has a dropout of 0. A classifier may replace this dropout, see `classification_head`.
        self.dropout: nn.Module = nn.Identity()
        if config.position_embedding_type == "relative":
            self.dropout = SnugBertDropout(0.0)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.pooler_act]

    def forward(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """Pools first tokens. *Shape:* (N, H), or all tokens (N, L, H) if a wrapper passes them -> (N, H)"""
        if first_tokens.dim() == 3:
            first_tokens = first_tokens[:, 0]
        return self.activation(self.dense(self.dropout(first_tokens)))


# --- base classes and losses ------------------------------------------------------------------------------------


class SnugBertPreTrainedModel(PreTrainedModel):
    """Base class of all SnugBERT models: loading, saving and initialization."""

    config: SnugBertConfig
    config_class = SnugBertConfig
    base_model_prefix = "bert"
    bert: nn.Module  # the encoder of a model with a head
    supports_gradient_checkpointing = True
    _no_split_modules = ["SnugBertEmbeddings", "SnugBertLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": SnugBertLayer, "attentions": SnugBertSelfAttention}
    _family_names = FAMILY_NAMES
    # Old files have `position_ids`. `families_snugbert` renames unused weights. Some models lack a pooler or NSP head.
    _keys_to_ignore_on_load_unexpected = [r"position_ids", r"^(unused_|bert\.pooler\.dense\.|cls\.seq_relationship\.)"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)  # N(0, initializer_range), zero biases
        if isinstance(module, SnugBertPredictions):
            init.zeros_(module.bias)

    def _batch(
        self,
        kwargs: dict[str, Any],
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        labels: torch.Tensor | None = None,
    ) -> SnugBertBatch:
        """Gathers the tokens of the caller's batch. Removes the inputs of packed batches from `kwargs`.

        These inputs are not arguments of `forward`, because Trainer treats every argument with "label" in its name as
        a label.
        """
        boundaries = kwargs.pop("cu_seq_lens_q", None), kwargs.pop("max_length_q", None)
        label_indices = kwargs.pop("label_indices", None)
        first_padding = kwargs.pop("num_sequences", None)
        # transformers' collators also pass key boundaries. They equal the query boundaries.
        others = [label_indices, kwargs.pop("cu_seq_lens_k", None), kwargs.pop("max_length_k", None)]
        if boundaries[0] is None and any(value is not None for value in (*boundaries, *others)):
            raise ValueError("`cu_seq_lens_q` is missing. Pass the boundaries of the sequences in a packed batch.")
        if kwargs.pop("past_key_values", None) is not None:
            raise ValueError("SnugBERT has no `past_key_values`, so it cannot use prefix tuning. Use prompt tuning.")
        if boundaries[0] is not None and getattr(self, "_is_replica", False):
            # DataParallel would split `cu_seq_lens_q` and the labels among replicas, but not the row of tokens.
            raise ValueError("DataParallel cannot split a packed batch. Start one process per GPU (torchrun).")
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        if boundaries[0] is None and inputs is not None:
            # Stock BERT's embeddings have the buffers `position_ids` and `token_type_ids`. Some scripts replace them.
            embeddings: Any = self.base_model.embeddings
            if position_ids is None and hasattr(embeddings, "position_ids"):
                position_ids = embeddings.position_ids[:, : inputs.shape[1]]
            if token_type_ids is None and hasattr(embeddings, "token_type_ids"):
                columns = slice(inputs.shape[1]) if position_ids is None else position_ids
                token_type_ids = embeddings.token_type_ids[0, columns]
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        batch = make_batch(self.config, *given, *boundaries, labels)
        if label_indices is not None:
            batch.label_indices = label_indices
        batch.first_padding = first_padding
        return batch

    def _encode(
        self, batch: SnugBertBatch, token_indices: torch.Tensor | None = None, **kwargs
    ) -> BaseModelOutputWithPooling:
        """Runs [`SnugBertModel`] on a gathered batch. `hidden_states` have the caller's layout."""
        # Heads read the encoder's output by name. The caller's `return_dict` applies to the head's output.
        return self.bert(batch=batch, token_indices=token_indices, return_dict=True, **kwargs)

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        """Loads as in transformers. Also opens RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA and DeBERTa-v3 checkpoints.

        The prefixes `module.`, `model.` and `_orig_mod.` of weight names are dropped. A `key_mapping` comes first.
        """
        kwargs["key_mapping"] = {**(kwargs.get("key_mapping") or {}), **WRAPPER_NAMES, **cls._family_names}
        loaded = super().from_pretrained(*args, **kwargs)
        # Otherwise transformers would save the weights under their names in the loaded file.
        (loaded[0] if isinstance(loaded, tuple) else loaded)._weight_conversions = None
        return loaded

    def save_pretrained(self, *args, **kwargs):
        """Saves the model as transformers does, and adds SnugBERT's code files and an `auto_map` with all heads.

        Without snugbert installed, the folder loads with any head through `trust_remote_code=True`. An `auto_map` that
        came with the checkpoint is replaced, because it may refer to another repository's code.
        """
        self.config.auto_map = dict(AUTO_MAP)
        super().save_pretrained(*args, **kwargs)

    def _upload_modified_files(self, working_dir, repo_id, *args, **kwargs):
        """Writes the model card before uploading. Every method that pushes a model calls this method."""
        write_model_card(self, Path(working_dir), repo_id, kwargs.get("token"))
        return super()._upload_modified_files(working_dir, repo_id, *args, **kwargs)


def _divide_loss(
    loss_sum: torch.Tensor, count: int | torch.Tensor, num_items_in_batch: int | torch.Tensor | None
) -> torch.Tensor:
    """Divides a loss by `num_items_in_batch`. None: divides it by `count`.

    Trainer passes `num_items_in_batch`, counted over gradient accumulation steps and processes. If there are no items,
    the result is 0 with a gradient, not NaN.
    """
    items = count if num_items_in_batch is None else num_items_in_batch
    if isinstance(items, torch.Tensor):
        return loss_sum / items.to(loss_sum.device, non_blocking=True).clamp(min=1)
    return loss_sum / max(items, 1)


def _classification_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None,
    size_name: str,
    name: str = "labels",
) -> torch.Tensor:
    """Computes cross entropy, ignoring labels of -100. *Shape:* (..., classes), (...) -> ()

    Error messages name the argument of the labels (`name`) and the option that sets the number of classes
    (`size_name`).
    """
    if labels.numel() != logits[..., 0].numel():
        check_shape(name, labels, tuple(logits.shape[:-1]))
    check_range(name, labels, logits.shape[-1], size_name, ignored=IGNORE_INDEX)
    labels = labels.flatten().long()
    loss_sum = F.cross_entropy(upcast(logits.flatten(0, -2)), labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return _divide_loss(loss_sum, (labels != IGNORE_INDEX).sum(), num_items_in_batch)


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether hooks see the inputs or outputs of `modules`. Hooks of transformers and of FSDP do not count."""
    if torch.compiler.is_compiling():
        return False
    tables = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    hooks = [hook for module in modules for table in tables for hook in getattr(module, table).values()]
    return any(not str(hook.__module__).startswith(("transformers.", "torch.distributed.")) for hook in hooks)


class SnugBertModel(SnugBertPreTrainedModel):
    """The encoder without a head. Returns the last hidden states and the pooled first token.

    Args:
        config: the configuration.
        add_pooling_layer: whether to add a pooler.

    Raises:
        ValueError: `hidden_size` is not a multiple of `num_attention_heads`.
    """

    def __init__(self, config: SnugBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        self.embeddings = SnugBertEmbeddings(config)
        size = compute_embedding_size(config)
        self.embeddings_project = None if size == config.hidden_size else nn.Linear(size, config.hidden_size)
        self.encoder = SnugBertEncoder(config)
        self.pooler = SnugBertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Returns the word embeddings."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: Any):
        """Replaces the word embeddings."""
        self.embeddings.word_embeddings = value

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        batch: SnugBertBatch | None = None,
        token_indices: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        r"""Encodes a padded or packed batch.

        A packed batch is one row of concatenated sequences. Its boundaries are passed as `cu_seq_lens_q`.

        Args:
            input_ids: token ids. *Shape:* (B, L), or (1, T) if packed
            attention_mask: 1 at tokens, 0 at padding; no padding if None. *Shape:* (B, L). A 4-D mask, boolean or
                additive, is applied to the attention scores. The encoder then also computes on padding. A mask,
                segments or positions of one row, (L,) or (1, L), apply to all rows.
            token_type_ids: segments; 0 if None. *Shape:* as `input_ids`
            position_ids: positions, which count from 0 in every family. If None: 0 to L - 1, or from 0 in each packed
                sequence. With `position_embedding_type="after_padding"`, padding tokens do not count. *Shape:* (B, L),
                or (1, T) if packed
            inputs_embeds: word embeddings instead of `input_ids`. *Shape:* (B, L, E), or (1, T, E) if packed
            batch: a batch gathered by a head, instead of the arguments above. The output keeps the packed layout.
            token_indices: with `batch`, the tokens whose last hidden states are needed; all if None. The last layer
                skips all other tokens. *Shape:* (M,)
            kwargs: for packed batches, `cu_seq_lens_q`, the start of each sequence, then T (*Shape:* (N + 1,)),
                `max_length_q`, the length of the longest sequence or an upper bound, and for masked tokens
                `label_indices`, the index of each labeled token (*Shape:* (M,)). If one of the last two is None,
                it is computed, and the host waits for an accelerator. In a filled row, `label_indices` may also
                contain tokens without a label, after the labeled ones, and `num_sequences` is N without padding. Also
                `output_hidden_states`, `output_attentions` (needs `attn_implementation="eager"`) and `return_dict`.

        Returns:
            `last_hidden_state` (B, L, H), or (1, T, H) if packed. It is zero at padding, except with a 4-D mask.
            `pooler_output` (N, H) if there is a pooler. For a row without tokens it is the pooled zero vector.
            `hidden_states` and `attentions` on request. They are part of the autograd graph.

        Raises:
            ValueError: both or neither of `input_ids` and `inputs_embeds`; shapes that do not match; more than
                `max_position_embeddings` tokens, except with relative positions; an id out of range (checked on the
                CPU only); boundaries that do not start at 0 and end at T, or that decrease; a sequence longer than
                `max_length_q`; positions that restart in a row without boundaries or mask; a mask without any token;
                `past_key_values`; `label_indices` that do not match the labels (checked on the CPU only).
            RuntimeError: on an accelerator, wrong boundaries or restarting positions. A later operation raises it.
        """
        if batch is not None:
            return self._encode_tokens(batch, token_indices, return_dict=True, **kwargs)
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode_tokens(batch, None, return_dict=True, **kwargs)
        outputs.last_hidden_state = batch.scatter(outputs.last_hidden_state)
        return outputs

    @merge_with_config_defaults
    @capture_outputs(tie_last_hidden_states=False)
    def _encode_tokens(
        self, batch: SnugBertBatch, token_indices: torch.Tensor | None, **kwargs
    ) -> BaseModelOutputWithPooling:
        """Returns `last_hidden_state` (1, T, H), or (1, M, H) of `token_indices`, and `pooler_output` (N, H)."""
        # Hooks, replaced modules and `output_hidden_states` need the caller's layout between the layers.
        layers = self.encoder.layer
        modules = (self.embeddings, *self.embeddings.children(), self.encoder, *layers)
        observed = kwargs.get("output_hidden_states", self.config.output_hidden_states) or has_hooks(modules)
        has_own_pooler = self.pooler is None or _runs(self.pooler, SnugBertPooler)
        has_own_layers = all(map(is_own_layer, layers))
        has_own_embeddings = _runs(self.embeddings, SnugBertEmbeddings)
        has_own_modules = len(layers) > 0 and has_own_layers and has_own_pooler and has_own_embeddings
        layout = batch if observed or not has_own_modules else None
        inputs = [batch.inputs, batch.token_type_ids, batch.position_ids]
        if layout is not None:
            inputs = [layout.scatter(values) for values in inputs]
        embedded = {"inputs_embeds" if batch.inputs.dim() == 3 else "input_ids": inputs[0]}
        if "input_ids" in embedded and has_own_embeddings:  # compiled embeddings exclude the word embeddings
            embedded = {"inputs_embeds": self.embeddings.word_embeddings(inputs[0])}
        hidden_states = self.embeddings(**embedded, token_type_ids=inputs[1], position_ids=inputs[2])
        if self.embeddings_project is not None:
            hidden_states = self.embeddings_project(hidden_states)
        if layout is not None:
            hidden_states = layout.scatter(layout.gather(hidden_states))  # zero at padding
        first_tokens, query_indices = batch.first_tokens, None
        if self.config.position_embedding_type == "relative" and is_flash_attention_requested(self.config):
            raise ValueError(
                f"{self.config._attn_implementation} cannot add the scores of relative positions. Use "
                'attn_implementation="sdpa".'
            )
        if token_indices is not None and is_ragged(self.config, batch) and layout is None:
            # The last layer computes only the needed tokens. From here on, indices refer to these tokens. First
            # tokens are always included, because ragged kernels require a query in each sequence.
            needed = torch.cat([first_tokens, token_indices])
            query_indices = needed.sort().values
            new_indices = torch.searchsorted(query_indices, needed)
            first_tokens, token_indices = new_indices.split([len(first_tokens), len(token_indices)])
        layer_mask = None if has_own_layers else batch.layer_mask(hidden_states.dtype)
        encoded = self.encoder(hidden_states, layer_mask, batch, query_indices, layout=layout, **kwargs)
        hidden_states = encoded.last_hidden_state
        hidden_states = hidden_states if layout is None else layout.gather(hidden_states)
        hidden_states = hidden_states.to(first_tokens.device)
        pooled = None
        if not has_own_pooler:
            pooled = self.pooler(batch.scatter_by_sequence(hidden_states, 0.0))  # type: ignore[misc]
        elif self.pooler is not None:
            first = hidden_states.index_select(1, first_tokens).squeeze(0)
            pooled = self.pooler(first if batch.empty is None else first.masked_fill(batch.empty[:, None], 0))
        return BaseModelOutputWithPooling(
            last_hidden_state=hidden_states if token_indices is None else hidden_states.index_select(1, token_indices),
            pooler_output=pooled,
        )


# --- pretraining heads ------------------------------------------------------------------------------------------


class SnugBertPredictionTransform(nn.Module):
    """Dense layer, activation and LayerNorm before the vocabulary projection."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        size = compute_embedding_size(config)
        self.dense = nn.Linear(config.hidden_size, size)
        self.transform_act_fn = ACT2FN[config.prediction_act or config.hidden_act]
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Transforms hidden states. *Shape:* (..., H) -> (..., E)"""
        return self.LayerNorm(self.transform_act_fn(self.dense(hidden_states)))


class SnugBertVocabularyProjection(nn.Linear):
    """Linear layer to the vocabulary. On a GPU its product is padded to a size that fast kernels need."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Computes vocabulary logits. *Shape:* (..., E) -> (..., V)"""
        # Quantized and sharded weights have a type of their own.
        if has_own_kernels(input) or type(self.weight) not in (nn.Parameter, torch.Tensor):
            return super().forward(input)
        return padded_linear(input, self.weight, self.bias)


class SnugBertPredictions(nn.Module):
    """Vocabulary projection. It shares the word embeddings unless they are untied."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.transform = SnugBertPredictionTransform(config)
        self.decoder: nn.Linear = SnugBertVocabularyProjection(compute_embedding_size(config), config.vocab_size)
        # BERT files also store the bias under this name. It is tied to the decoder's bias.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Computes vocabulary logits. *Shape:* (..., H) -> (..., V)"""
        return self.decoder(self.transform(hidden_states))


class SnugBertPreTrainingHeads(nn.Module):
    """The masked token head, the next-sentence head, or both. The models call `seq_relationship` themselves."""

    predictions: SnugBertPredictions
    seq_relationship: nn.Linear

    def __init__(self, config: SnugBertConfig, predictions: bool, seq_relationship: bool):
        super().__init__()
        if predictions:
            self.predictions = SnugBertPredictions(config)
        if seq_relationship:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(
        self, hidden_states: torch.Tensor, targets: torch.Tensor, detach_logits: bool, count_correct: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predicts labeled tokens. A trainer compiles this method, so that torch fuses the loss with the head.

        Returns logits and the sum of their cross entropies. With `detach_logits`, the logits have no gradient.
        Otherwise, the backward pass of a compiled head allocates a gradient of zeros. With `count_correct`, the number
        of correct predictions, (), replaces the logits.

        *Shape:* labeled tokens only, (1, M, H), (M,) -> (M, V), ()
        """
        logits = self.predictions(hidden_states).squeeze(0)
        loss_sum = cross_entropy_sum(logits, targets)
        if count_correct:
            return (logits.detach().argmax(-1) == targets).sum(), loss_sum
        return logits.detach() if detach_logits else logits, loss_sum


class SnugBertMaskedTokenModel(SnugBertPreTrainedModel):
    """Base class of the two models with a masked token head: tied projection, and prediction of labeled tokens."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    cls: SnugBertPreTrainingHeads

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Ties the two names of the decoder bias even if the projection is untied."""
        keys = super().get_expanded_tied_weights_keys(all_submodels)
        if not all_submodels:
            keys["cls.predictions.decoder.bias"] = "cls.predictions.bias"
        return keys

    def get_output_embeddings(self) -> nn.Linear:
        """Returns the vocabulary projection."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        """Replaces the vocabulary projection and its tied bias."""
        self.cls.predictions.decoder = new_embeddings
        self.cls.predictions.bias = new_embeddings.bias

    def _predict_tokens(
        self,
        batch: SnugBertBatch,
        labels: torch.Tensor | None,
        sparse_prediction: bool | None,
        output_last_hidden_state: bool = False,
        detach_logits: bool = False,
        count_correct: bool = False,
        **kwargs,
    ) -> tuple[BaseModelOutputWithPooling, torch.Tensor, torch.Tensor | None, torch.Tensor | int]:
        """Runs the encoder and the masked token head.

        In training, or with `sparse_prediction`, the head and the last layer compute labeled tokens only. This skips
        about 85 % of the tokens.

        Returns:
            The encoder's output; the logits, (M, V) if sparse, else in the caller's layout; the loss summed over
            labeled tokens, None without labels; and the number of labeled tokens.
        """
        if output_last_hidden_state and (labels is None or is_transformed() or kwargs.get("output_hidden_states")):
            raise ValueError(
                "`output_last_hidden_state` needs `labels`. It cannot be combined with `output_hidden_states` or vmap."
            )
        predict = self.cls.predictions  # a replaced `cls` needs this attribute
        if labels is None:
            outputs = self._encode(batch, **kwargs)
            return outputs, batch.scatter(predict(outputs.last_hidden_state)), None, 0
        token_labels = batch.gather_labels(labels)[0]
        num_labeled = (token_labels != IGNORE_INDEX).sum()
        if is_transformed():  # vmap cannot select labeled tokens
            outputs = self._encode(batch, **kwargs)
            logits = predict(outputs.last_hidden_state)
            loss = F.cross_entropy(upcast(logits[0]), token_labels.long(), ignore_index=IGNORE_INDEX, reduction="sum")
            return outputs, batch.scatter(logits), loss, num_labeled
        token_indices = batch.find_labels(token_labels)
        targets = token_labels.index_select(0, token_indices).long()
        check_range("labels", targets, self.config.vocab_size, "vocab_size", ignored=IGNORE_INDEX)
        sparse = self.training if sparse_prediction is None else sparse_prediction
        outputs = self._encode(batch, token_indices if sparse and not output_last_hidden_state else None, **kwargs)
        last_hidden_state: torch.Tensor = outputs.last_hidden_state  # type: ignore[assignment]
        if output_last_hidden_state:
            outputs.hidden_states = (batch.scatter(last_hidden_state),)
            last_hidden_state = last_hidden_state.index_select(1, token_indices) if sparse else last_hidden_state
        if sparse:
            return outputs, *self.cls(last_hidden_state, targets, detach_logits, count_correct), num_labeled
        logits = predict(last_hidden_state)
        loss_sum = cross_entropy_sum(logits.index_select(1, token_indices).squeeze(0), targets)
        return outputs, batch.scatter(logits), loss_sum, num_labeled


@dataclass
class SnugBertForPreTrainingOutput(ModelOutput):
    """Output of [`SnugBertForPreTraining`].

    Attributes:
        loss: sum of the losses whose labels were passed; None without labels. *Shape:* ()
        prediction_logits: vocabulary logits. *Shape:* (B, L, V), or (M, V) if sparse
        seq_relationship_logits: logits of "is next" and "is random". *Shape:* (B, 2)
        hidden_states: embeddings and the output of each layer, on request. *Shape:* (B, L, H) each
        attentions: attention weights of each layer, on request. *Shape:* (B, heads, L, L) each
        mlm_loss: masked token loss, detached, for logging. *Shape:* ()
        nsp_loss: next-sentence loss, detached, for logging. *Shape:* ()
    """

    loss: torch.Tensor | None = None
    prediction_logits: torch.Tensor | None = None
    seq_relationship_logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
    mlm_loss: torch.Tensor | None = None
    nsp_loss: torch.Tensor | None = None

    def to_tuple(self) -> tuple:
        """Returns the same tuple as stock BERT. It omits None and the two losses for logging."""
        return tuple(self[name] for name in self.keys() if name not in ("mlm_loss", "nsp_loss"))


class SnugBertForPreTraining(SnugBertMaskedTokenModel):
    """BERT's pretraining model: masked token prediction and next sentence prediction (section 3.1)."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.cls = SnugBertPreTrainingHeads(config, predictions=True, seq_relationship=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        num_sequences_in_batch: int | torch.Tensor | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> SnugBertForPreTrainingOutput:
        r"""Predicts masked tokens and whether the second segment follows the first.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
                `output_last_hidden_state` (needs `labels`): `hidden_states` contains only the last hidden states, of
                all tokens. This registers no hooks, so compiled graphs do not break. `detach_logits`: sparse logits
                have no gradient, which saves a compiled model memory. `count_correct`: sparse logits are replaced by
                the number of correct predictions.
            labels: original ids of masked tokens, -100 elsewhere. Labels at padding are ignored with a warning.
                *Shape:* (B, L)
            next_sentence_label: 0 if the second segment follows the first, otherwise 1. *Shape:* (B,)
            num_items_in_batch: number of labeled tokens in the global batch (all gradient accumulation steps and
                processes). Trainer passes it. The masked token loss is divided by it.
            num_sequences_in_batch: number of sequences in the global batch. The next-sentence loss is divided by it. A
                plain Trainer passes only `num_items_in_batch`. The mean next-sentence loss of this batch is then
                weighted by the batch's share of the labeled tokens.
            sparse_prediction: whether `prediction_logits` cover labeled tokens only. None: in training only.

        Returns:
            The losses of the labels that were passed, and the logits.

        Raises:
            ValueError: as [`SnugBertModel`]; labels of the wrong shape or out of range.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, labels)
        outputs, logits, mlm_sum, num_labeled = self._predict_tokens(batch, labels, sparse_prediction, **kwargs)
        nsp_logits = self.cls.seq_relationship(outputs.pooler_output)

        mlm_loss = None if mlm_sum is None else _divide_loss(mlm_sum, num_labeled, num_items_in_batch)
        nsp_loss = None
        if next_sentence_label is not None:
            nsp_loss = _classification_loss(
                nsp_logits, next_sentence_label, num_sequences_in_batch, NSP_CLASSES, "next_sentence_label"
            )
            if num_sequences_in_batch is None and num_items_in_batch is not None and labels is not None:
                # The weight of this loss is the batch's share of the labeled tokens.
                nsp_loss = _divide_loss(nsp_loss * num_labeled, num_labeled, num_items_in_batch)
        losses = [loss for loss in (mlm_loss, nsp_loss) if loss is not None]
        return SnugBertForPreTrainingOutput(
            loss=sum(losses[1:], losses[0]) if losses else None,
            prediction_logits=logits,
            seq_relationship_logits=nsp_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            mlm_loss=None if mlm_loss is None else mlm_loss.detach(),
            nsp_loss=None if nsp_loss is None else nsp_loss.detach(),
        )


class SnugBertForMaskedLM(SnugBertMaskedTokenModel):
    """Masked token prediction."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.cls = SnugBertPreTrainingHeads(config, predictions=True, seq_relationship=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        sparse_prediction: bool | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        r"""Predicts masked tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels, num_items_in_batch, sparse_prediction, output_last_hidden_state: as in [`SnugBertForPreTraining`].

        Returns:
            `logits` (B, L, V), or (M, V) if sparse.

        Raises:
            ValueError: as [`SnugBertForPreTraining`].
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, labels)
        outputs, logits, loss_sum, num_labeled = self._predict_tokens(batch, labels, sparse_prediction, **kwargs)
        return MaskedLMOutput(
            loss=None if loss_sum is None else _divide_loss(loss_sum, num_labeled, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class SnugBertForNextSentencePrediction(SnugBertPreTrainedModel):
    """Next sentence prediction."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.cls = SnugBertPreTrainingHeads(config, predictions=False, seq_relationship=True)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> NextSentencePredictorOutput:
        r"""Predicts whether the second segment follows the first.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: 0 if the second segment follows the first, 1 if it is random. *Shape:* (B,)
            num_items_in_batch: number of sequences in the global batch. Trainer passes it.

        Returns:
            `logits` (B, 2).

        Raises:
            ValueError: as [`SnugBertModel`]; a label other than 0, 1 and -100.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        logits = self.cls.seq_relationship(outputs.pooler_output)
        loss = None if labels is None else _classification_loss(logits, labels, num_items_in_batch, NSP_CLASSES)
        return NextSentencePredictorOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SnugBertDiscriminatorPredictions(nn.Module):
    """ELECTRA's head: dense layer, activation, and one logit per token."""

    def __init__(self, config: SnugBertConfig):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.dense_prediction = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Computes the logits. *Shape:* (..., H) -> (...)"""
        return self.dense_prediction(self.activation(self.dense(hidden_states))).squeeze(-1)


class SnugBertForReplacedTokenDetection(SnugBertPreTrainedModel):
    """ELECTRA's discriminator (Clark et al., 2020): predicts for each token whether it was replaced.

    Its name in transformers is `ElectraForPreTraining`. `AutoModelForPreTraining` opens this class if the
    configuration's `architectures` name it.
    """

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.discriminator_predictions = SnugBertDiscriminatorPredictions(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        r"""Predicts replaced tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: 1 for replaced tokens, 0 for original tokens, -100 for tokens without a label. Labels at padding
                are ignored with a warning. *Shape:* (B, L)
            num_items_in_batch: number of labeled tokens in the global batch. Trainer passes it.

        Returns:
            `logits` (B, L). Above 0 means replaced.

        Raises:
            ValueError: as [`SnugBertModel`]; labels of the wrong shape or other than 0, 1 and -100.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, **kwargs)
        logits = self.discriminator_predictions(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            token_labels = batch.gather_labels(labels)
            check_range("labels", token_labels, 2, "replaced-token classes:", ignored=IGNORE_INDEX)
            is_labeled = token_labels != IGNORE_INDEX
            targets, scores = token_labels.clamp(min=0), upcast(logits)
            losses = F.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="none")
            loss = _divide_loss(losses.masked_fill(~is_labeled, 0).sum(), is_labeled.sum(), num_items_in_batch)
        return TokenClassifierOutput(
            loss=loss,
            logits=batch.scatter(logits),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# --- fine-tuning heads ------------------------------------------------------------------------------------------


def _classifier_dropout(config: SnugBertConfig) -> SnugBertDropout:
    return SnugBertDropout(
        config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
    )


def _check_windows(num_windows: torch.Tensor, num_sequences: int):
    if is_checkable(num_windows) and (num_windows.sum() != num_sequences or num_windows.min() < 1):
        raise ValueError(
            f"`num_windows` is {num_windows.tolist()}. Expected at least 1 window of each document, and as many "
            f"windows as sequences in the packed batch ({num_sequences})."
        )


def _average_windows(logits: torch.Tensor, documents: torch.Tensor, num_documents: int) -> torch.Tensor:
    """Averages the logits of each document's windows. *Shape:* (N, C), (N,) -> (`num_documents`, C)

    A masked sum adds in a fixed order, so resumed runs match bit for bit. On a GPU, `index_add` has no fixed order.
    `documents`: the document of each window; -1 for windows that do not count.
    """
    belongs = documents == torch.arange(num_documents, device=documents.device)[:, None]
    sums = torch.where(belongs[..., None], upcast(logits), 0.0).sum(1)
    return sums / belongs.sum(1, keepdim=True)


class SnugBertForSequenceClassification(SnugBertPreTrainedModel):
    """Linear layer on the pooled output, for one label, several labels or regression (`config.problem_type`).

    With `classification_head="dense"`, the model also has dropout before the pooler, as in RoBERTa and ELECTRA.
    """

    _family_names = CLASSIFIER_NAMES | FAMILY_NAMES

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.bert = SnugBertModel(config)
        self.dropout = _classifier_dropout(config)
        if config.classification_head == "dense":
            self.bert.pooler.dropout = _classifier_dropout(config)  # type: ignore[union-attr]
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        num_windows: torch.Tensor | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        r"""Classifies sequences, or documents of several windows, whose logits are averaged.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`]. A
                padded batch of documents has windows as the second dimension, (B, windows, L), or (B, windows, L, E)
                for `inputs_embeds`. Windows whose mask is 0 everywhere do not count.
            labels: depends on `config.problem_type`. `"single_label_classification"`: classes (B,), cross entropy.
                `"multi_label_classification"`: 0.0 or 1.0 per class (B, `num_labels`), binary cross entropy.
                `"regression"`: values (B,) or (B, `num_labels`), squared error. If the type is None, as in stock BERT:
                regression if `num_labels` is 1, else single-label for integer labels and multi-label for floats.
                -100 is ignored in single-label classification. In a filled row, the two other losses ignore all
                sequences after the first `num_sequences`.
            num_items_in_batch: number of labels in the global batch. Trainer passes it.
            num_windows: windows of each document, at least 1, for packed batches only. A packed batch lists all
                windows of the first document, then all windows of the second, and so on. *Shape:* (B,)

        Returns:
            `logits` (B, `num_labels`). `hidden_states` and `attentions` have a row for each window.

        Raises:
            ValueError: as [`SnugBertModel`]; labels of the wrong shape or out of range; `num_windows` does not match
                the packed batch.
        """
        inputs = [input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds]
        given = input_ids if inputs_embeds is None else inputs_embeds
        documents = None
        if given is not None and given.dim() == (3 if inputs_embeds is None else 4):
            documents = torch.arange(len(given), device=given.device)[:, None].expand(given.shape[:2])
            if attention_mask is not None:
                documents = documents.masked_fill(~attention_mask.bool().any(-1), -1)
            inputs = [values if values is None or values.dim() == 1 else values.flatten(0, 1) for values in inputs]
        batch = self._batch(kwargs, *inputs)
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        if documents is not None:
            logits = _average_windows(logits, documents.flatten(), len(documents))
        elif num_windows is not None:
            _check_windows(num_windows, batch.num_sequences)
            order = torch.arange(batch.num_sequences, device=num_windows.device)
            documents = torch.searchsorted(num_windows.cumsum(0), order, right=True)
            logits = _average_windows(logits, documents.to(logits.device), len(num_windows))
        return SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels, num_items_in_batch, batch.first_padding),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: int | torch.Tensor | None,
        first_padding: int | None,
    ) -> torch.Tensor:
        if self.config.problem_type is None:
            if self.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                self.config.problem_type = "single_label_classification"
            else:
                self.config.problem_type = "multi_label_classification"
        if self.config.problem_type == "single_label_classification":
            return _classification_loss(logits, labels, num_items_in_batch, "num_labels")
        shapes = [tuple(logits.shape)] + [tuple(logits.shape[:1])] * (self.num_labels == 1)
        if tuple(labels.shape) not in shapes:
            raise ValueError(
                f"`labels` has shape {list(labels.shape)}. Expected {list(logits.shape)} for "
                f"{self.config.problem_type} with `num_labels` {self.num_labels}."
            )
        loss = F.mse_loss if self.config.problem_type == "regression" else F.binary_cross_entropy_with_logits
        scores = upcast(logits)[:first_padding]  # these losses do not ignore -100
        targets = labels.view(logits.shape)[:first_padding].to(scores.dtype)
        return _divide_loss(loss(scores, targets, reduction="sum"), targets.numel(), num_items_in_batch)


class SnugBertForMultipleChoice(SnugBertPreTrainedModel):
    """Linear layer on the pooled output that scores each choice of an example."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.bert = SnugBertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        num_choices: int | None = None,
        **kwargs,
    ) -> MultipleChoiceModelOutput:
        r"""Scores choices.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`],
                with choices as the second dimension. *Shape:* (B, choices, L), or (B, choices, L, E) for
                `inputs_embeds`
            labels: index of the correct choice. *Shape:* (B,)
            num_items_in_batch: number of examples in the global batch. Trainer passes it.
            num_choices: choices per example, for packed batches only. A packed batch lists all choices of the first
                example, then all choices of the second, and so on.

        Returns:
            `logits` (B, choices).

        Raises:
            ValueError: as [`SnugBertModel`]; a label out of range; a packed batch whose number of sequences is not a
                multiple of `num_choices`.
        """
        inputs = [input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds]
        if kwargs.get("cu_seq_lens_q") is None:
            given = input_ids if inputs_embeds is None else inputs_embeds
            if given is not None and given.dim() != (3 if inputs_embeds is None else 4):
                raise ValueError(
                    "Expected `input_ids` of shape (batch, choices, tokens) or `inputs_embeds` of shape (batch, "
                    f"choices, tokens, embedding size), not {list(given.shape)}."
                )
            num_choices = None if given is None else given.shape[1]
            inputs = [values if values is None or values.dim() == 1 else values.flatten(0, 1) for values in inputs]
        batch = self._batch(kwargs, *inputs)
        if num_choices is None or batch.num_sequences % num_choices:
            raise ValueError(
                f"The packed batch has {batch.num_sequences} sequences, not a multiple of `num_choices` "
                f"({num_choices})."
            )
        outputs = self._encode(batch, batch.no_tokens, **kwargs)
        examples = batch.num_sequences // num_choices  # with -1, an exported model would reject 1 example
        logits = self.classifier(self.dropout(outputs.pooler_output)).view(examples, num_choices)
        loss = None if labels is None else _classification_loss(logits, labels, num_items_in_batch, CHOICES)
        return MultipleChoiceModelOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SnugBertForTokenClassification(SnugBertPreTrainedModel):
    """Linear layer on every token, for named entities and other tags."""

    def __init__(self, config: SnugBertConfig):
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        r"""Classifies tokens.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            labels: classes, -100 for tokens without a label. Labels at padding are ignored with a warning.
                *Shape:* (B, L)
            num_items_in_batch: number of labeled tokens in the global batch. Trainer passes it.

        Returns:
            `logits` (B, L, `num_labels`).

        Raises:
            ValueError: as [`SnugBertModel`]; labels of the wrong shape or out of range.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            token_labels = batch.gather_labels(labels)
            loss = _classification_loss(logits, token_labels, num_items_in_batch, "num_labels")
        logits = batch.scatter(logits)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class SnugBertForQuestionAnswering(SnugBertPreTrainedModel):
    """Linear layer that scores every token as the start and as the end of the answer."""

    def __init__(self, config: SnugBertConfig):
        config.num_labels = 2  # stock BERT's head has `num_labels` outputs
        super().__init__(config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]
        self.bert = SnugBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        r"""Scores the start and the end of the answer.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, kwargs: as in [`SnugBertModel`].
            start_positions, end_positions: first and last token of the answer. As in stock BERT, positions beyond the
                row (if packed, beyond the sequence) are ignored, and negative positions mean the first column. Unlike
                in stock BERT, -100 is ignored, and so are positions at padding, with a warning. *Shape:* (B,)
            num_items_in_batch: number of questions in the global batch.

        Returns:
            `start_logits` and `end_logits` (B, L). At padding they are the dtype's minimum, so that the softmax runs
            over tokens only. Stock BERT's softmax includes padding, so its loss depends on the amount of padding.

        Raises:
            ValueError: as [`SnugBertModel`]; positions of the wrong shape.
        """
        batch = self._batch(kwargs, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self._encode(batch, **kwargs)
        logits = self.qa_outputs(outputs.last_hidden_state)
        minimum = torch.finfo(logits.dtype).min
        loss = None
        if start_positions is not None and end_positions is not None:
            scores = batch.scatter_by_sequence(logits, minimum)
            ends = (("start_positions", start_positions), ("end_positions", end_positions))
            losses = [
                self._loss(name, scores[..., index], positions, batch.row_lengths(), num_items_in_batch)
                for index, (name, positions) in enumerate(ends)
            ]
            loss = (losses[0] + losses[1]) / 2
        start_logits, end_logits = batch.scatter(logits, minimum).unbind(-1)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _loss(
        self,
        name: str,
        scores: torch.Tensor,
        positions: torch.Tensor,
        row_lengths: int | torch.Tensor,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        if positions.numel() != len(scores):
            check_shape(name, positions, (len(scores),))
        positions = positions.flatten()
        ignored = (positions >= row_lengths) | (positions == IGNORE_INDEX)
        positions = positions.clamp(min=0).masked_fill(ignored, IGNORE_INDEX)
        chosen = scores.detach().gather(1, positions.clamp(min=0)[:, None])[:, 0]
        at_padding = (chosen == torch.finfo(scores.dtype).min) & (positions >= 0)
        if is_checkable(at_padding):
            warn_of_padding(name, int(at_padding.sum()))
        positions = positions.masked_fill(at_padding, IGNORE_INDEX)
        return _classification_loss(scores, positions, num_items_in_batch, "sequence length")


# Auto class -> model. `snugbert` registers these. Saved folders list them in their `auto_map`.
AUTO_CLASSES: dict[str, type[PreTrainedModel]] = {
    "AutoModel": SnugBertModel,
    "AutoModelForPreTraining": SnugBertForPreTraining,
    "AutoModelForMaskedLM": SnugBertForMaskedLM,
    "AutoModelForNextSentencePrediction": SnugBertForNextSentencePrediction,
    "AutoModelForSequenceClassification": SnugBertForSequenceClassification,
    "AutoModelForTokenClassification": SnugBertForTokenClassification,
    "AutoModelForQuestionAnswering": SnugBertForQuestionAnswering,
    "AutoModelForMultipleChoice": SnugBertForMultipleChoice,
}
# More models that AutoModelForPreTraining opens if the configuration's `architectures` name them.
OTHER_PRETRAINING_MODELS: tuple[type[PreTrainedModel], ...] = (SnugBertForReplacedTokenDetection,)
AUTO_MAP = {"AutoConfig": "configuration_snugbert.SnugBertConfig"} | {
    auto_class: f"modeling_snugbert.{model.__name__}" for auto_class, model in AUTO_CLASSES.items()
}

__all__ = [
    "SnugBertPreTrainedModel",
    *(model.__name__ for model in (*AUTO_CLASSES.values(), *OTHER_PRETRAINING_MODELS)),
]
